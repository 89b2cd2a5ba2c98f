"""The standby of a server: what it is sent, when it is given up, what it takes over.

Every event goes to the standby before the reply to it leaves. So the standby knows all
that a worker or the controller was told.

A server that loses its standby cannot tell whether the controller has promoted it. So
it replies to nobody until the controller lets it go on alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, final

from shoal.engine.coordination.timeouts import PAUSE_S, TIMES, StragglerTimeout
from shoal.engine.server.replica import Replica, StrategyFailed
from shoal.engine.server.reports import ReportChannel
from shoal.engine.server.session import WorkerSession
from shoal.engine.transport.heartbeat import SLOWEST
from shoal.engine.transport.listener import Connections, Peer
from shoal.engine.transport.messages.base import Message, read
from shoal.engine.transport.messages.controller_to_server import Lead
from shoal.engine.transport.messages.events import Event, Staged
from shoal.engine.transport.messages.server_to_controller import (
    Report,
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

FLOOR_S = 2.0  # it has nothing to do but to listen; another one is soon started


class Held(NamedTuple):
    """A frame that waits until the standby knows what led to it.

    Args:
        number: Of the event that the standby must have.
        since: When it was held back, in seconds of a monotonic clock.
        peer: Who is to have it.
        message: What it is.
        body: That follows it.
    """

    number: int
    since: float
    peer: Peer
    message: Message
    body: tuple[memoryview | bytes, ...]


@final
class Replication:
    """Sends events to the standby, and holds back what is said until they are there.

    Args:
        connections: Of the server.
        clock: Of the server.
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
        """Whether a standby would be taken now."""
        return self.peer is None and not self._unsure_of

    def is_given_up(self, generation: int) -> bool:
        """Whether the controller knows that a standby is gone."""
        return generation <= self._given_up

    def begin(self, peer: Peer, frozen: bytes) -> None:
        """A standby takes part from now on.

        Args:
            peer: Its connection.
            frozen: What it does not know yet.
        """
        self.peer, self._sent, self._known = peer, 0, 0
        self._longest_s, self._asked = 0.0, None
        self._sizes.clear()
        self._mapped.clear()
        self._tell(Frozen(), frozen)

    def log(
        self,
        event: Event | Staged,
        at: float,
        session: WorkerSession | None,
        blob: bytes | memoryview,
    ) -> None:
        """An event is about to be handled.

        Args:
            event: What happens.
            at: Seconds of the run.
            session: Of whoever sends a message with vectors, else None.
            blob: That goes along.
        """
        if self.peer is not None:
            vectors = b"" if session is None else session.buffers.up
            is_mapped = session is not None and self._is_mapped(session)
            logged = Logged(
                event=event, at=at, vectors=len(vectors), is_mapped=is_mapped
            )
            self._tell(logged, b"" if is_mapped else vectors, blob)

    # A message lies still in its slot until it is answered, and that is not before the
    # standby has said that it has it.

    def _is_mapped(self, session: WorkerSession) -> bool:
        """Whether the standby sees the memory where the vectors of a worker lie."""
        has_slot = session.buffers.slot is not None
        return has_slot and (session.rank, session.incarnation) in self._mapped

    def seated(self, session: WorkerSession) -> None:
        """A worker has a slot from now on, which the standby may map as well."""
        slot = session.buffers.slot
        offer = None if slot is None else slot.offer
        if self.peer is not None and offer is not None:
            found = WorkerSlot(
                rank=session.rank, incarnation=session.incarnation, offer=offer
            )
            self._connections.send(self.peer, found)

    def mapped(self, rank: int, incarnation: int) -> None:
        """The standby sees a worker's slot."""
        self._mapped.add((rank, incarnation))

    def note_orders(self, number: int) -> None:
        """All other shards know orders up to this number."""
        if self.peer is not None:
            self._connections.send(self.peer, ShardsTook(number=number))

    def note(self, heard: int) -> None:
        """The controller has heard reports up to this number."""
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
        """The standby has events up to this number.

        Raises:
            ValueError: It cannot.
        """
        if not self._known <= number <= self._sent:
            raise ValueError(f"event {number} of {self._sent}")
        now = self._clock()
        if self._asked is not None:
            self._longest_s = max(self._longest_s, now - self._asked)
        for _ in range(number - self._known):
            self._sizes.popleft()
        self._known = number
        self._asked = now if number < self._sent else None
        self._release()

    def overdue(self) -> str:
        """Why the standby counts as hung, empty if it does not."""
        limit_s = FLOOR_S + sum(self._sizes) / SLOWEST + TIMES * self._longest_s
        if self._asked is None or self._clock() - self._asked <= limit_s:
            return ""
        return f"hung: took no event for more than {limit_s:.1f} s"

    @property
    def waiting(self) -> set[Peer]:
        """Who has not heard yet what it is told."""
        return {held.peer for held in self._held}

    def stalled_s(self) -> float:
        """Seconds since the last look in which answers waited for the standby.

        Short waits are none: every answer waits for its trip.
        """
        now = self._clock()
        since = self._held[0].since if self._held else now
        if now - since <= PAUSE_S:
            return 0.0
        before, self._looked = max(since, self._looked), now
        return now - before

    def forgive(self, pause_s: float) -> None:
        """The server itself did not run for so long."""
        if self._asked is not None:
            self._asked += pause_s

    def lost(self) -> None:
        """The standby is gone, or leads another half of a run that was cut in two."""
        if self.peer is not None:
            self._unsure_of = self.peer.incarnation
        self.peer = self._asked = None

    def go_alone(self, generation: int) -> None:
        """The controller knows that standbys up to this generation are gone.

        Of a later one it says nothing by that: the connections of controller and
        standby are two, and what they bring may overtake each other.
        """
        # Until this is said, the controller may have promoted the standby: two servers
        # would reply to workers, each with a history of its own. A server that lost its
        # standby therefore replies to nobody (decision 14).
        self._given_up = generation
        if 0 < self._unsure_of <= generation:
            self._let_go()

    def end(self) -> None:
        """The run is over, and nobody will take it over: last words need not wait."""
        self.peer = self._asked = None
        self._let_go()

    def _let_go(self) -> None:
        self._unsure_of, self._known = 0, self._sent
        self._release()

    # --------------------------------------------------------------- sending

    def send(self, peer: Peer, message: Message, *body: memoryview | bytes) -> None:
        """Sends a frame once the standby knows all that led to it."""
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
    """Who follows a server.

    Args:
        connections: Of the server.
        replication: Of the server.
        mention: Tells the controller of something that is no part of the run's state.
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
        """Whether a standby waits to be taken."""
        return self._caller is not None

    def called(self, peer: Peer, message: StandbyCalls) -> None:
        """A standby is there, and is taken when it can be.

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
        """Takes who has called. No message may be half-way.

        Reports from before it joined are known to nobody else. So there must be a
        controller: then they are on the way to it, and it hears them before it hears of
        the standby.

        Args:
            pack: Gives what it does not know yet.
            sessions: Of all workers.
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
                self._replication.seated(session)

    def heed(self, peer: Peer, head: Head, _body: memoryview) -> None:
        """It says which events it has.

        Raises:
            BadFrame: It was told of none, or cannot read what it was told.
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
        """Drops one that is silent for too long.

        Args:
            pause_s: The server itself did not run for so long.
        """
        peer = self._replication.peer
        if pause_s > PAUSE_S:
            self._replication.forgive(pause_s)
        elif peer is not None and (reason := self._replication.overdue()):
            self._connections.drop(peer, reason)

    def gone(self, peer: Peer, reason: str) -> None:
        """Its connection is closed, perhaps before it was taken."""
        if peer is self._replication.peer:
            self._replication.lost()
        elif peer is self._caller:
            self._caller = None
        else:
            return
        self._mention(StandbyLeft(generation=peer.incarnation, reason=reason))

    def give_up(self, generation: int) -> None:
        """The controller has given up standbys up to this generation."""
        peer = self._replication.peer
        if peer is not None and peer.incarnation <= generation:
            self._connections.drop(peer, ENDED)  # its end was not heard here yet
        self._replication.go_alone(generation)


class Caller(NamedTuple):
    """Who has said something that only whoever leads can answer.

    Args:
        peer: Its connection.
        head: What it said.
        since: When, in seconds of a monotonic clock.
    """

    peer: Peer
    head: Head
    since: float


@final
@dataclass(frozen=True, kw_only=True)
class FailoverState:
    """What a standby leaves to the server that it becomes.

    Args:
        replica: The run.
        report_channel: What the controller was not told yet.
        straggler_timeout: How long rounds took.
        controller: Who says that it leads.
        lead: What it says: reports it has heard, and tokens of living processes.
        callers: Since the leader was lost, or before that was clear.
        failure: Of the strategy, at an event that the leader may not have told of.
    """

    replica: Replica
    report_channel: ReportChannel
    straggler_timeout: StragglerTimeout
    controller: Peer
    lead: Lead
    callers: list[Caller]
    failure: StrategyFailed | None
