"""A Ray cluster of the tests' own: nodes that end with them, and what runs there."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from shoal.clusters.host_agent.nodes import TOO_SLOW

START_S = 180.0
MARK = "SHOAL_TEST_NODE"
ALONE = {
    "RAY_AUTH_MODE": "disabled",
    # Else processes of Ray Client die on a busy head (Ray's issue 63202).
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    # All nodes share the processors of the tests, which leave none to niceness 15.
    "RAY_worker_niceness": "0",
    # A node without a connection is lost after 12 seconds, not 65; a busy one is not.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "2",
}


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as server:
        return server.getsockname()[1]


class RayNode:
    """One node: a head without `head`, which then is its address.

    Args:
        ip: Address on which the node listens.
        head: Address of the cluster's head.
        namespace: Network namespace of the node, None for that of this process.
        cpus: Number of CPUs that the node reports.
        paths: First entries of the import path of its processes.
        more: Options of `ray start`.
        variables: Environment variables of its processes.
    """

    def __init__(
        self,
        ip: str,
        head: str | None = None,
        namespace: str | None = None,
        cpus: int = 2,
        paths: Sequence[str] = (),
        more: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.ip, self.mark = ip, secrets.token_hex(8)
        # Sockets lie in there, whose paths may have no more than 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="shr-", dir="/tmp"))
        where = [] if namespace is None else ["ip", "netns", "exec", namespace]
        ports = ["--port=0", f"--ray-client-server-port={free_port('127.0.0.1')}"]
        ports.append("--include-dashboard=false")
        what = ["--head", *ports] if head is None else [f"--address={head}"]
        home = self.folder / "home"
        home.mkdir()
        found = os.pathsep.join([*paths, *sys.path])
        words = {
            **os.environ, **ALONE, MARK: self.mark, "HOME": str(home),
            "PYTHONPATH": found, "TMPDIR": str(self.folder), **(variables or {}),
        }  # fmt: skip
        command = [
            *where, sys.executable, "-m", "ray.scripts.scripts", "start", *what,
            f"--node-ip-address={ip}", f"--num-cpus={cpus}",
            "--object-store-memory=100000000", f"--temp-dir={self.folder}",
            "--disable-usage-stats",
            f"--dashboard-agent-listen-port={free_port('127.0.0.1')}", *more,
        ]  # fmt: skip
        until = time.monotonic() + START_S
        try:
            while said := self._error_of(command, words):
                # Ray gives itself 30 s, which a busy machine may exceed.
                if TOO_SLOW not in said or time.monotonic() > until:
                    raise RuntimeError(said)
                self._kill()
        except BaseException:
            self.close()
            raise
        self.address = head or (self.folder / "ray_current_cluster").read_text()

    def _error_of(self, command: Sequence[str], words: Mapping[str, str]) -> str:
        """Starts Ray; returns what it said if it failed."""
        done = subprocess.run(
            command, env=words, capture_output=True, text=True, timeout=START_S
        )
        return done.stdout + done.stderr if done.returncode else ""

    def processes(self) -> list[psutil.Process]:
        """Returns the processes of the node, and all that they started."""
        found: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark:
                    found[process.pid] = process
                    # Some processes overwrite their environment by a title.
                    children = process.children(recursive=True)
                    found |= {child.pid: child for child in children}
        return list(found.values())

    def workers(self) -> list[psutil.Process]:
        """Returns the processes of Shoal, the oldest first."""
        found: list[psutil.Process] = []
        for process in self.processes():
            with suppress(psutil.Error):
                words = " ".join(process.cmdline())
                is_titled = words.startswith("shoal: ")
                is_one = is_titled or "shoal.launchers.child" in words
                if is_one and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return sorted(found, key=lambda process: process.create_time())

    def close(self) -> None:
        """Kills the node: a head ignores SIGTERM for a while."""
        self._kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill(self) -> None:
        until = time.monotonic() + START_S
        while (left := self.processes()) and time.monotonic() < until:
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=1.0)


@contextmanager
def imported() -> Generator[None]:
    """Ray, imported with what it reads then and never again."""
    with pytest.MonkeyPatch.context() as patch:
        for name, word in ALONE.items():
            patch.setenv(name, word)
        import ray  # noqa: F401
    os.environ.pop("RAY_CLIENT_MODE", None)  # set by that import
    yield


@pytest.fixture(scope="session")
def ray_node() -> Iterator[RayNode]:
    """A cluster of one node on this machine, with room for four workers."""
    pytest.importorskip("ray")
    with imported():
        node = RayNode(own_address(), cpus=4)
        yield node
        node.close()


class Place:
    """The machine or node of a test's workers.

    Args:
        node: Node of Ray; None for this machine.
    """

    def __init__(self, node: RayNode | None = None) -> None:
        self._node = node
        self.cluster = "local" if node is None else node.address

    def workers(self) -> list[psutil.Process]:
        """Returns processes of workers, the oldest first, without servers."""
        if self._node is not None:
            return self._node.workers()
        children = [c for c in psutil.Process().children() if not listens(c)]
        return sorted(children, key=lambda child: (child.create_time(), child.pid))

    def check(self) -> None:
        """Checks that no process is left on the node after some seconds."""
        if self._node is not None:
            _, left = psutil.wait_procs(self._node.workers(), timeout=START_S)
            assert not left


def listens(child: psutil.Process) -> bool:
    found = child.net_connections(kind="tcp")
    return any(c.status == psutil.CONN_LISTEN for c in found)


def _places(mark: pytest.MarkDecorator) -> pytest.MarkDecorator:
    on_ray = pytest.param("ray", marks=[mark, pytest.mark.slow])
    return pytest.mark.parametrize("place", ["local", on_ray], indirect=True)


EVERYWHERE = _places(pytest.mark.ray)
"""A promise of a run that holds on nodes too, by `make ray`."""

EVERYWHERE_LONG = _places(pytest.mark.ray_long)
"""Another one, by `make ray-long`."""


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """This machine, or a Ray cluster."""
    is_ray = request.param == "ray"
    found = Place(request.getfixturevalue("ray_node") if is_ray else None)
    yield found
    found.check()


def own_address() -> str:
    """Returns an address of this machine other than loopback; it sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return probe.getsockname()[0]
