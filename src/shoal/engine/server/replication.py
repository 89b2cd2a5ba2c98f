"""The standby of a server: sending events to it, giving it up, accepting it.

Every event goes to the standby before the reply to it leaves. So the standby knows all
that a worker or the controller was told.

A server that loses its standby cannot tell whether the controller has promoted it. So
it replies to nobody until the controller lets it continue alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, final

from shoal.engine.coordination.timeouts import PAUSE_S, TIMES, StragglerTimeout
from shoal.engine.server.replica import Replica
from shoal.engine.server.reports import ReportChannel
from shoal.engine.server.session import WorkerSession
from shoal.engine.server.strategy_calls import StrategyFailed
from shoal.engine.transport.heartbeat import SLOWEST
from shoal.engine.transport.listener import Connections, Peer
from shoal.engine.transport.messages.base import (
    Message,
    Report,
    read,
)
from shoal.engine.transport.messages.controller_to_server import Lead
from shoal.engine.transport.messages.events import Event, Staged
from shoal.engine.transport.messages.server_to_controller import (
    StandbyCalled,
    StandbyLeft,
    StandbyReady,
)
from shoal.engine.transport.messages.standby import (
    FROM_STANDBY,
    CannotFollow,
    ControllerHeard,
    Frozen,
    Logged,
    Mapped,
    ShardsTook,
    StandbyCalls,
    Took,
    WorkerSlot,
)
from shoal.wire.frames import BadFrame, Head

FLOOR_S = 2.0  # a standby only listens; another one is soon started


class Held(NamedTuple):
    """A frame that waits until the standby has the events before it.

    Args:
        number: Number of the event that the standby must have.
        since: Time since which it is held, in seconds of a monotonic clock.
        peer: Receiver of the frame.
        message: The message.
        body: Bytes that follow it.
    """

    number: int
    since: float
    peer: Peer
    message: Message
    body: tuple[memoryview | bytes, ...]


@final
class Replication:
    """Sends events to the standby, and holds replies until it has them.

    Args:
        connections: Connections of the server.
        clock: Clock of the server.
    """

    def __init__(self, connections: Connections, clock: Callable[[], float]) -> None:
        self.peer: Peer | None = None
        self._clock = clock
        self._connections = connections
        self._unsure_of = 0  # generation of a standby that was lost, 0 for none
        self._given_up = 0  # the last generation that the controller knows is gone
        self._sent = self._known = 0
        self._asked: float | None = None
        self._longest_s = 0.0
        self._sizes: deque[int] = deque()
        self._mapped: set[tuple[int, int]] = set()
        self._held: deque[Held] = deque()
        self._looked = 0.0

    # --------------------------------------------------------------- standby

    @property
    def can_begin(self) -> bool:
        """Whether a standby can be accepted now."""
        return self.peer is None and not self._unsure_of

    def is_given_up(self, generation: int) -> bool:
        """Whether the controller knows that a standby is gone."""
        return generation <= self._given_up

    def begin(self, peer: Peer, frozen: bytes) -> None:
        """Begins to send events to a standby.

        Args:
            peer: Connection of the standby.
            frozen: The state until now.
        """
        self.peer, self._sent, self._known = peer, 0, 0
        self._longest_s, self._asked = 0.0, None
        self._sizes.clear()
        self._mapped.clear()
        # It counts as the first event: with its acknowledgement the standby is ready.
        self._tell(Frozen(), frozen)

    def log(
        self,
        event: Event | Staged,
        at: float,
        session: WorkerSession | None,
        blob: bytes | memoryview,
    ) -> None:
        """Sends an event that is about to be handled.

        Args:
            event: The event.
            at: Seconds of the run.
            session: Session of the sender of a message with vectors, else None.
            blob: Bytes that follow the event.
        """
        if self.peer is not None:
            vectors = b"" if session is None else session.buffers.up
            is_mapped = session is not None and self._is_mapped(session)
            logged = Logged(
                event=event, at=at, vectors=len(vectors), is_mapped=is_mapped
            )
            self._tell(logged, b"" if is_mapped else vectors, blob)

    # A message stays in its slot until it is answered, and the answer waits for the
    # standby's acknowledgement.

    def _is_mapped(self, session: WorkerSession) -> bool:
        """Whether the standby has mapped the memory of a worker's vectors."""
        has_slot = session.buffers.slot is not None
        return has_slot and (session.rank, session.incarnation) in self._mapped

    def offer_slot(self, session: WorkerSession) -> None:
        """Offers a worker's new slot to the standby, which may map it as well."""
        slot = session.buffers.slot
        offer = None if slot is None else slot.offer
        if self.peer is not None and offer is not None:
            found = WorkerSlot(
                rank=session.rank, incarnation=session.incarnation, offer=offer
            )
            self._connections.send(self.peer, found)

    def mapped(self, rank: int, incarnation: int) -> None:
        """Records that the standby has mapped a worker's slot."""
        self._mapped.add((rank, incarnation))

    def note_shards(self, number: int) -> None:
        """Tells the standby that all other shards have entries up to this number."""
        if self.peer is not None:
            self._connections.send(self.peer, ShardsTook(number=number))

    def note(self, heard: int) -> None:
        """Tells the standby that the controller has reports up to this number."""
        if self.peer is not None:
            self._connections.send(self.peer, ControllerHeard(number=heard))

    def _tell(self, message: Frozen | Logged, *body: memoryview | bytes) -> None:
        peer = self.peer
        if peer is None:
            return
        self._sent += 1
        self._sizes.append(sum(map(len, body)))
        if self._asked is None:
            self._asked = self._clock()
        self._connections.send(peer, message, *body)
        peer.channel.keep_output()  # its vectors may change before they are sent

    def acknowledge(self, number: int) -> None:
        """Records that the standby has events up to this number.

        Raises:
            ValueError: The number is impossible.
        """
        if not self._known <= number <= self._sent:
            raise ValueError(f"event {number} of {self._sent}")
        now = self._clock()
        if self._asked is not None:
            self._longest_s = max(self._longest_s, now - self._asked)
        for _ in range(number - self._known):
            self._sizes.popleft()
        self._known = number
        # The next event waited behind this one: its time begins now.
        self._asked = now if number < self._sent else None
        self._release()

    def overdue(self) -> str:
        """Why the standby counts as hung, empty if it does not."""
        # A slow link is no hung standby: the bytes that are on their way, and the
        # longest acknowledgement so far, give it more time.
        limit_s = FLOOR_S + sum(self._sizes) / SLOWEST + TIMES * self._longest_s
        if self._asked is None or self._clock() - self._asked <= limit_s:
            return ""
        return f"hung: took no event for more than {limit_s:.1f} s"

    @property
    def waiting(self) -> set[Peer]:
        """Peers whose reply is held until the standby has acknowledged."""
        return {held.peer for held in self._held}

    def stalled_s(self) -> float:
        """Seconds since the last look in which answers waited for the standby.

        Short waits do not count: every answer waits for its round trip.
        """
        now = self._clock()
        since = self._held[0].since if self._held else now
        if now - since <= PAUSE_S:
            return 0.0
        before, self._looked = max(since, self._looked), now
        return now - before

    def forgive(self, pause_s: float) -> None:
        """Shifts the clock by a time in which the server itself did not run."""
        if self._asked is not None:
            self._asked += pause_s

    def lost(self) -> None:
        """The standby is gone, or was promoted after the network was cut in two."""
        if self.peer is not None:
            self._unsure_of = self.peer.incarnation
        self.peer = self._asked = None

    def go_alone(self, generation: int) -> None:
        """Records that the controller knows that standbys up to a generation are gone.

        It says nothing about a later one: the connections of controller and standby are
        two, and messages on one may overtake those on the other.
        """
        # Before this message, the controller may have promoted the standby: two servers
        # would reply to workers, each with its own history. A server that lost its
        # standby therefore replies to nobody (decision 14).
        self._given_up = generation
        if 0 < self._unsure_of <= generation:
            self._let_go()

    def end(self) -> None:
        """Sends all held frames: the run is over, and no standby will take over."""
        self.peer = self._asked = None
        self._let_go()

    def _let_go(self) -> None:
        self._unsure_of, self._known = 0, self._sent
        self._release()

    # --------------------------------------------------------------- sending

    def send(self, peer: Peer, message: Message, *body: memoryview | bytes) -> None:
        """Sends a frame once the standby has the events before it."""
        # A frame that need not wait stays behind those that wait: a worker hears
        # answers and the controller hears reports in the order of the events.
        is_known = self._known == self._sent and not self._unsure_of
        if is_known and not self._held:
            self._connections.send(peer, message, *body)
        else:
            held = Held(self._sent, self._clock(), peer, message, body)
            self._held.append(held)

    def _release(self) -> None:
        while self._held and self._held[0].number <= self._known:
            held = self._held.popleft()
            if not held.peer.is_gone:
                self._connections.send(held.peer, held.message, *held.body)


ENDED = "its process ended"


@final
class StandbyPeer:
    """The standby that follows a server.

    Args:
        connections: Connections of the server.
        replication: Replication of the server.
        mention: Sends the controller a report that is not part of the run's state.
    """

    def __init__(
        self,
        connections: Connections,
        replication: Replication,
        mention: Callable[[Report], None],
    ) -> None:
        self._connections, self._replication, self._mention = (
            connections,
            replication,
            mention,
        )
        self._caller: Peer | None = None

    @property
    def has_caller(self) -> bool:
        """Whether a standby waits to be accepted."""
        return self._caller is not None

    def called(self, peer: Peer, message: StandbyCalls) -> None:
        """Remembers a standby that has connected, to accept it when possible.

        Raises:
            BadFrame: A later one is there: the controller has given this one up.
        """
        peer.role, peer.incarnation = "standby", message.generation
        if self._caller is not None and peer.incarnation < self._caller.incarnation:
            raise BadFrame("a standby that another one has followed")
        self._caller = peer
        self._mention(StandbyCalled(generation=peer.incarnation))

    def take(
        self, pack: Callable[[], bytes], sessions: Iterable[WorkerSession]
    ) -> None:
        """Accepts the standby that has connected. No message may be half-way.

        The standby does not know reports from before it joined. So there must be a
        controller: then they are on the way to it, and it gets them before it learns of
        the standby.

        Args:
            pack: Returns the state until now.
            sessions: Sessions of all workers.
        """
        peer = self._caller
        if peer is None:
            return
        if self._replication.is_given_up(peer.incarnation):
            self._connections.drop(peer, ENDED)
        elif self._replication.can_begin:
            self._caller = None
            self._replication.begin(peer, pack())
            for session in sessions:
                self._replication.offer_slot(session)

    def heed(self, peer: Peer, head: Head, _body: memoryview) -> None:
        """Handles the standby's acknowledgement of events.

        Raises:
            BadFrame: It got no events, or cannot read what it got.
        """
        if peer is not self._replication.peer:
            raise BadFrame("a word of a standby that was told nothing")
        match read(FROM_STANDBY, head, "a standby"):
            case CannotFollow(reason=reason):
                raise BadFrame(f"it cannot follow: {reason}")
            case Mapped(rank=rank, incarnation=incarnation):
                self._replication.mapped(rank, incarnation)
            case Took(number=number):
                self._replication.acknowledge(number)
                if number == 1:
                    self._mention(StandbyReady(generation=peer.incarnation))

    def look(self, pause_s: float) -> None:
        """Drops a standby that is silent for too long.

        Args:
            pause_s: Time in which the server itself did not run.
        """
        peer = self._replication.peer
        if pause_s > PAUSE_S:
            self._replication.forgive(pause_s)
        elif peer is not None and (reason := self._replication.overdue()):
            self._connections.drop(peer, reason)

    def gone(self, peer: Peer, reason: str) -> None:
        """Handles a closed connection of a standby, accepted or not."""
        if peer is self._replication.peer:
            self._replication.lost()
        elif peer is self._caller:
            self._caller = None
        else:
            return
        self._mention(StandbyLeft(generation=peer.incarnation, reason=reason))

    def give_up(self, generation: int) -> None:
        """Drops standbys up to a generation: the controller has given them up."""
        peer = self._replication.peer
        if peer is not None and peer.incarnation <= generation:
            self._connections.drop(peer, ENDED)  # its end was not noticed here yet
        self._replication.go_alone(generation)


class WaitingPeer(NamedTuple):
    """A peer with a message that only a leading server can answer.

    Args:
        peer: Connection of the peer.
        head: Its message.
        since: Time of arrival, in seconds of a monotonic clock.
    """

    peer: Peer
    head: Head
    since: float


@final
@dataclass(frozen=True, kw_only=True)
class FailoverState:
    """State that a standby hands to the server that it becomes.

    Args:
        replica: Replica of the run.
        report_channel: Reports that the controller has not acknowledged.
        straggler_timeout: Timeout with the durations of the last rounds.
        controller: The controller that promoted it.
        lead: Its message: reports it has heard, and tokens of living processes.
        callers: Peers that called since the leader was lost, or shortly before.
        failure: The strategy's failure, at an event that the leader may not have
            reported.
    """

    replica: Replica
    report_channel: ReportChannel
    straggler_timeout: StragglerTimeout
    controller: Peer
    lead: Lead
    callers: list[WaitingPeer]
    failure: StrategyFailed | None
