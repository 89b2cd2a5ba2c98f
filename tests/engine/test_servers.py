"""How the controller supervises a server and its standby."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.engine.controller.servers import Servers
from shoal.engine.environment import SYSTEM
from shoal.engine.server.base import open_connections
from shoal.engine.server.main import ServeInherited
from shoal.engine.server.primary import Primary
from shoal.engine.server.spec import ServerSpec
from shoal.engine.server.standby import Standby, StandbySpec
from shoal.wire.frames import BadFrame
from tests.engine.test_standby import setup
from tests.simulation.failover.processes import server_spec
from tests.support.inline import Setup

LIMIT_S = 10.0
LONG_S = 1000.0


class FakePool:
    """Processes that are threads; a standby starts when the test starts it."""

    def __init__(self) -> None:
        self.server, self.standby, self.is_kept = "server", "", False
        self.name, self.standby_name, self.run = "server", "standby", "a-run"
        self.listener, self.other_listener = (
            socket.create_server(("127.0.0.1", 0)) for _ in range(2)
        )
        self.address = self.listener.getsockname()
        self.other_address = self.other_listener.getsockname()
        self.leader = SimpleNamespace(descriptor=self.listener.fileno(), node="")
        self.follower = SimpleNamespace(descriptor=-1, node="")
        self.parts: list[ServeInherited] = []
        self.environment = SYSTEM
        self.stopped: list[str] = []

    def give(self, name: str, part: ServeInherited) -> None:
        self.parts.append(part)

    def spent_s(self, name: str) -> None:
        """Nobody knows."""

    def pid(self, name: str) -> int:
        return os.getpid()

    def start_standby(self) -> None:
        self.standby = "standby"

    def stop(self, name: str) -> None:
        self.stopped.append(name)

    def promote(self) -> None:
        self.server, self.standby = self.standby, ""

    @property
    def follows(self) -> StandbySpec:
        """Spec of the standby that was started last."""
        spec = self.parts[-1].spec
        assert isinstance(spec, StandbySpec)
        return spec


class Notes:
    """An observer that keeps the events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def on_event(self, kind: str, **fields: Any) -> None:
        self.events.append((kind, fields))


@pytest.fixture
def pool() -> Iterator[FakePool]:
    found = FakePool()
    yield found
    found.listener.close()
    found.other_listener.close()


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def servers(pool: FakePool, notes: Notes) -> Iterator[Servers]:
    """A server that completes the handshake; its controller has started a standby."""
    given: Setup = setup("aeasgd")
    spec: ServerSpec = server_spec(given)
    server = Primary(spec, open_connections(spec, pool.listener.dup()))
    thread = threading.Thread(target=server.run)
    thread.start()
    processes: Any = pool
    observer: Any = notes
    found = Servers(processes, processes, observer, 1, list, has_standby=True)
    found.start(spec)
    found.connect(LIMIT_S, lambda: None)
    found.look({}, LONG_S)
    yield found
    found.close()
    thread.join(LIMIT_S)


def hear(servers: Servers, wanted: str, notes: Notes) -> None:
    """Receives from the server until the user is told something."""
    while wanted not in dict(notes.events):
        assert servers.receive(LIMIT_S) is None


def test_a_standby_that_never_starts_is_replaced(
    servers: Servers, pool: FakePool, notes: Notes
) -> None:
    servers.look({}, 0.0)
    assert pool.stopped == ["standby"]
    assert "hung: not started within" in dict(notes.events)["standby_lost"]["reason"]
    while not pool.standby:
        servers.look({}, LONG_S)
    assert pool.follows.generation == 2


def test_a_standby_is_not_dropped_for_a_pause_of_the_controller(
    servers: Servers, pool: FakePool
) -> None:
    """A callback may keep the controller for minutes."""
    began = servers._standby_started
    assert began is not None
    servers._standby_started, servers._looked = began - LONG_S, began - LONG_S
    servers.look({}, LIMIT_S)
    servers.look({}, LIMIT_S)
    assert not pool.stopped


def test_a_standby_that_calls_has_started(
    servers: Servers, pool: FakePool, notes: Notes
) -> None:
    standby = Standby.open(pool.follows, pool.other_listener.dup())
    thread = threading.Thread(target=standby.run)
    thread.start()
    hear(servers, "standby_ready", notes)
    servers.look({}, 0.0)
    assert "standby_lost" not in dict(notes.events)
    assert not pool.stopped
    standby.stop()
    thread.join(LIMIT_S)


def test_a_standby_dropped_before_its_server_knew_it_is_not_accepted(
    servers: Servers, pool: FakePool, notes: Notes
) -> None:
    """It called and ended at once: its server must not wait for it for ever."""
    servers.look({}, 0.0)  # the controller gives up the first, and says so
    while not pool.standby:
        servers.look({}, LONG_S)
    first, second = (
        part.spec for part in pool.parts if isinstance(part.spec, StandbySpec)
    )
    late = Standby.open(first, pool.other_listener.dup())
    late_thread = threading.Thread(target=late.run)
    late_thread.start()
    fresh = Standby.open(second, pool.other_listener.dup())
    thread = threading.Thread(target=fresh.run)
    thread.start()
    hear(servers, "standby_ready", notes)
    for standby in (late, fresh):
        standby.stop()
    for each in (late_thread, thread):
        each.join(LIMIT_S)


def test_a_server_that_cannot_be_understood_is_ended_before_its_standby_leads(
    servers: Servers,
    pool: FakePool,
    notes: Notes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standby = Standby.open(pool.follows, pool.other_listener.dup())
    thread = threading.Thread(target=standby.run)
    thread.start()
    hear(servers, "standby_ready", notes)

    def malformed(*_: Any) -> None:
        raise BadFrame("'epoch': an infinite number")

    with monkeypatch.context() as patch:
        patch.setattr("shoal.engine.controller.servers.hear", malformed)
        assert servers.receive(LIMIT_S) is None
    assert pool.stopped == ["server"]
    reason = dict(notes.events)["server_lost"]["reason"]
    assert reason.startswith("sent what no server of this run sends: 'epoch'")
    hear(servers, "server_replaced", notes)
    servers.close()
    thread.join(LIMIT_S)
