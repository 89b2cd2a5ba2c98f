"""Workers on other hosts: three network namespaces, one of them the server's."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, final

import cloudpickle
import pytest

from shoal.testing import faults
from shoal.wire.frames import MAGIC
from tests.engine.cases import runs_well, setup
from tests.support import inline
from tests.support.hosts import Hosts
from tests.support.inline import Cluster

pytestmark = pytest.mark.process

WORK = """
import pickle, sys
from shoal.engine.worker.main import work
work(pickle.load(sys.stdin.buffer))
"""
ALL_PROTOCOLS = 3


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2, for network namespaces")
    try:
        found = Hosts()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    yield found
    found.close()


@final
class Sniffer:
    """An eavesdropper between the hosts."""

    def __init__(self, interface: str) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self._socket.bind((interface, ALL_PROTOCOLS))
        self._socket.settimeout(0.1)
        self._is_over, self._heard = False, bytearray()
        self._thread = threading.Thread(target=self._listen)

    def __enter__(self) -> Sniffer:
        self._thread.start()
        return self

    def _listen(self) -> None:
        while not self._is_over:
            with suppress(TimeoutError):
                self._heard += self._socket.recv(1 << 16)

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()
        self._socket.close()

    @property
    def heard(self) -> bytes:
        return bytes(self._heard)


@final
class Away:
    """Starts the workers of a cluster on other hosts, in turn.

    Args:
        cluster: Whose.
        hosts: There.
    """

    def __init__(self, cluster: Cluster, hosts: Hosts) -> None:
        self._cluster, self._hosts = cluster, hosts
        self.processes: list[subprocess.Popen[bytes]] = []
        cluster.start_worker = self.start  # type: ignore[method-assign]

    def start(self, hint: int = -1) -> None:
        host = self._hosts.names[len(self.processes) % 2]
        command = ["ip", "netns", "exec", host, sys.executable, "-c", WORK]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        self.processes.append(process)
        spec = cloudpickle.dumps(self._cluster.worker_spec(hint))
        assert process.stdin is not None
        with process.stdin as stdin:
            stdin.write(spec)

    def wait(self) -> list[int]:
        return [process.wait(30) for process in self.processes]


def train(hosts: Hosts, **fields: Any) -> tuple[bytes, list[dict[str, Any]], Away]:
    """Trains on the other hosts; returns their traffic, the events, the workers.

    By rounds, which begin when all workers are there.
    """
    given = setup("local_sgd", wants_slot=False, host=hosts.address, **fields)
    with Sniffer(hosts.bridge) as sniffer:
        with Cluster(given) as cluster:
            away = Away(cluster, hosts)
            events = runs_well(cluster)
        away.wait()
    return sniffer.heard, events, away


def test_traffic_between_hosts_is_encrypted(hosts: Hosts) -> None:
    """Without any setting of the user, the server listens where others reach it."""
    heard, events, _ = train(hosts)
    joined = [event for event in events if event["kind"] == "joined"]
    assert len(joined) == 2
    assert len(heard) > 10_000
    assert MAGIC not in heard
    assert b"kind" not in heard


def test_without_encryption_the_test_would_read_the_traffic(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline, "identity_for", lambda _: None)
    heard, _, _ = train(hosts)
    assert MAGIC in heard
    assert b'"kind":"push"' in heard


def test_a_host_that_is_lost_costs_no_sample(hosts: Hosts) -> None:
    _, events, away = train(hosts, watch=faults.kill(rank=1, step=2))
    assert [event["rank"] for event in events if event["kind"] == "left"] == [1]
    assert len(away.processes) == 3
    assert sorted(away.wait())[0] == -9


def test_a_worker_of_another_run_is_refused(hosts: Hosts) -> None:
    """It has another secret, or another certificate."""
    given = setup("downpour", wants_slot=False, host=hosts.address)
    with Cluster(given) as cluster, Cluster(given) as other:
        away = Away(cluster, hosts)
        spec, stranger = cluster.worker_spec(0), other.worker_spec(0)
        wrong = replace(spec.server_address, secret=stranger.server_address.secret)
        blind = replace(
            spec.server_address, certificate=stranger.server_address.certificate
        )
        for server_address in (wrong, blind):
            cluster.worker_spec = lambda _, server_address=server_address: replace(
                spec, server_address=server_address
            )  # type: ignore[method-assign]
            away.start()
        assert all(away.wait())
        del cluster.worker_spec
        runs_well(cluster)
    away.wait()
