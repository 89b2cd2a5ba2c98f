"""A worker's client: what it keeps of each answer, with a slot and without."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from shoal.engine.coordination.ledger import Piece
from shoal.engine.transport.client_connection import Fenced, ServerAddress
from shoal.engine.transport.messages.server_to_worker import Repeat, Reply
from shoal.engine.transport.messages.worker_to_server import Busy
from shoal.engine.transport.shared_memory import Slot
from shoal.engine.worker import request_channel
from shoal.engine.worker.client import ServerClient, Times, Weight
from shoal.engine.worker.request_channel import Answered
from shoal.strategies import (
    AEASGD,
    Downpour,
    Facts,
    ServerStrategy,
    Strategy,
    get,
    registry,
)
from shoal.testing.problems import LeastSquares
from shoal.wire.frames import Link
from tests.support.inline import Cluster, Setup

PROBLEM = LeastSquares.seeded(rows=64)
FIELDS = {"workers": 1, "epochs": 1, "batch_size": 8}


@contextmanager
def joined_client(
    name: str | Strategy = "downpour", *, is_early: bool = False, **server_address: Any
) -> Iterator[tuple[ServerClient, Cluster]]:
    """A client at a server of its own, with data."""
    strategy = get(name)
    with Cluster(Setup.linear(PROBLEM, strategy, **FIELDS)) as cluster:
        fields: dict[str, Any] = {
            "address": cluster.address,
            "secret": cluster.secret,
            "sizes": cluster.sizes,
            "hint": 0,
            "token": "t",
            **server_address,
        }
        client = ServerClient(ServerAddress(**fields), strategy, is_early=is_early)
        cluster.command("proceed", epoch=0)
        try:
            yield client, cluster
        finally:
            client.leave()


def move(client: ServerClient, by: float) -> np.ndarray:
    return client.local + np.float32(by)


def push(client: ServerClient, by: float) -> list[Any]:
    pieces = [client.progress.pieces.popleft()]
    client.push_weights(move(client, by), client.statistics, pieces, 1)
    return pieces


@pytest.mark.parametrize("wants_slot", [True, False])
def test_a_push_changes_the_center_and_is_adopted(wants_slot: bool) -> None:
    with joined_client(wants_slot=wants_slot) as (client, cluster):
        assert (client.buffers.slot is not None) == wants_slot
        assert client.ready()[1] == b""
        push(client, 1.0)
        np.testing.assert_array_equal(client.local, np.ones(PROBLEM.size))
        push(client, 2.0)
        np.testing.assert_array_equal(
            cluster.server.replica.center.vector, client.local
        )
        assert client.local.tolist() == [3.0] * PROBLEM.size
        assert client.progress.version == 2


class WithAnchor(Downpour):  # pyright: ignore[reportGeneralTypeIssues]
    """A strategy that keeps the anchor in memory of its own."""

    needs_anchor = True


@pytest.mark.parametrize(
    "strategy", [Downpour(period=1), WithAnchor(period=1), AEASGD(period=1)]
)
def test_reused_memory_changes_no_number(strategy: ServerStrategy) -> None:
    """The same for a window without a step, which ends where it began."""
    apart, again = np.zeros(PROBLEM.size, "f4"), None
    center = apart.copy()
    with joined_client(strategy) as (client, _):
        client.ready()
        for by in (1.0, 0.0, 3.0, 0.0, 0.0, 5.0):
            again = client.local if by == 0.0 else move(client, by)
            sent = apart + np.float32(by)
            if not client.progress.pieces:
                client.need()
            pieces = [client.progress.pieces.popleft()]
            client.push_weights(again, client.statistics, pieces, 1)
            message = strategy.push(sent, apart, 1)
            reply = strategy.apply(center, {}, message, Facts())
            apart = strategy.pull(sent, sent, apart, reply)[0].copy()
            np.testing.assert_array_equal(client.local, apart)


EARLY = [name for name in registry.names() if get(name).exchanges == "weights"]
EARLY = [name for name in EARLY if not get(name).is_independent]


@pytest.mark.parametrize("name", EARLY)
def test_an_early_push_keeps_the_steps_that_were_taken_meanwhile(name: str) -> None:
    """The result is that of `pull`, exchange after exchange."""
    strategy = get(name, period=1)
    start = np.zeros(PROBLEM.size, "f4")
    center, state = start.copy(), strategy.init(PROBLEM.size)
    local, anchor = start, start.copy()
    with joined_client(strategy, is_early=True) as (client, _):
        client.ready()
        for by, later in ((1.0, 0.5), (2.0, -1.0), (3.0, None), (0.0, 0.0), (4.0, 3.0)):
            if not client.progress.pieces:
                client.need()
            pieces = [client.progress.pieces.popleft()]
            pushed = local + np.float32(by)
            now = pushed if later is None else pushed + np.float32(later)
            message = strategy.push(pushed, anchor, 1).copy()
            if later is None:
                client.push_weights(pushed.copy(), client.statistics, pieces, 1)
            else:
                client.push_early(pushed.copy(), client.statistics, pieces, 1)
                assert client.has_early
                assert client.catch_up(now, client.statistics)
                assert not client.has_early
            reply = answered(strategy, center, state, message)
            found = strategy.pull(now, pushed, anchor, reply)
            local, anchor = (vector.copy() for vector in found)
            np.testing.assert_allclose(client.local, local, rtol=1e-6)


def answered(strategy: Any, center: Any, state: Any, message: Any) -> Any:
    """Answers as a server of one worker does."""
    facts = Facts(samples=8.0)
    if isinstance(strategy, ServerStrategy):
        return strategy.apply(center, state, message, facts).copy()
    return strategy.merge(center, state, {0: message}, {0: facts})[0].copy()


@pytest.mark.parametrize("name", ["local_sgd", "aeasgd"])
def test_steps_on_samples_leased_to_others_are_void(name: str) -> None:
    with joined_client(name, is_early=True) as (client, _):
        client.ready()
        pushed = move(client, 1.0)
        client.push_early(
            pushed, client.statistics, [client.progress.pieces.popleft()], 1
        )
        answer, body = client._arrive()
        assert isinstance(answer, Reply)
        mine = (Piece(0, 8, 16, 0),)
        body_kind = "none" if name == "aeasgd" else "center"
        repeat = Repeat(body=body_kind, pieces=mine, state=answer.state)
        client.buffers.reply[:] = 7.0
        client._early = Future()
        client._early.set_result(Answered(repeat, body))
        assert not client.catch_up(pushed + 1, client.statistics)
        assert tuple(client.progress.pieces) == mine
        expected = 1.0 if name == "aeasgd" else 7.0
        assert client.local.tolist() == [expected] * PROBLEM.size


def test_one_request_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is sent while an answer is on its way waits for that answer."""
    with joined_client(is_early=True) as (client, _):
        client.ready()
        pieces = [client.progress.pieces.popleft()]
        client.push_early(move(client, 1.0), client.statistics, pieces, 1)
        with pytest.raises(RuntimeError, match="before the early answer"):
            client.need()
        client.tell(Busy())
        assert client._early is not None
        assert client._early.done()
        assert client.catch_up(move(client, 1.0), client.statistics)
        with pytest.raises(RuntimeError, match="nothing was asked early"):
            client.catch_up(move(client, 1.0), client.statistics)


def test_a_busy_worker_reports_it_and_may_then_push(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_channel, "BEAT_S", 0.001)
    with joined_client() as (client, cluster):
        client.ready()
        said, tell = threading.Event(), client.tell

        def heard(message: Any) -> None:
            tell(message)
            said.set()

        monkeypatch.setattr(client, "tell", heard)
        with client.busy():
            assert said.wait(20)
        assert cluster.server.replica.sessions[0].liveness.longest_s == 0.0
        push(client, 1.0)
        assert client.progress.version == 1


def test_a_slot_has_no_name_once_it_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []
    attach = Slot.attach

    def spy(path: str, size: int, mark: str) -> Slot | None:
        paths.append(path)
        return attach(path, size, mark)

    monkeypatch.setattr(Slot, "attach", spy)
    with joined_client() as (client, _):
        client.ready()
        assert attach(paths[0], client.sizes.slot_bytes, "") is None


@pytest.mark.parametrize("why", ["another host", "no room"])
def test_without_a_slot_vectors_go_through_the_socket(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "no room":
        monkeypatch.setattr(Slot, "make", lambda *_: None)
    else:
        attach = Slot.attach
        monkeypatch.setattr(Slot, "attach", lambda p, s, m: attach(p + "x", s, m))
    with joined_client() as (client, cluster):
        assert client.buffers.slot is None
        client.ready()
        push(client, 1.0)
        np.testing.assert_array_equal(
            cluster.server.replica.center.vector, client.local
        )


@pytest.mark.parametrize(("name", "adopted"), [("downpour", 1.0), ("aeasgd", 5.0)])
def test_a_repeat_is_not_applied(name: str, adopted: float) -> None:
    with joined_client(name) as (client, cluster):
        client.ready()
        pieces = push(client, 1.0)
        center = cluster.server.replica.center.vector.copy()
        held = list(client.progress.pieces)
        client._sequence -= 1
        local = np.full(PROBLEM.size, 5.0, np.float32)
        client.push_weights(local, client.statistics, pieces, 1)
        np.testing.assert_array_equal(cluster.server.replica.center.vector, center)
        assert client.local.tolist() == [adopted] * PROBLEM.size
        assert list(client.progress.pieces) == held


def test_a_worker_waits_for_data() -> None:
    with joined_client() as (client, cluster):
        client.ready()
        while client.progress.pieces:
            push(client, 0.5)
        waiting = threading.Thread(target=client.need)
        waiting.start()
        cluster.command("finish")
        waiting.join(20)
        assert client.progress.is_done


def until_asked(client: ServerClient) -> None:
    """Works, or waits, until the server asks for a snapshot."""
    while not client.progress.wants_snapshot:
        if client.progress.pieces:
            pieces = [client.progress.pieces.popleft()]
            gradient = np.ones(PROBLEM.size, "f4")
            client.push_gradient(gradient, client.statistics, pieces, Weight(8.0, 8.0))
        else:
            client.need()


@pytest.mark.parametrize("wants_slot", [True, False])
@pytest.mark.parametrize("blob", [b"", b"optimizer"])
def test_a_snapshot_reaches_the_center_and_joining_workers(
    wants_slot: bool, blob: bytes
) -> None:
    # With a blob it did not fit where messages are received, and without a slot
    # the last gradient was taken for the weights.
    with joined_client("all_reduce", wants_slot=wants_slot) as (client, cluster):
        cluster.command("state")
        client.ready()
        until_asked(client)
        weights = np.arange(PROBLEM.size, dtype=np.float32)
        client.publish(weights, np.array([7.0], "f4"), blob)
        np.testing.assert_array_equal(cluster.server.replica.center.vector, weights)
        assert cluster.server.replica.center.statistics.tolist() == [7.0]
        joiner = ServerClient(
            ServerAddress(
                address=cluster.address, secret=cluster.secret, sizes=cluster.sizes,
                hint=1, token="", wants_slot=wants_slot,
            ),
            client.strategy,
        )  # fmt: skip
        found: list[bytes] = []
        joining = threading.Thread(target=lambda: found.append(joiner.ready()[1]))
        joining.start()
        until_asked(client)
        client.publish(weights + 1, np.array([8.0], "f4"), blob)
        joining.join(20)
        assert found == [blob]
        np.testing.assert_array_equal(joiner.local, weights + 1)
        assert joiner.statistics.tolist() == [8.0]
        joiner.leave()


def test_a_refusal_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Link] = []
    close = Link.close
    monkeypatch.setattr(Link, "close", lambda link: (closed.append(link), close(link)))
    with joined_client() as (client, cluster):
        server_address = ServerAddress(
            address=cluster.address, secret=cluster.secret, hint=0, token="",
            sizes=type(client.sizes)(vector=1, statistics=0, metrics=0, digest="x"),
        )  # fmt: skip
        with pytest.raises(Fenced, match="another model layout"):
            ServerClient(server_address, client.strategy)
        assert len(closed) == 1


def test_times_are_reset_when_they_are_taken() -> None:
    times = Times(compute_s=1.5)
    assert times.take()[0] == 1.5
    assert not any(times.take())
