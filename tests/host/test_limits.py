"""Limits of a machine and a process are met for real, and told in three sentences."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = "import resource\nresource.setrlimit(resource.RLIMIT_{limit}, ({most}, {most}))"
SHARES = """
from shoal.launchers.shared import SharedBlob
try:
    SharedBlob().allocate(1 << 22)
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""
STARTS = """
import os
from shoal.launchers.base import Role
from shoal.launchers.process import ProcessLauncher
launcher = ProcessLauncher()
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    os.close(taken.pop())
try:
    launcher.start(Role(target="os:getpid", name="worker-7"))
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""
LISTENS = """
import os
from shoal.engine.controller.endpoints import ServerEndpoints
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
try:
    ServerEndpoints("server", ("127.0.0.1", 0), lambda name, listener: "")
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.parametrize(
    ("limit", "most", "script", "told"),
    [
        ("FSIZE", 1 << 20, SHARES, ["share 4,194,304 bytes", "ulimit -f"]),
        ("NOFILE", 40, STARTS, ["start the process worker-7", "ulimit -n"]),
        ("NOFILE", 40, LISTENS, ["a socket for the server", "ulimit -n"]),
    ],
    ids=["memory", "process", "socket"],
)
def test_error_of_a_limit_has_three_sentences(
    tmp_path: Path, limit: str, most: int, script: str, told: list[str]
) -> None:
    begin = BEGIN.format(limit=limit, most=most)
    code = script.replace("\ntry:", f"\n{begin}\ntry:", 1)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.startswith("ClusterError: Cannot "), done
    assert ". Expected " in done.stdout
    assert ". Raise that limit, or use " in done.stdout
    assert all(words in done.stdout for words in told)
