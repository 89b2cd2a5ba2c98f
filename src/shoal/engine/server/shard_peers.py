"""The other shards, as number 0 sees them.

A worker sends each shard its part of a message. Number 0 orders a message when all
parts have arrived: what is ordered can be carried out everywhere, also when the worker
is lost by then (decision 21).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, final

from shoal.engine.server.event_log import LogEntry
from shoal.engine.server.replication import Replication
from shoal.engine.server.session import WorkerSession
from shoal.engine.transport.listener import Connections, Peer
from shoal.engine.transport.messages.events import WorkerSays
from shoal.engine.transport.messages.shard import Ordered
from shoal.wire.frames import BadFrame

JOINED_AGAIN = "it joined again"
SILENT_S = 1.5
"""After which silence a shard may be lost: it says each `BEAT_S` that it lives."""


class SplitMessage(NamedTuple):
    """A message whose vectors are split over the shards.

    Args:
        event: The event that it becomes.
        session: Session of the sender.
        blob: Bytes that follow the vectors.
    """

    event: WorkerSays
    session: WorkerSession
    blob: bytes | memoryview


@final
class SplitMessages:
    """Messages of which some shards lack their parts.

    Args:
        shards: Numbers of the other shards.
    """

    def __init__(self, shards: tuple[int, ...] = ()) -> None:
        # For each shard: rank and incarnation -> number of the last message.
        self._arrived: dict[int, dict[tuple[int, int], int]] = {n: {} for n in shards}
        self._waiting: dict[int, SplitMessage] = {}

    def add(self, message: SplitMessage) -> bool:
        """Adds a message whose part for number 0 has arrived.

        Returns:
            Whether it is complete; if not, it is kept.
        """
        if not self._arrived or self._is_complete(message.event):
            return True
        copied = message._replace(blob=bytes(message.blob))
        self._waiting[message.session.rank] = copied
        return False

    def arrived(
        self, shard: int, rank: int, incarnation: int, question: int
    ) -> SplitMessage | None:
        """Records that a shard has its part of a message.

        Args:
            shard: Number of the shard.
            rank: Rank of the sender.
            incarnation: Incarnation of the sender.
            question: Number of the message.

        Returns:
            The message that is complete by this, None for none.
        """
        self._arrived[shard][rank, incarnation] = question
        message = self._waiting.get(rank)
        if message is None or message.event.incarnation != incarnation:
            return None
        if not self._is_complete(message.event):
            return None
        del self._waiting[rank]
        return message

    def _is_complete(self, event: WorkerSays) -> bool:
        who, question = (event.rank, event.incarnation), event.question
        return all(known.get(who, 0) >= question for known in self._arrived.values())

    def forget(self, rank: int, incarnation: int) -> None:
        """Forgets a lost worker."""
        self._waiting.pop(rank, None)
        for known in self._arrived.values():
            known.pop((rank, incarnation), None)


@final
class ShardPeers:
    """Connections to the other shards, which are sent every entry of the log.

    Args:
        numbers: Numbers of the other shards.
        connections: Connections of this server.
        replication: Holds entries back until the standby has them.
    """

    def __init__(
        self,
        numbers: tuple[int, ...],
        connections: Connections,
        replication: Replication,
    ) -> None:
        self._numbers = numbers
        self._connections, self._replication = connections, replication
        self._peers: dict[int, Peer] = {}
        self._heard: dict[int, float] = {}

    def are_heard(self, now: float) -> bool:
        """Whether every shard is connected, and has said something of late."""
        return all(
            number in self._peers and now - self._heard[number] <= SILENT_S
            for number in self._numbers
        )

    def hear(self, number: int, now: float) -> None:
        """Records that a shard has said something."""
        self._heard[number] = now

    def add(
        self, peer: Peer, number: int, lacking: Iterable[LogEntry], now: float
    ) -> None:
        """Accepts a shard, and sends it the entries that it lacks.

        Args:
            peer: Its connection.
            number: Number of the shard.
            lacking: The entries.
            now: Seconds of a monotonic clock.

        Raises:
            BadFrame: The run has no such shard.
        """
        if number not in self._numbers:
            raise BadFrame(f"shard {number} of {len(self._numbers) + 1}")
        before = self._peers.pop(number, None)
        if before is not None:
            self._connections.drop(before, JOINED_AGAIN)
        peer.role, peer.rank = "shard", number
        self._peers[number] = peer
        self.hear(number, now)
        for entry in lacking:
            self._send_to(peer, entry)

    def send(self, entry: LogEntry) -> None:
        """Sends an entry to all."""
        for peer in list(self._peers.values()):
            self._send_to(peer, entry)

    def _send_to(self, peer: Peer, entry: LogEntry) -> None:
        self._replication.send(peer, Ordered(**entry._asdict()))

    def gone(self, peer: Peer) -> None:
        """Forgets a connection that is closed."""
        if self._peers.get(peer.rank) is peer:
            del self._peers[peer.rank]
