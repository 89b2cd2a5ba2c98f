"""Programs of other frameworks, unchanged, over three hosts: `shoal launch --hosts`."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.hosts import hosts_with_sshd
from tests.support.sshd import Sshd

EXAMPLES = Path(__file__).parents[2] / "examples" / "foreign"
pytestmark = [
    pytest.mark.process, pytest.mark.ray, pytest.mark.slow,
    pytest.mark.xdist_group("hosts"),
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Sshd]:
    path = {k: v for k, v in os.environ.items() if k == "PYTHONPATH"}
    with hosts_with_sshd(3, tmp_path_factory.mktemp("ssh"), path) as (_, found):
        yield found


def launch(server: Sshd, logs: Path, script: str, *options: str) -> str:
    """What the processes printed."""
    listed = logs / "hosts.txt"
    listed.write_text("\n".join(f"root@{a}" for a in server.addresses))
    done = subprocess.run(
        [
            sys.executable, "-m", "shoal", "launch", "--hosts", str(listed),
            "--ssh", shlex.join(server.ssh), "--logs", str(logs / "logs"), *options,
            "--", sys.executable, str(EXAMPLES / script),
        ],
        capture_output=True, text=True, check=False, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    return done.stdout


def test_workers_of_tensorflow(server: Sshd, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    out = launch(server, tmp_path, "tensorflow_job.py", "--chief")
    found = re.findall(r"(chief|worker) (\d) of 3: loss 0.0", out)
    assert sorted(found) == [("chief", "0"), ("worker", "0"), ("worker", "1")]


def test_parameter_servers_of_tensorflow(server: Sshd, tmp_path: Path) -> None:
    """The chief, two workers, two parameter servers, and an evaluator outside."""
    pytest.importorskip("tensorflow")
    options = ("--chief", "--ps", "2", "--evaluator")
    out = launch(server, tmp_path, "parameter_servers.py", *options)
    assert "[chief] chief: loss 0.0" in out
    assert "[evaluator] evaluator: weights [1.0, 1.0]" in out


def test_processes_of_jax(server: Sshd, tmp_path: Path) -> None:
    out = launch(server, tmp_path, "jax_job.py", "--jax")
    found = re.findall(r"rank (\d) of 3: sum (\d)", out)
    assert sorted(found) == [("0", "3"), ("1", "3"), ("2", "3")]


def test_roles_of_dmlc(server: Sshd, tmp_path: Path) -> None:
    out = launch(server, tmp_path, "dmlc_roles.py", "--scheduler", "--ps", "2")
    assert "[scheduler] scheduler: 2 servers and 3 workers" in out
    met = re.findall(r"\[worker-(\d)\] worker \d has met", out)
    assert sorted(met) == ["0", "1", "2"]
