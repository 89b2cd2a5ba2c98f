"""The fixture that finds leaks finds them: each test of the page below leaks one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import conftest

ROOT = Path(__file__).parents[1]
LEAKING = """
import os, socket, subprocess, sys, tempfile, threading

KEPT = []

def test_variables(): os.environ["SHOAL_LEAK"] = "1"
def test_threads():
    KEPT.append(threading.Thread(target=threading.Event().wait, daemon=True))
    KEPT[-1].start()
def test_processes():
    KEPT.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1))
def test_ports(): KEPT.append(socket.create_server(("127.0.0.1", 0)))
def test_files(): KEPT.append(tempfile.mkstemp(prefix="shoal-leak-"))

def test_nothing():
    with socket.create_server(("127.0.0.1", 0)), tempfile.TemporaryFile(prefix="shoal"):
        threading.Thread(target=int).start()

def teardown_module():
    KEPT[1].communicate()
    KEPT[2].close()
"""
PLUGIN = """
from tests import conftest
conftest.GRACE_S = 0.2
from tests.conftest import *
from tests.conftest import _no_leaks, _own_temporary_folder
"""


def test_each_kind_of_leak_is_found(tmp_path: Path):
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "test_leaking.py").write_text(LEAKING)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "6 passed, 5 errors" in done.stdout, done.stdout
    for what in ("variables: SHOAL_LEAK", "threads:", "processes:", "ports:", "files:"):
        assert what in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_children_that_end_during_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    children = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]

    def ending(look: Callable[[Path], Any], path: Path) -> Any:
        for child in children[:1]:
            if f"/{child.pid}/" in f"{path}/":
                child.kill()
                child.wait()
        return look(path)

    try:
        for name in ("listdir", "scandir"):
            look = getattr(os, name)
            monkeypatch.setattr(os, name, partial(ending, look))
        found = {child.pid for child in conftest._children()}
        assert children[1].pid in found
        assert children[0].returncode is not None
    finally:
        monkeypatch.undo()
        for child in children:
            child.kill()
            child.wait()


@pytest.mark.data
def test_higgs_data_has_the_documented_shape(higgs):
    assert higgs.x.shape == (22889, 30)
    assert abs(float(higgs.x.mean())) < 1e-3
    assert 0.33 < higgs.y.mean() < 0.35


@pytest.mark.data
def test_mnist_data_has_the_documented_shape(mnist):
    assert mnist.x.shape == (60000, 28, 28)
    assert mnist.x_test.shape == (10000, 28, 28)
    assert mnist.x.max() == 1.0
    assert set(mnist.y_test) == set(range(10))
