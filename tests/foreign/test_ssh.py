"""`shoal launch` on hosts by a real OpenSSH: network namespaces, sshd on each."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Generator
from pathlib import Path

import pytest

from shoal.errors import ClusterError
from shoal.foreign.checks import check
from shoal.foreign.hosts import read_nodes
from shoal.foreign.job import ProcessGroup, Shape
from shoal.foreign.running import Runner, RunSettings
from shoal.foreign.variables import variables_of
from shoal.runs.store import create
from tests.hosts import hosts_with_sshd
from tests.support.hosts import Hosts
from tests.support.sshd import Sshd

EXAMPLES = Path(__file__).parents[2] / "examples" / "foreign"
pytestmark = [
    pytest.mark.process,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.xdist_group("hosts"),
]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Hosts, Sshd]]:
    path = {k: v for k, v in os.environ.items() if k == "PYTHONPATH"}
    with hosts_with_sshd(2, tmp_path_factory.mktemp("ssh"), path) as found:
        yield found


def test_a_script_of_torch_on_two_hosts(
    hosts: tuple[Hosts, Sshd], tmp_path: Path
) -> None:
    _, server = hosts
    listed = tmp_path / "hosts.txt"
    listed.write_text("\n".join(f"root@{a}" for a in server.addresses))
    done = subprocess.run(
        [
            sys.executable, "-m", "shoal", "launch", "--hosts", str(listed),
            "--ssh", shlex.join(server.ssh), "--logs", str(tmp_path / "logs"), "--",
            sys.executable, str(EXAMPLES / "torch_job.py"),
        ],
        capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    for rank in (0, 1):
        assert f"[worker-{rank}] rank {rank} of 2: loss 0.0" in done.stdout


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun: openmpi-bin")
def test_mpirun_over_the_file_of_hosts(
    hosts: tuple[Hosts, Sshd], tmp_path: Path
) -> None:
    """Started once: it reaches the other host by the same ssh, and counts slots.

    All find Python on the first one's PATH, which their sshd does not know.
    """
    _, server = hosts
    listed = tmp_path / "hosts.txt"
    listed.write_text("\n".join(f"root@{a} slots=2" for a in server.addresses))
    network = server.addresses[0].rpartition(".")[0] + ".0/24"
    found = tmp_path / "bin" / "python-of-the-first"
    found.parent.mkdir()
    found.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    found.chmod(0o755)
    path = f"{found.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [
            sys.executable, "-m", "shoal", "launch", "--hosts", str(listed), "--once",
            "--ssh", shlex.join(server.ssh), "--logs", str(tmp_path / "logs"), "--",
            "env", f"PATH={path}", "mpirun", "--allow-run-as-root",
            # Hosts of one machine, with one name: what else joins them is no way.
            "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", network,
            "--mca", "oob_tcp_if_include", network,
            found.name, str(EXAMPLES / "mpi_job.py"),
        ],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    for rank in range(4):
        assert f"rank {rank} of 4 on " in done.stdout
    errors = re.findall(r"error (\S+)", done.stdout)
    assert len(errors) == 4
    assert max(map(float, errors)) < 1e-6
    told = [line for line in done.stdout.splitlines() if line.startswith("[worker-0]")]
    assert len(told) >= 4


def test_tensorboard_of_a_run_on_another_host(
    hosts: tuple[Hosts, Sshd], tmp_path: Path
) -> None:
    """It listens there, at that host's own loopback, and is reached through ssh."""
    pytest.importorskip("tensorboard")
    _, server = hosts
    with create(tmp_path / "runs", "far") as run:
        run.event("epoch_ended", epoch=0, metrics={"loss": 0.5}, samples=1)
    reached = shlex.join([*server.ssh[1:], server.addresses[0]])
    command = [
        sys.executable, "-m", "shoal", "tensorboard", run.id, "--root",
        str(tmp_path / "runs"), "--ssh", reached, "--python", sys.executable,
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = (process.stdout or sys.stdin).readline().split()[0]
            with urllib.request.urlopen(f"{url}data/environment", timeout=20) as told:
                assert str(tmp_path) in told.read().decode()
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 0
    _wait_until_gone(hosts[0].names[0], run.id)


def test_a_host_that_is_cut_off_ends_the_job_on_all(
    hosts: tuple[Hosts, Sshd], tmp_path: Path
) -> None:
    """With what has left for a session of its own."""
    found, server = hosts
    job = ProcessGroup.of(read_nodes(",".join(server.addresses)), Shape())
    mark = f"mark{os.urandom(4).hex()}"
    escaped = f"import time; {mark} = 1; time.sleep(1000)"
    code = (
        "import subprocess, sys, time\n"
        f"words = [sys.executable, '-c', {escaped!r}]\n"
        "subprocess.Popen(words, start_new_session=True)\n"
        "print('there', flush=True)\n"
        "time.sleep(1000)\n"
    )
    there = list[str]()

    def echo(name: str, line: str) -> None:
        there.append(name)
        if len(there) == len(job.nodes) and line == "there":
            found.cut(1)

    settings = RunSettings(
        folder=str(tmp_path), logs=tmp_path / "logs", grace_s=0.5, ssh=server.ssh
    )
    runner = Runner(
        job, [sys.executable, "-c", code], lambda p: variables_of(job, p), settings,
        echo,
    )  # fmt: skip
    try:
        with pytest.raises(ClusterError, match="could not be reached, or was lost"):
            runner.run()
        for host in found.names:
            _wait_until_gone(host, mark)
        lines = check(job, server.ssh)
        assert any(server.addresses[1] in line for line in lines)
    finally:
        found.mend(1)


def _wait_until_gone(host: str, mark: str) -> None:
    """Waits for the end of a process by its own descriptor, no longer than a test."""
    while True:
        listed = subprocess.run(
            ["ip", "netns", "pids", host], capture_output=True, text=True, check=True
        ).stdout.split()
        words = [_words(pid) for pid in listed]
        if not any(mark in each for each in words):
            return


def _words(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
