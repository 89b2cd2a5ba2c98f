"""`shoal launch` on hosts by a real OpenSSH: network namespaces, sshd on each."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import NoReturn

import pytest

from shoal.errors import ClusterError
from shoal.foreign.checks import check
from shoal.foreign.hosts import read_nodes
from shoal.foreign.job import Job, Shape
from shoal.foreign.running import Runner, Settings
from shoal.foreign.variables import variables_of
from shoal.testing.hosts import Hosts
from shoal.testing.sshd import SERVER, Sshd

EXAMPLES = Path(__file__).parents[2] / "examples" / "foreign"
pytestmark = [pytest.mark.process, pytest.mark.xdist_group("hosts")]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Hosts, Sshd]]:
    folder = tmp_path_factory.mktemp("ssh")
    try:
        found = Hosts(2)
    except (OSError, subprocess.CalledProcessError):
        _skip("network namespaces, which need root and iproute2")
    try:
        try:
            server = Sshd(found, folder)
        except FileNotFoundError:
            _skip(f"{SERVER}: apt-get install openssh-server")
        yield found, server
        server.close()
    finally:
        found.close()


def _skip(what: str) -> NoReturn:
    """In CI nothing is skipped that it could run."""
    if os.environ.get("SHOAL_REQUIRE_HOSTS"):
        pytest.fail(f"needs {what}")
    pytest.skip(f"needs {what}")


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
            # Hosts of one machine have one name, which leads gloo astray.
            "env", "GLOO_SOCKET_IFNAME=eth0",
            sys.executable, str(EXAMPLES / "torch_job.py"),
        ],
        capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    for rank in (0, 1):
        assert f"[worker-{rank}] rank {rank} of 2: loss 0.0" in done.stdout


def test_a_host_that_is_cut_off_ends_the_job_on_all(
    hosts: tuple[Hosts, Sshd], tmp_path: Path
) -> None:
    found, server = hosts
    job = Job.of(read_nodes(",".join(server.addresses)), Shape())
    mark = f"mark{os.urandom(4).hex()}"
    code = f"import time; {mark} = 1; print('there', flush=True); time.sleep(1000)"
    there = list[str]()

    def echo(name: str, line: str) -> None:
        there.append(name)
        if len(there) == len(job.nodes) and line == "there":
            found.cut(1)

    settings = Settings(
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
