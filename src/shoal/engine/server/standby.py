"""A server that follows another one, and leads when the controller promotes it.

It never decides by itself that the leader is lost: two servers that both lead would be
worse than none. Until it leads, it answers no worker of the run.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Queue
from typing import final

from shoal.engine.coordination.timeouts import StragglerTimeout
from shoal.engine.environment import SYSTEM, Environment
from shoal.engine.server.base import FLUSH_S, BaseServer, open_connections
from shoal.engine.server.effects import (
    AnswerWorker,
    Effect,
    Raise,
    TellController,
)
from shoal.engine.server.primary import Primary
from shoal.engine.server.replica import Replica
from shoal.engine.server.replication import FailoverState, WaitingPeer
from shoal.engine.server.reports import ReportChannel
from shoal.engine.server.shard import ShardServer
from shoal.engine.server.spec import ServerSpec
from shoal.engine.server.state_transfer import unpack
from shoal.engine.server.strategy_calls import StrategyFailed
from shoal.engine.transport.fields import WRONG, exactly
from shoal.engine.transport.listener import Connections, Listener, Peer
from shoal.engine.transport.messages.base import by_kind, read
from shoal.engine.transport.messages.controller_to_server import Control, Lead
from shoal.engine.transport.messages.events import Staged, WorkerLeaves, WorkerSays
from shoal.engine.transport.messages.server_to_worker import Elsewhere
from shoal.engine.transport.messages.shard import Attend, ShardCalls
from shoal.engine.transport.messages.standby import (
    TO_STANDBY,
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
from shoal.engine.transport.messages.state_reports import VectorReport
from shoal.engine.transport.messages.worker_to_server import Join, Rejoin
from shoal.engine.transport.server_connection import TURN_FRAMES
from shoal.engine.transport.shared_memory import Slot
from shoal.wire.frames import GREETING_TIMEOUT_S, BadFrame, Head, Link

COMES_BACK = (Rejoin.kind, Attend.kind)  # what a worker says
OURS = (StandbyCalls.kind, ShardCalls.kind)  # what another server of the run says
LEAD = by_kind(Lead)
CALLER_S = 1.0  # time for this server to notice, too, that the leader is lost
LONGEST_STALL_S = 30.0  # longest pause within a frame of the leader


@dataclass(frozen=True, kw_only=True)
class StandbySpec:
    """Input of a standby's process.

    Args:
        server: Spec of the server that it may become.
        leader: Address of the server that it follows.
        generation: Counts the standbys of a run.
    """

    server: ServerSpec
    leader: tuple[str, int]
    generation: int = 1


@final
class Standby(Listener):
    """Handles the leader's events, until it leads or is not needed any more.

    Args:
        spec: Spec of the server that it may become.
        connections: Connections of the peers; owned from now on.
        link: Connection to the leader, after the introduction; owned from now on.
        environment: Clock, and connections of the server that it becomes.
    """

    def __init__(
        self,
        spec: ServerSpec,
        connections: Connections,
        link: Link,
        environment: Environment = SYSTEM,
    ) -> None:
        self._environment, self._clock = environment, environment.clock
        self._spec, self._connections, self._link = spec, connections, link
        connections.deliver_to(self)
        self._replica = Replica(spec, environment.clock)
        self._landing = memoryview(bytearray(spec.sizes.up_bytes))
        self._report_channel, self._straggler_timeout = (
            ReportChannel(),
            StragglerTimeout(),
        )
        self._slots: dict[tuple[int, int], Slot] = {}
        self._callers: list[WaitingPeer] = []
        self._controller: Peer | None = None
        self._lead: Lead | None = None
        self._number, self._lost_at = 0, 0.0
        self._took_at = self._clock()
        self._is_running = True
        self._failure: StrategyFailed | None = None
        self._server: Queue[BaseServer] = Queue()
        connections.watch(link.socket, self._follow)

    @classmethod
    def open(
        cls,
        spec: StandbySpec,
        socket_: socket.socket,
        environment: Environment = SYSTEM,
    ) -> Standby:
        """Listens, and connects to the leader.

        Args:
            spec: Spec of the standby.
            socket_: Bound and listening socket; it is owned from now on.
            environment: Clock, and the connection to the leader.

        Raises:
            BadFrame: The listener is not the leader.
            ExchangeTimeout: The leader does not answer the handshake.
            OSError: The leader is gone.
        """
        server, identity = spec.server, spec.server.identity
        certificate = None if identity is None else identity.certificate
        connections = open_connections(server, socket_, environment)
        try:
            link = environment.connect(
                spec.leader, server.secret, certificate=certificate
            )
            link.introduce(StandbyCalls(generation=spec.generation).pack())
        except BaseException:
            connections.close()
            raise
        return cls(server, connections, link, environment)

    def run(self, on_lead: Callable[[], None] = lambda: None) -> None:
        """Follows, then leads if it is promoted, until the end of the run.

        Args:
            on_lead: Called when it begins to lead.
        """
        while self.is_following:
            self.turn()
        server = self.succeed()
        if server is not None:
            on_lead()
            server.run()

    @property
    def is_following(self) -> bool:
        """Whether it neither leads nor has ended."""
        return self._is_running and self._lead is None

    def turn(self) -> None:
        """Handles what peers send, or waits for a moment."""
        self._connections.serve(0.0 if self._has_more else FLUSH_S)
        if self._has_more:
            self._follow()
        self._connections.drop_slow_callers()
        self._send_back()
        if self._is_left_alone:
            self._is_running = False

    def _send_back(self) -> None:
        """Redirects workers that reached the standby while the primary is alive."""
        late = self._clock() - CALLER_S
        for caller in list(self._callers):
            peer, head, since = caller
            is_worker = head["kind"] in COMES_BACK
            if is_worker and since < late and not self._lost_at and not peer.is_gone:
                self._callers.remove(caller)
                peer.role = ""
                self._connections.send(peer, Elsewhere())

    @property
    def _is_left_alone(self) -> bool:
        """Whether both leader and controller are gone."""
        if self._controller is not None or not self._lost_at:
            return False
        return self._clock() - self._lost_at > GREETING_TIMEOUT_S

    def succeed(self) -> BaseServer | None:
        """Returns the server that it becomes, None if it is not needed any more."""
        lead, controller = self._lead, self._controller
        if lead is None or controller is None or not self._is_running:
            self._link.close()
            self._connections.close()
            return None
        # The leader has ended, and its last events may still be in the socket. They
        # were not acknowledged: no reply to them has left.
        while not self._lost_at and self._link.has_input(0.0):
            self._follow()
        self._leave_leader()
        # No message was handled since; workers need a moment to return.
        self._straggler_timeout.forgive(self._clock() - self._took_at)
        failover = FailoverState(
            replica=self._replica,
            report_channel=self._report_channel,
            straggler_timeout=self._straggler_timeout,
            controller=controller,
            lead=lead,
            callers=self._callers,
            failure=self._failure,
        )
        kind = ShardServer if self._spec.shard else Primary
        server = kind(self._spec, self._connections, failover, self._environment)
        self._server.put(server)
        return server

    def stop(self) -> None:
        """Ends it soon, if it does not lead; for a caller that runs it in a thread."""
        self._is_running = False

    def successor(self) -> BaseServer:
        """Waits until this leads; for a caller that runs it in a thread."""
        return self._server.get()

    # ---------------------------------------------------------------- leader

    @property
    def _has_more(self) -> bool:
        """Whether bytes of the leader are buffered that no selector reports."""
        return not self._lost_at and self._link.has_pending

    def _follow(self) -> None:
        """Handles the leader's frames, until other peers have their turn."""
        self._take_frame()
        for _ in range(TURN_FRAMES - 1):
            if not self._has_more:
                break
            self._take_frame()

    def _take_frame(self) -> None:
        """Acknowledges every event before it is handled.

        An unreadable event ends this standby, as it knows less than the leader then.
        The leader gets the reason, and the controller starts another standby.
        """
        try:
            # The first frame gets memory of its own: it is the state until then.
            into = self._landing if self._number else None
            head, body = self._link.receive(into, stall_s=LONGEST_STALL_S)
        except OSError:
            self._leave_leader()
            return
        except BadFrame as error:
            self._refuse(f"a frame of the leader: {error}")
            return
        try:
            found = self._read(head, body)
        except OSError:
            self._leave_leader()
        except (BadFrame, *WRONG) as error:
            self._refuse(f"{head['kind']!r:.40} of the leader: {error!r:.200}")
        else:
            if found is not None:
                self._take_in(*found)

    def _take_in(self, logged: Frozen | Logged, blob: memoryview) -> None:
        # Acknowledged before it is handled: the leader's replies wait for this. It is
        # handled in the same call, before this server can lead.
        self._number += 1
        try:
            self._link.send(Took(number=self._number).pack())
        except OSError:
            self._leave_leader()
            return
        if isinstance(logged, Frozen):
            self._begin(blob)
        else:
            self._take(logged, blob)

    def _begin(self, frozen: memoryview) -> None:
        try:
            self._replica.thaw(unpack(frozen))
        except Exception as error:  # a pickle of another version may raise anything
            self._refuse(f"the state of the leader: {error!r:.200}")

    def _refuse(self, reason: str) -> None:
        with suppress(OSError):
            self._link.send(CannotFollow(reason=reason).pack())
        self._leave_leader()
        self._is_running = False

    def _map(self, message: WorkerSlot) -> None:
        """Maps a worker's slot, if it is on this host."""
        who = message.rank, message.incarnation
        size, offer = self._spec.sizes.slot_bytes, message.offer
        slot = Slot.attach(offer.path, size, offer.mark)
        if slot is not None:
            before = self._slots.pop(who, None)
            if before is not None:
                before.close()
            self._slots[who] = slot
            mapped = Mapped(rank=message.rank, incarnation=message.incarnation)
            self._link.send(mapped.pack())

    def _read(
        self, head: Head, body: memoryview
    ) -> tuple[Frozen | Logged, memoryview] | None:
        """Reads a message with its vectors.

        Returns:
            The event or the state until then, and the bytes behind the vectors. None if
            the message is neither.

        Raises:
            BadFrame: No leader sends this.
            ValueError: The vectors are invalid; or another of `WRONG`.
        """
        message = read(TO_STANDBY, head, "the leader")
        match message:
            case ControllerHeard(number=number):
                self._report_channel.forget(number)
                return None
            case ShardsTook(number=number):
                self._replica.event_log.forget(number)
                return None
            case WorkerSlot():
                self._map(message)
                return None
            case Frozen() | Logged():
                if isinstance(message, Frozen) != (self._number == 0):
                    raise ValueError("no event")
        if isinstance(message, Frozen):
            return message, body
        return message, self._take_vectors(message, body)

    def _take_vectors(self, logged: Logged, body: memoryview) -> memoryview:
        """Reads the vectors of a message; returns the bytes behind them."""
        event, count = logged.event, logged.vectors
        if not count:
            return body
        if not isinstance(event, WorkerSays | Staged):
            raise ValueError("vectors of an event that has none")
        rest = body[count:]
        if logged.is_mapped:
            slot = self._slots[event.rank, event.incarnation]
            vectors, rest = slot.bytes[:count], body
        else:
            vectors = body[:count]
        session = self._replica.sessions.get(event.rank)
        if session is not None:
            session.buffers.up[:] = exactly(vectors, len(session.buffers.up), "vectors")
        return rest

    def _take(self, logged: Logged, blob: memoryview) -> None:
        event = logged.event
        if isinstance(event, Staged):
            session = self._replica.sessions.get(event.rank)
            if session is not None:
                session.staged = event.staged
            return
        if self._failure is not None:
            return
        entry = self._replica.enter(event, logged.at)
        for effect in self._replica.handle(entry, blob):
            self._keep(effect)
        if self._failure is not None:
            return
        if isinstance(event, WorkerLeaves):
            self._forget_slot(event.rank, event.incarnation)
        self._took_at = self._clock()
        # After a promotion it decides when a round is overdue.
        if self._spec.rules.quorum:
            self._straggler_timeout.look(
                self._replica.sequencer.round_progress, self._took_at
            )

    def _keep(self, effect: Effect) -> None:
        """Keeps what the leader's effect changed."""
        match effect:
            case AnswerWorker():
                pass  # the session keeps it
            case TellController(report, body):
                # Kept until the controller has it from the leader.
                # A shard reports its part of vectors, number 0 all else.
                if not self._spec.shard or isinstance(report, VectorReport):
                    self._report_channel.keep(report, *body)
            case Raise(StrategyFailed() as error):
                self._failure = (
                    error  # the leader failed as well, and reports it if it can
                )
            case Raise(error):
                # An event that failed at the leader fails here too.
                known = ArithmeticError, LookupError, TypeError, ValueError
                if not isinstance(error, known):
                    raise error

    def _forget_slot(self, rank: int, incarnation: int) -> None:
        slot = self._slots.pop((rank, incarnation), None)
        if slot is not None:
            slot.close()

    def _leave_leader(self) -> None:
        if not self._lost_at:
            self._lost_at = self._clock()
            self._connections.unwatch(self._link.socket)
            self._link.close()
            for who in list(self._slots):  # workers get new ones
                self._forget_slot(*who)

    # ----------------------------------------------------------------- peers

    def on_frame(self, peer: Peer, head: Head, body: memoryview) -> None:
        """Keeps workers that lost the leader waiting; redirects new ones to it."""
        kind = head["kind"]
        if peer.role == "controller":
            if self._lead is not None:
                self._callers.append(WaitingPeer(peer, head, self._clock()))
            elif kind == Lead.kind:
                self._lead = read(LEAD, head, "the controller")
        elif kind == Control.kind and peer.channel.is_commander:
            peer.role, self._controller = "controller", peer
        elif peer.role:
            raise BadFrame(f"{kind!r:.40} of a caller that waits")
        elif kind in COMES_BACK or (kind in OURS and peer.channel.is_commander):
            peer.role = "caller"  # the next standby may connect before this one leads
            self._callers.append(WaitingPeer(peer, head, self._clock()))
        elif kind == Join.kind:
            # A new process has lost nothing yet and can call the leader. One that comes
            # back may have found the leader's end before this standby did.
            self._connections.send(peer, Elsewhere())
        else:
            raise BadFrame(f"{kind!r:.40} to a standby")

    def on_gone(self, peer: Peer, reason: str) -> None:
        """Ends without a controller: then no peer can need it."""
        if peer is self._controller:
            self._controller, self._is_running = None, False
        self._callers = [caller for caller in self._callers if caller.peer is not peer]
