"""The common part of all servers: serving, the standby, the controller's commands.

One thread: an event is handled before the next one is read, which makes commits
atomic. The state of a run is in `replica.py`, connections are in `listener.py`, the
standby's part is in `replication.py`. `primary.py` decides where events come from, or
`shard.py` if another server orders them.
"""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections.abc import Iterable

from shoal.engine.coordination.timeouts import StragglerTimeout
from shoal.engine.environment import SYSTEM, Environment
from shoal.engine.server.effects import (
    AnswerWorker,
    Effect,
    Raise,
    TellController,
)
from shoal.engine.server.replica import Replica
from shoal.engine.server.replication import FailoverState, Replication, StandbyPeer
from shoal.engine.server.reports import ReportChannel
from shoal.engine.server.session import WorkerSession
from shoal.engine.server.spec import ServerSpec
from shoal.engine.server.state_transfer import pack
from shoal.engine.server.strategy_calls import StrategyFailed
from shoal.engine.transport.callers import RejectedCallers
from shoal.engine.transport.fields import WRONG
from shoal.engine.transport.listener import Connections, Listener, Peer
from shoal.engine.transport.messages.base import Report
from shoal.engine.transport.messages.controller_to_server import (
    Command,
    Control,
    GoAlone,
    Ping,
    Stop,
    read_command,
)
from shoal.engine.transport.messages.server_to_controller import (
    Broken,
    Leads,
    Pong,
)
from shoal.engine.transport.messages.server_to_worker import Answer, Refused, ToWorker
from shoal.engine.transport.messages.shard import AnswerPart
from shoal.engine.transport.messages.standby import StandbyCalls
from shoal.engine.transport.segments import InPairs
from shoal.wire.frames import BadFrame, Head
from shoal.wire.tls import server_context

FLUSH_S = 0.1


def open_connections(
    spec: ServerSpec, socket_: socket.socket, environment: Environment = SYSTEM
) -> Connections:
    """Listens for the peers of a run.

    Args:
        spec: Spec of the server.
        socket_: Bound and listening socket; it is owned from now on.
        environment: Clock.
    """
    limit = spec.sizes.frame_bytes
    tls = None if spec.identity is None else server_context(spec.identity)
    return Connections(socket_, spec.secret, limit, tls, environment.clock)


class BaseServer(Listener):
    """A server that leads: the only one that answers for its state.

    Args:
        spec: Spec of the server.
        connections: Connections of the peers; owned from now on.
        failover: State from the standby that becomes this server; None for a new run.
        environment: Clock, and connections that this server makes itself.
    """

    def __init__(
        self,
        spec: ServerSpec,
        connections: Connections,
        failover: FailoverState | None = None,
        environment: Environment = SYSTEM,
    ) -> None:
        self.spec, self._failover = spec, failover
        self._environment, self._clock = environment, environment.clock
        self._connections = connections
        self._replication = Replication(connections, environment.clock)
        self._workers: dict[int, Peer] = {}
        self._rejected = RejectedCallers()
        self._standby_peer = StandbyPeer(connections, self._replication, self._mention)
        self._receivers = {
            "": self._greet,
            "controller": self._obey,
            "worker": self._hear,
            "standby": self._standby_peer.heed,
        }
        self._is_running = True
        self._flushed = self._clock()
        if failover is None:
            self._report_channel, self._straggler_timeout = (
                ReportChannel(),
                StragglerTimeout(),
            )
            self.replica = Replica(spec, environment.clock)
            self._carry_out(self.replica.take_effects())
        else:
            self._report_channel, self._straggler_timeout = (
                failover.report_channel,
                failover.straggler_timeout,
            )
            self.replica = failover.replica
        self._spread = InPairs()
        self.replica.center.spread(self._spread, self._spread.beside(self._count_busy))
        connections.deliver_to(self)

    # -------------------------------------------------------------- the loop

    @property
    def is_running(self) -> bool:
        """Whether the controller is connected, and has not sent `Stop`."""
        return self._is_running

    def run(self) -> None:
        """Serves until the controller sends `Stop`, or is gone."""
        try:
            self.begin()
            while self._is_running:
                self.turn()
            self._see_off()
        except StrategyFailed as error:
            # A standby has failed at the same event. No server can go on, so that no
            # frame needs to be held for one.
            self._replication.end()
            self._tell_of_failure(Broken(reason=str(error)))
        finally:
            self.close()

    @abstractmethod
    def turn(self) -> None:
        """Handles what peers send, or waits for a moment; then looks at the clock."""

    def _see_off(self) -> None:
        """Serves the last messages after the end of the run."""

    @abstractmethod
    def _tell_of_failure(self, report: Broken) -> None:
        """Tells the controller that the strategy's own code raised."""

    def _count_busy(self) -> int:
        """Cores of this machine that are in use while one worker waits for an answer.

        That worker's core is free for this thread; workers elsewhere have no slot.
        """
        sessions = self.replica.sessions.values()
        return sum(p.buffers.slot is not None for p in sessions) + self.spec.shards - 1

    @property
    def _is_quiet(self) -> bool:
        """Whether a standby can be accepted now."""
        return self.replica.is_quiet

    def _look(self) -> bool:
        """Accepts a waiting standby; returns whether all other checks are due."""
        if (
            self._standby_peer.has_caller
            and self._report_channel.controller is not None
            and self._is_quiet
        ):
            sessions = self.replica.sessions.values()
            # Packed between two events: `freeze` returns the vectors themselves, and
            # the next event changes them.
            self._standby_peer.take(lambda: pack(self.replica.freeze()), sessions)
        if self._clock() - self._flushed < FLUSH_S:
            return False
        self._flushed = self._clock()
        self._connections.drop_slow_callers()
        self._tell_of_rejected()
        return True

    def close(self) -> None:
        """Closes every connection, and every worker's slot."""
        self._is_running = False
        self._connections.close()
        # Sessions of workers that did not leave.
        for session in self.replica.sessions.values():
            session.buffers.close()
        self._spread.close()

    # --------------------------------------------------------------- telling

    def _send_vectors(
        self,
        peer: Peer,
        session: WorkerSession,
        message: Answer | AnswerPart,
        blob: bytes,
    ) -> None:
        """Sends a worker the vectors of its answer."""
        parts = (session.buffers.inline_down,)
        if peer.vector_codec is not None:
            is_reply = message.body == "reply"
            coded = peer.vector_codec.pack() if is_reply else None
            parts = coded or parts
            message = message.replace(is_coded=coded is not None)
            if not is_reply:
                peer.vector_codec.sent()
        self._replication.send(peer, message, *parts, blob)

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        """Carries out the effects of an event, in order.

        Raises:
            StrategyFailed: The strategy's own code raised.
            ValueError: The event is invalid; or another of `WRONG`.
        """
        for effect in effects:
            match effect:
                case AnswerWorker(session, message, blob):
                    self.answer(session, message, blob)
                case TellController(report, body):
                    self.report(report, *body)
                case Raise(error):
                    raise error

    @abstractmethod
    def answer(self, session: WorkerSession, message: ToWorker, blob: bytes) -> None:
        """Sends a replica's answer to a worker."""

    def report(self, report: Report, *body: bytes) -> None:
        """Sends a replica's report to the controller."""
        self._report_channel.say(self._replication.send, report, *body)

    def _mention(self, report: Report) -> None:
        """Tells the controller something that is not part of the run's state."""
        self._report_channel.say(self._connections.send, report)

    def _tell_of_rejected(self) -> None:
        found = self._rejected.take(self._clock())
        if found is not None:
            self._mention(found)

    def _refuse(self, peer: Peer, reason: str) -> None:
        """Refuses a peer that proved the secret; it counts as a caller still."""
        peer.is_refused = True
        self._connections.send(peer, Refused(reason=reason))

    # ----------------------------------------------------------------- peers

    def on_gone(self, peer: Peer, reason: str) -> None:
        """Handles a closed connection; of the run, only the replica's event changes."""
        if peer is self._report_channel.controller:
            self._report_channel.controller, self._is_running = None, False
        elif peer.role == "worker":
            if self._workers.get(peer.rank) is peer:
                del self._workers[peer.rank]
                self._worker_gone(peer, reason)
        elif peer.role == "standby":
            self._standby_peer.gone(peer, reason)
        elif peer.role:
            self._other_gone(peer)
        elif self._is_running and not peer.is_refused:
            self._rejected.note(peer.name, reason)
            self._tell_of_rejected()

    @abstractmethod
    def _worker_gone(self, peer: Peer, reason: str) -> None:
        """A worker's connection is closed."""

    @abstractmethod
    def _other_gone(self, peer: Peer) -> None:
        """The connection of another server is closed."""

    def on_frame(self, peer: Peer, head: Head, body: memoryview) -> None:
        """Handles one message; a malformed one counts as a bad frame."""
        receive = self._receivers.get(peer.role, self._hear_server)
        try:
            receive(peer, head, body)
        except WRONG as error:
            raise BadFrame(f"{head['kind']!r:.40}: {error!r:.200}") from error

    @abstractmethod
    def _hear(self, peer: Peer, head: Head, body: memoryview) -> None:
        """Handles a worker's message."""

    @abstractmethod
    def _hear_server(self, peer: Peer, head: Head, _body: memoryview) -> None:
        """Handles a message of another server of the run."""

    def _greet(self, peer: Peer, head: Head, _body: memoryview) -> None:
        kind, is_commander = head["kind"], peer.channel.is_commander
        if kind == Control.kind and is_commander:
            peer.role = "controller"
            heard = Control.parse(head).heard or 0
            self._report_channel.attach(self._replication.send, peer, heard)
        elif kind == StandbyCalls.kind and is_commander:
            self._standby_peer.called(peer, StandbyCalls.parse(head))
        elif not self._take_caller(peer, head):
            raise BadFrame(f"first frame is {kind!r:.40}")

    @abstractmethod
    def _take_caller(self, peer: Peer, head: Head) -> bool:
        """Handles a peer's first message; returns whether its kind is known here."""

    def _attach(self, peer: Peer, session: WorkerSession) -> None:
        peer.role = "worker"
        peer.rank, peer.incarnation = session.rank, session.incarnation
        self._workers[session.rank] = peer

    # ------------------------------------------------------------ controller

    def _obey(self, _peer: Peer, head: Head, body: memoryview) -> None:
        command = read_command(head)
        if command.heard is not None:  # a standby keeps reports until then
            self._replication.note(command.heard)
        match command:
            case Stop():
                self._is_running = False
                self._replication.end()
            case Ping():
                self._mention(Pong())
            case GoAlone(generation=generation):
                self._standby_peer.give_up(generation)
            case _:
                self._command(command, body)

    @abstractmethod
    def _command(self, command: Command, body: memoryview) -> None:
        """Handles a command that only one kind of server knows."""

    def begin(self) -> None:
        """Continues where another server was lost, if there was one.

        Raises:
            StrategyFailed: The strategy failed at an event that the lost server may not
                have reported, or fails now.
        """
        failover = self._failover
        if failover is None:
            self._start(None)
            return
        heard = failover.lead.heard or 0
        self._report_channel.attach(self._replication.send, failover.controller, heard)
        self._mention(Leads())
        if failover.failure is not None:  # the controller is attached, and is told
            raise failover.failure
        self._start(failover)
        # After `_start`, in which number 0 forgets workers whose processes have ended:
        # it refuses a late message of such a worker.
        for peer, head, _ in failover.callers:
            if not peer.is_gone:
                peer.role = "" if peer.role == "caller" else peer.role
                self._connections.deliver_again(peer, head)

    @abstractmethod
    def _start(self, failover: FailoverState | None) -> None:
        """Begins to lead; peers that called before are handled after this."""
