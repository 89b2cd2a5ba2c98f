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
        member = ServerClient(ServerAddress(**fields), strategy, is_early=is_early)
        cluster.command("proceed", epoch=0)
        try:
            yield member, cluster
        finally:
            member.leave()


def move(member: ServerClient, by: float) -> np.ndarray:
    return member.local + np.float32(by)


def push(member: ServerClient, by: float) -> list[Any]:
    pieces = [member.progress.pieces.popleft()]
    member.push_weights(move(member, by), member.statistics, pieces, 1)
    return pieces


@pytest.mark.parametrize("wants_slot", [True, False])
def test_a_push_changes_the_center_and_is_adopted(wants_slot: bool) -> None:
    with joined_client(wants_slot=wants_slot) as (member, cluster):
        assert (member.buffers.slot is not None) == wants_slot
        assert member.ready()[1] == b""
        push(member, 1.0)
        np.testing.assert_array_equal(member.local, np.ones(PROBLEM.size))
        push(member, 2.0)
        np.testing.assert_array_equal(
            cluster.server.replica.center.vector, member.local
        )
        assert member.local.tolist() == [3.0] * PROBLEM.size
        assert member.progress.version == 2


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
    with joined_client(strategy) as (member, _):
        member.ready()
        for by in (1.0, 0.0, 3.0, 0.0, 0.0, 5.0):
            again = member.local if by == 0.0 else move(member, by)
            sent = apart + np.float32(by)
            if not member.progress.pieces:
                member.need()
            pieces = [member.progress.pieces.popleft()]
            member.push_weights(again, member.statistics, pieces, 1)
            message = strategy.push(sent, apart, 1)
            reply = strategy.apply(center, {}, message, Facts())
            apart = strategy.pull(sent, sent, apart, reply)[0].copy()
            np.testing.assert_array_equal(member.local, apart)


EARLY = [name for name in registry.names() if get(name).exchanges == "weights"]
EARLY = [name for name in EARLY if not get(name).is_independent]


@pytest.mark.parametrize("name", EARLY)
def test_an_early_push_keeps_the_steps_that_were_taken_meanwhile(name: str) -> None:
    """The result is that of `pull`, exchange after exchange."""
    strategy = get(name, period=1)
    start = np.zeros(PROBLEM.size, "f4")
    center, state = start.copy(), strategy.init(PROBLEM.size)
    local, anchor = start, start.copy()
    with joined_client(strategy, is_early=True) as (member, _):
        member.ready()
        for by, later in ((1.0, 0.5), (2.0, -1.0), (3.0, None), (0.0, 0.0), (4.0, 3.0)):
            if not member.progress.pieces:
                member.need()
            pieces = [member.progress.pieces.popleft()]
            pushed = local + np.float32(by)
            now = pushed if later is None else pushed + np.float32(later)
            message = strategy.push(pushed, anchor, 1).copy()
            if later is None:
                member.push_weights(pushed.copy(), member.statistics, pieces, 1)
            else:
                member.push_early(pushed.copy(), member.statistics, pieces, 1)
                assert member.has_early
                assert member.catch_up(now, member.statistics)
                assert not member.has_early
            reply = answered(strategy, center, state, message)
            found = strategy.pull(now, pushed, anchor, reply)
            local, anchor = (vector.copy() for vector in found)
            np.testing.assert_allclose(member.local, local, rtol=1e-6)


def answered(strategy: Any, center: Any, state: Any, message: Any) -> Any:
    """Answers as a server of one worker does."""
    facts = Facts(samples=8.0)
    if isinstance(strategy, ServerStrategy):
        return strategy.apply(center, state, message, facts).copy()
    return strategy.merge(center, state, {0: message}, {0: facts})[0].copy()


@pytest.mark.parametrize("name", ["local_sgd", "aeasgd"])
def test_steps_on_samples_leased_to_others_are_void(name: str) -> None:
    with joined_client(name, is_early=True) as (member, _):
        member.ready()
        pushed = move(member, 1.0)
        member.push_early(
            pushed, member.statistics, [member.progress.pieces.popleft()], 1
        )
        answer, body = member._arrive()
        assert isinstance(answer, Reply)
        mine = (Piece(0, 8, 16, 0),)
        body_kind = "none" if name == "aeasgd" else "center"
        repeat = Repeat(body=body_kind, pieces=mine, state=answer.state)
        member.buffers.reply[:] = 7.0
        member._early = Future()
        member._early.set_result(Answered(repeat, body))
        assert not member.catch_up(pushed + 1, member.statistics)
        assert tuple(member.progress.pieces) == mine
        expected = 1.0 if name == "aeasgd" else 7.0
        assert member.local.tolist() == [expected] * PROBLEM.size


def test_one_request_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is sent while an answer is on its way waits for that answer."""
    with joined_client(is_early=True) as (member, _):
        member.ready()
        pieces = [member.progress.pieces.popleft()]
        member.push_early(move(member, 1.0), member.statistics, pieces, 1)
        with pytest.raises(RuntimeError, match="before the early answer"):
            member.need()
        member.tell(Busy())
        assert member._early is not None
        assert member._early.done()
        assert member.catch_up(move(member, 1.0), member.statistics)
        with pytest.raises(RuntimeError, match="nothing was asked early"):
            member.catch_up(move(member, 1.0), member.statistics)


def test_a_busy_worker_reports_it_and_may_then_push(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_channel, "BEAT_S", 0.001)
    with joined_client() as (member, cluster):
        member.ready()
        said, tell = threading.Event(), member.tell

        def heard(message: Any) -> None:
            tell(message)
            said.set()

        monkeypatch.setattr(member, "tell", heard)
        with member.busy():
            assert said.wait(20)
        assert cluster.server.replica.sessions[0].liveness.longest_s == 0.0
        push(member, 1.0)
        assert member.progress.version == 1


def test_a_slot_has_no_name_once_it_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []
    attach = Slot.attach

    def spy(path: str, size: int, mark: str) -> Slot | None:
        paths.append(path)
        return attach(path, size, mark)

    monkeypatch.setattr(Slot, "attach", spy)
    with joined_client() as (member, _):
        member.ready()
        assert attach(paths[0], member.sizes.slot_bytes, "") is None


@pytest.mark.parametrize("why", ["another host", "no room"])
def test_without_a_slot_vectors_go_through_the_socket(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "no room":
        monkeypatch.setattr(Slot, "make", lambda *_: None)
    else:
        attach = Slot.attach
        monkeypatch.setattr(Slot, "attach", lambda p, s, m: attach(p + "x", s, m))
    with joined_client() as (member, cluster):
        assert member.buffers.slot is None
        member.ready()
        push(member, 1.0)
        np.testing.assert_array_equal(
            cluster.server.replica.center.vector, member.local
        )


@pytest.mark.parametrize(("name", "adopted"), [("downpour", 1.0), ("aeasgd", 5.0)])
def test_a_repeat_is_not_applied(name: str, adopted: float) -> None:
    with joined_client(name) as (member, cluster):
        member.ready()
        pieces = push(member, 1.0)
        center = cluster.server.replica.center.vector.copy()
        held = list(member.progress.pieces)
        member._sequence -= 1
        local = np.full(PROBLEM.size, 5.0, np.float32)
        member.push_weights(local, member.statistics, pieces, 1)
        np.testing.assert_array_equal(cluster.server.replica.center.vector, center)
        assert member.local.tolist() == [adopted] * PROBLEM.size
        assert list(member.progress.pieces) == held


def test_a_worker_waits_for_data() -> None:
    with joined_client() as (member, cluster):
        member.ready()
        while member.progress.pieces:
            push(member, 0.5)
        waiting = threading.Thread(target=member.need)
        waiting.start()
        cluster.command("finish")
        waiting.join(20)
        assert member.progress.is_done


def until_asked(member: ServerClient) -> None:
    """Works, or waits, until the server asks for a snapshot."""
    while not member.progress.wants_snapshot:
        if member.progress.pieces:
            pieces = [member.progress.pieces.popleft()]
            gradient = np.ones(PROBLEM.size, "f4")
            member.push_gradient(gradient, member.statistics, pieces, Weight(8.0, 8.0))
        else:
            member.need()


@pytest.mark.parametrize("wants_slot", [True, False])
@pytest.mark.parametrize("blob", [b"", b"optimizer"])
def test_a_snapshot_reaches_the_center_and_joining_workers(
    wants_slot: bool, blob: bytes
) -> None:
    # With a blob it did not fit where messages are received, and without a slot
    # the last gradient was taken for the weights.
    with joined_client("all_reduce", wants_slot=wants_slot) as (member, cluster):
        cluster.command("state")
        member.ready()
        until_asked(member)
        weights = np.arange(PROBLEM.size, dtype=np.float32)
        member.publish(weights, np.array([7.0], "f4"), blob)
        np.testing.assert_array_equal(cluster.server.replica.center.vector, weights)
        assert cluster.server.replica.center.statistics.tolist() == [7.0]
        joiner = ServerClient(
            ServerAddress(
                address=cluster.address, secret=cluster.secret, sizes=cluster.sizes,
                hint=1, token="", wants_slot=wants_slot,
            ),
            member.strategy,
        )  # fmt: skip
        found: list[bytes] = []
        joining = threading.Thread(target=lambda: found.append(joiner.ready()[1]))
        joining.start()
        until_asked(member)
        member.publish(weights + 1, np.array([8.0], "f4"), blob)
        joining.join(20)
        assert found == [blob]
        np.testing.assert_array_equal(joiner.local, weights + 1)
        assert joiner.statistics.tolist() == [8.0]
        joiner.leave()


def test_a_refusal_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Link] = []
    close = Link.close
    monkeypatch.setattr(Link, "close", lambda link: (closed.append(link), close(link)))
    with joined_client() as (member, cluster):
        server_address = ServerAddress(
            address=cluster.address, secret=cluster.secret, hint=0, token="",
            sizes=type(member.sizes)(vector=1, statistics=0, metrics=0, digest="x"),
        )  # fmt: skip
        with pytest.raises(Fenced, match="another model layout"):
            ServerClient(server_address, member.strategy)
        assert len(closed) == 1


def test_times_are_reset_when_they_are_taken() -> None:
    times = Times(compute_s=1.5)
    assert times.take()[0] == 1.5
    assert not any(times.take())
