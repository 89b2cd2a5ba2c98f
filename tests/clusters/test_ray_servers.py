"""Servers that share a vector, on nodes of a Ray cluster, and the loss of a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import shoal
from shoal.engine.transport import heartbeat
from tests.clusters.test_ray import ROWS, Cluster, data
from tests.ray_nodes import RayNode, imported
from tests.support.models import wide
from tests.support.watch import Watch

pytestmark = [
    pytest.mark.process, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)
]  # fmt: skip


MOST_LOOKS = 50
"""Looks for a server that was told to be ready; one should do."""


@pytest.fixture
def cluster() -> Generator[Cluster]:
    """A head without room and two nodes, of which the test takes one away."""
    pytest.importorskip("ray")
    with ExitStack() as stack:
        stack.enter_context(imported())
        yield Cluster(stack, 2)


def title_of(process: psutil.Process) -> str:
    """Returns its title, "" while it is ending and after."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""


def is_server(process: psutil.Process) -> bool:
    """By its title; psutil sees no sockets of other network namespaces."""
    words = title_of(process).split()
    return "server" in words or "standby" in words


class TakeNode(Watch):
    """Takes away the node of the second server once all follow; then waits.

    Args:
        cluster: Cluster of the test.
        root: Folder of the run.
        standby: Standbys of each server.
        is_cut: The node lives on, and its cable is out.
    """

    def __init__(
        self, cluster: Cluster, root: Path, standby: int, *, is_cut: bool
    ) -> None:
        super().__init__(root)
        self.cluster = cluster
        self.standby, self.is_cut = standby, is_cut
        self.seen = self.looks = 0
        self.there = 0
        self.lost: RayNode | None = None
        self.servers: list[psutil.Process] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        if self.lost is not None or self.seen % 20:
            return
        kinds = self.kinds()
        if kinds["worker_started"] < 2 or kinds["standby_ready"] < 2 * self.standby:
            return
        for number, node in enumerate(self.cluster.nodes):
            found = [one for one in node.workers() if is_server(one)]
            if any("server 1" in title_of(one) for one in found):
                self.servers, self.lost = found, node
                nodes = [event.get("node") for event in self.events()
                         if event["kind"] == "worker_started"]  # fmt: skip
                self.there = nodes.count(node.ip)  # Ray may have put both there
                if self.is_cut:
                    self.cluster.hosts.cut(number)
                else:
                    node.close()
                return
        self.looks += 1
        assert self.looks < MOST_LOOKS, self.processes()

    def processes(self) -> list[str]:
        """Returns all processes of the machine in words: one of them is not found."""
        found: list[str] = []
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                found.append(f"{one.pid} of {one.ppid()}: {title_of(one)[:200]}")
        return found

    def is_over(self, kinds: Counter[str]) -> bool:
        is_replaced = kinds["server_replaced"] and kinds["worker_started"] >= 3
        return bool(self.lost is not None and is_replaced)


@pytest.mark.parametrize(
    ("standby", "is_cut"), [(0, False), (1, True)], ids=["killed", "cut"]
)
def test_a_server_is_on_another_node_and_the_run_outlives_it(
    cluster: Cluster,
    tmp_path: Path,
    standby: int,
    is_cut: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Busy ones answer late; one on a node that is cut off is lost by its silence.
    monkeypatch.setattr(heartbeat, "STANDBY_FLOOR_S", 15.0)
    take = TakeNode(cluster, tmp_path, standby, is_cut=is_cut)
    history = shoal.fit(
        wide(), *data(), epochs=9999, workers=2, strategy="aeasgd", verbose=0,
        threads=1, servers=2, standby=standby, cluster=cluster.head.address,
        run=str(tmp_path), callbacks=[take],
    )  # fmt: skip
    assert take.servers
    epochs = len(history.history["loss"])
    assert history.run.summary().samples_committed == epochs * ROWS
    assert take.kinds()["server_replaced"] == 1
    lost = [event for event in take.events() if event["kind"] == "worker_lost"]
    assert len(lost) <= take.there, lost  # those of that node
    for node in cluster.nodes:
        left = [*node.workers(), *(take.servers if node is take.lost else [])]
        assert psutil.wait_procs(left, timeout=120)[1] == []
