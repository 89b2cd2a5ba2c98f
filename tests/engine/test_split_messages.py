"""Messages split over several servers, and these servers, as number 0 sees them."""

from __future__ import annotations

from typing import Any, cast

from shoal.engine.server.session import WorkerSession
from shoal.engine.server.shard_peers import (
    SILENT_S,
    ShardPeers,
    SplitMessage,
    SplitMessages,
)
from shoal.engine.transport.messages.events import WorkerSays
from shoal.engine.transport.messages.worker_to_server import Need


class Shard:
    """A peer of which nothing else is asked."""

    role, rank = "", 0


def test_a_silent_shard_is_not_heard_though_it_is_connected() -> None:
    nothing: Any = None
    peers = [Shard(), Shard()]
    shards = ShardPeers((1, 2), nothing, nothing)
    assert not shards.are_heard(0.0)
    for number, peer in enumerate(peers, start=1):
        shards.add(cast(Any, peer), number, (), now=0.0)
    assert shards.are_heard(SILENT_S)
    shards.hear(1, SILENT_S)
    assert not shards.are_heard(SILENT_S + 1)
    shards.hear(2, SILENT_S + 1)
    assert shards.are_heard(SILENT_S + 1)
    shards.gone(cast(Any, peers[1]))
    assert not shards.are_heard(SILENT_S + 1)
    assert ShardPeers((), nothing, nothing).are_heard(9.0)  # one server has all


def message(
    question: int, *, incarnation: int = 1, blob: bytes | memoryview = b""
) -> SplitMessage:
    nothing: Any = None
    session = WorkerSession(
        rank=0, incarnation=incarnation, token="", buffers=nothing, question=question
    )
    event = WorkerSays(
        rank=0,
        incarnation=incarnation,
        question=question,
        message=Need(),
        has_blob=len(blob) > 0,
    )
    return SplitMessage(event, session, blob)


def test_a_message_is_complete_at_once_without_other_shards() -> None:
    assert SplitMessages().add(message(1))


def test_a_message_waits_until_all_parts_have_arrived() -> None:
    messages = SplitMessages((1, 2))
    assert not messages.add(message(7))
    assert messages.arrived(1, 0, 1, 7) is None
    complete = messages.arrived(2, 0, 1, 7)
    assert complete is not None
    assert complete.event.question == 7
    assert messages.arrived(2, 0, 1, 7) is None


def test_parts_that_arrive_first_count() -> None:
    messages = SplitMessages((1,))
    messages.arrived(1, 0, 1, 7)
    assert messages.add(message(7))
    assert not messages.add(message(8))


def test_parts_of_an_older_process_complete_nothing() -> None:
    messages = SplitMessages((1,))
    assert not messages.add(message(7, incarnation=2))
    assert messages.arrived(1, 0, 1, 7) is None
    assert messages.arrived(1, 0, 2, 7) is not None


def test_the_message_of_a_lost_worker_is_forgotten() -> None:
    messages = SplitMessages((1,))
    messages.add(message(7))
    messages.forget(0, 1)
    assert messages.arrived(1, 0, 1, 7) is None


def test_bytes_that_follow_a_waiting_message_are_copied() -> None:
    memory, messages = bytearray(b"state"), SplitMessages((1,))
    messages.add(message(7, blob=memoryview(memory)))
    memory[:] = b"other"
    complete = messages.arrived(1, 0, 1, 7)
    assert complete is not None
    assert complete.blob == b"state"
