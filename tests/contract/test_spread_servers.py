"""Servers that share a vector run on nodes of a cluster, beside its workers.

The toy engine of `test_carriers.py`: each task says that it is on a node of its own.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import shoal
from shoal.launchers.base import Exit, Role
from shoal.launchers.node_agent import NodeAgent
from tests.contract.test_carriers import Bench, gone, toy
from tests.contract.test_plugin import site
from tests.engine.test_faults import be_patient
from tests.ray_nodes import listens, own_address
from tests.support.models import wide
from tests.support.watch import Watch

__all__ = ["site", "toy"]

pytestmark = pytest.mark.process

# Whole runs of three nodes are longer than a test of `make test` may be.
on_nodes = pytest.mark.ray

ECHO = """
import os, socket
listener = socket.socket(fileno=os.dup({}))
while True:
    connection, _ = listener.accept()
    connection.sendall(str(os.getppid()).encode())
    connection.close()
"""


def ask(address: tuple[str, int]) -> int:
    """Calls a process of `ECHO`; returns the pid of its agent."""
    with socket.create_connection(address) as connection:
        return int(connection.makefile().read())


def test_a_server_is_started_beside_a_worker_and_again_at_the_same_address(
    toy: Any,
) -> None:
    toy.nodes[:] = ["a", "b"]
    bench = Bench(toy)
    long = "print('there', flush=True); import time; time.sleep(600)"
    workers = [bench.start(long), bench.start(long)]
    assert not bench.launcher.is_settled
    bench.until(lambda: len(bench.lines) == 2)
    assert bench.launcher.is_settled
    assert sorted(bench.launcher.nodes()) == ["a", "b"]
    found = bench.launcher.listen("b", "127.0.0.1")
    bench.until(lambda: found.is_settled)
    assert not found.lost
    role = Role(target="builtins:exec", name="server-1")
    [agent] = [task for task in toy.tasks if task.process.args[-1] == "b"]
    for _ in range(2):
        token = bench.launcher.start_at(found, role)
        bench.launcher.give(token, ECHO.format(found.descriptor))
        assert ask(found.address) == agent.process.pid
        bench.launcher.stop(token)
        assert bench.end_of(token).name == "server-1"
    assert bench.launcher.poll() == {}  # the workers live
    token = bench.launcher.start_at(found, role)
    here = psutil.Process(agent.process.pid)
    bench.until(lambda: len(here.children()) == 2)  # the worker, and the server
    started = here.children()
    agent.process.kill()
    ended: dict[str, Exit] = {}
    while len(ended) < 2:
        ended |= bench.launcher.poll()
    assert token in ended
    assert set(workers) & set(ended)
    assert "hung up" in found.lost
    assert bench.launcher.nodes() == ["a"]
    assert gone(started)  # they accept nothing any more
    with pytest.raises(ConnectionRefusedError):
        ask(found.address)
    late = bench.launcher.start_at(found, role)
    assert "hung up" in bench.end_of(late).reason
    bench.close()


def test_a_socket_that_cannot_be_opened_is_lost_and_its_agent_works_on(
    toy: Any,
) -> None:
    bench = Bench(toy)
    bench.start("print('there', flush=True); import time; time.sleep(600)")
    bench.until(lambda: bench.lines)
    slot = bench.launcher._slots[0]
    assert slot.here is not None
    slot.here = replace(slot.here, node="192.0.2.1")
    found = bench.launcher.listen("elsewhere", "192.0.2.2")
    bench.until(lambda: found.is_settled)
    assert "could not open a socket" in found.lost
    assert bench.launcher.poll() == {}
    bench.close()


def test_the_socket_of_an_agent_never_has_the_number_of_the_data() -> None:
    agent = NodeAgent(-1)
    taken = agent.listen("127.0.0.1").descriptor
    agent.close()
    agent._number = taken  # which is the next one that is free
    numbers = [agent.listen("127.0.0.1").descriptor for _ in range(3)]
    agent.close()
    agent.free()
    assert taken not in numbers


def test_an_agent_without_an_address_opens_no_socket() -> None:
    agent = NodeAgent(-1)
    with pytest.raises(OSError, match="none is known"):
        agent.listen("")  # it would be open to all networks
    agent.free()


# ------------------------------------------------------------------ whole runs

ROWS = 320


def samples() -> tuple[Any, Any]:
    x = np.random.default_rng(0).standard_normal((ROWS, 4)).astype("float32")
    return x, (x[:, :1] > 0).astype("float32")


def servers_of(task: Any) -> list[psutil.Process]:
    """Processes of an agent that listen."""
    if task.process.poll() is not None:
        return []
    children = psutil.Process(task.process.pid).children()
    return [child for child in children if listens(child)]


class Watcher(Watch):
    """Notes which nodes have servers; does something at the tenth step.

    Args:
        toy: Module of the toy engine.
        root: Folder of the run.
        until: Kinds of events; the run ends after the same number of each.
        do: Called with this once.
        standbys: Standbys that have to follow before.
    """

    def __init__(
        self,
        toy: Any,
        root: Path,
        until: Counter[str] | None = None,
        do: Callable[[Any], None] = lambda _: None,
        standbys: int = 0,
    ) -> None:
        super().__init__(root)
        self.toy, self.do, self.standbys = toy, do, standbys
        self.until: Counter[str] = Counter() if until is None else until
        self.seen, self.counts = 0, Counter[str]()
        self.killed: Any = None
        self.first: dict[str, list[psutil.Process]] = {}
        self.last: dict[str, list[psutil.Process]] = {}

    def look(self) -> dict[str, list[psutil.Process]]:
        found: dict[str, list[psutil.Process]] = {}
        for task in self.toy.tasks:
            for server in servers_of(task):
                found.setdefault(task.process.args[-1], []).append(server)
        return found

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        if self.first or self.seen % 10:
            return
        if self.kinds()["standby_ready"] >= self.standbys:
            self.first = self.look()
            self.do(self)

    def is_over(self, kinds: Counter[str]) -> bool:
        self.counts = kinds
        if not self.first or not kinds >= self.until:
            return False
        self.last = self.look()
        return True


def agent_of(toy: Any, node: str) -> Any:
    """The living task on a node."""
    [found] = [
        task for task in toy.tasks
        if task.process.args[-1] == node and task.process.poll() is None
    ]  # fmt: skip
    return found


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


def fit(toy: Any, watcher: Watcher, **fields: Any) -> Any:
    """Trains on three nodes over TLS; nothing may be left."""
    toy.nodes[:] = ["a", "b", "c"][: fields.get("workers", 3)]
    toy.host[0] = own_address()
    given: dict[str, Any] = {
        "batch_size": 16, "epochs": 9999, "strategy": "aeasgd", "workers": 3,
        "servers": 3, "verbose": 0, "threads": 1, **fields,
    }  # fmt: skip
    history = shoal.fit(
        wide(), *samples(), cluster="tasks", run=str(watcher.root),
        callbacks=[watcher], **given,
    )  # fmt: skip
    found = history.run.summary()
    assert found.samples_committed == len(history.history["loss"]) * ROWS
    seen = [*watcher.first.values(), *watcher.last.values()]
    assert psutil.wait_procs([p for some in seen for p in some], timeout=30)[1] == []
    return history


@on_nodes
def test_servers_are_on_nodes_of_their_own(toy: Any, tmp_path: Path) -> None:
    watcher = Watcher(toy, tmp_path / "runs")
    fit(toy, watcher)
    assert [len(some) for some in watcher.first.values()] == [1, 1]
    started = [e for e in watcher.events() if e["kind"] == "process_started"]
    where = {event["name"]: event.get("node") for event in started}
    assert where == {
        "server": None, "server-1": own_address(), "server-2": own_address()
    }  # fmt: skip


@on_nodes
@pytest.mark.parametrize(
    "strategy", [pytest.param("local_sgd", marks=pytest.mark.slow), "all_reduce"]
)
def test_servers_on_nodes_give_the_same_bits(
    toy: Any, tmp_path: Path, strategy: str
) -> None:
    toy.nodes[:] = ["a", "b"]
    found: list[Any] = []
    for count in (1, 3):
        model = wide()
        shoal.fit(
            model, *samples(), cluster="tasks", workers=2, run=False, verbose=0,
            batch_size=16, epochs=2, strategy=strategy, servers=count, threads=1,
            deterministic=True, shuffle=False,
        )  # fmt: skip
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@on_nodes
def test_a_killed_server_is_started_again_on_its_node(toy: Any, tmp_path: Path) -> None:
    def kill(watcher: Watcher) -> None:
        node, [server] = next(iter(watcher.first.items()))
        watcher.killed = node, server.pid
        server.kill()

    watcher = Watcher(toy, tmp_path / "runs", Counter(server_replaced=1), kill)
    fit(toy, watcher)
    assert watcher.first.keys() == watcher.last.keys()
    node, pid = watcher.killed
    assert [p.pid for p in watcher.last[node]] != [pid]
    assert watcher.counts["worker_lost"] == 0


@on_nodes
def test_the_server_of_a_lost_node_starts_on_another_node(
    toy: Any, tmp_path: Path
) -> None:
    def kill(watcher: Watcher) -> None:
        toy.nodes[:] = ["d"]
        agent_of(toy, next(iter(watcher.first))).process.kill()

    watcher = Watcher(toy, tmp_path / "runs", Counter(server_replaced=1), kill)
    fit(toy, watcher)
    # The worker of that node ends too: with the other workers, as all go back to the
    # checkpoint, unless its end is noticed before that of the server.
    assert watcher.counts["worker_lost"] <= 1
    [lost, stays] = watcher.first
    [free] = {"a", "b", "c"} - watcher.first.keys()
    assert watcher.last.keys() == {stays, free}
    assert lost not in watcher.last


@on_nodes
@pytest.mark.slow
def test_a_standby_on_another_node_takes_over(toy: Any, tmp_path: Path) -> None:
    def kill(watcher: Watcher) -> None:
        toy.nodes[:] = ["d"]
        watcher.killed = next(iter(watcher.first))
        agent_of(toy, watcher.killed).process.kill()

    wanted = Counter(server_replaced=1, standby_ready=4, worker_replaced=1)
    watcher = Watcher(toy, tmp_path / "runs", wanted, kill, standbys=3)
    fit(toy, watcher, standby=1)
    assert sum(map(len, watcher.first.values())) == 4
    assert watcher.killed not in watcher.last
    assert watcher.counts["rollback"] == 0


@on_nodes
@pytest.mark.slow
def test_a_server_that_lost_both_nodes_continues_beside_the_driver(
    toy: Any, tmp_path: Path
) -> None:
    """Each time its standby follows before the next node is lost."""

    class Both(Watcher):
        def is_over(self, kinds: Counter[str]) -> bool:
            if self.killed == ["a"] and kinds >= half:
                agent_of(toy, "b").process.kill()
                self.killed.append("b")
            return super().is_over(kinds)

    def kill(watcher: Watcher) -> None:
        toy.nodes[:] = ["d"]
        agent_of(toy, "a").process.kill()
        watcher.killed = ["a"]

    half = Counter(server_replaced=1, standby_ready=3, worker_replaced=1)
    wanted = Counter(server_replaced=2, standby_ready=4, worker_replaced=2)
    watcher = Both(toy, tmp_path / "runs", wanted, kill, standbys=2)
    fit(toy, watcher, workers=2, servers=2, standby=1)
    assert watcher.first.keys() == {"a", "b"}
    assert watcher.killed == ["a", "b"]
    assert watcher.last == {}
    assert watcher.counts["rollback"] == 0
