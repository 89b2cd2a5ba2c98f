"""A server of one part of the vector, which follows another server's order.

It receives its part of every message from the workers, and reports each part to number
0. It handles the events that number 0 orders on its part, and answers the workers. So
all parts go through the same events, and every committed message is complete.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import final

from shoal.engine.coordination.timeouts import PAUSE_S
from shoal.engine.environment import SYSTEM, Environment
from shoal.engine.server.base import FLUSH_S, BaseServer
from shoal.engine.server.event_log import LogEntry
from shoal.engine.server.replication import FailoverState
from shoal.engine.server.session import WorkerSession
from shoal.engine.server.spec import ServerSpec
from shoal.engine.transport.codec import connection_codec
from shoal.engine.transport.fields import exactly
from shoal.engine.transport.listener import Connections, Peer
from shoal.engine.transport.messages.base import Report
from shoal.engine.transport.messages.controller_to_server import Command, Follow
from shoal.engine.transport.messages.events import (
    Event,
    Staged,
    WorkerJoins,
    WorkerSays,
)
from shoal.engine.transport.messages.server_to_controller import (
    Broken,
    Unordered,
)
from shoal.engine.transport.messages.server_to_worker import Answer, Stored, ToWorker
from shoal.engine.transport.messages.shard import (
    AnswerPart,
    Attached,
    Attend,
    Has,
    Kept,
    MessagePart,
    Moving,
    Ordered,
    ShardCalls,
)
from shoal.engine.transport.messages.standby import Took
from shoal.engine.transport.messages.state_reports import VectorReport
from shoal.engine.transport.messages.worker_to_server import Push, Snapshot
from shoal.errors import ShoalError
from shoal.wire.frames import BadFrame, Head

FOLLOW_S = 2.0  # for the handshake with number 0, which is known to be up
START_S = 60.0  # the same, of one that is just starting
BEAT_S = 0.5  # between two words to number 0; see `SILENT_S` of `shard_peers.py`


@final
class ShardServer(BaseServer):
    """Serves one part until the controller ends it.

    Args:
        spec: Spec of the server.
        connections: Connections of the peers; owned from now on.
        failover: State from the standby that becomes this shard; None for a new run.
        environment: Clock, and connections that this server makes itself.
    """

    def __init__(
        self,
        spec: ServerSpec,
        connections: Connections,
        failover: FailoverState | None = None,
        environment: Environment = SYSTEM,
    ) -> None:
        super().__init__(spec, connections, failover, environment)
        self._primary: Peer | None = None
        self._event_log: deque[LogEntry] = deque()
        self._attending: dict[Peer, Attend] = {}
        self._took = -1
        self._told = self._clock()

    # -------------------------------------------------------------- the loop

    def turn(self) -> None:
        """Handles what peers send, or waits for a moment; then looks at the clock."""
        before = self._clock()
        self._connections.serve(FLUSH_S)
        self._tell_progress()
        if self._look():
            pause_s = self._clock() - before
            self._standby_peer.look(pause_s if pause_s > PAUSE_S else 0.0)
            self._tell_moves()

    @property
    def _is_quiet(self) -> bool:
        """Whether nothing is held here that a standby could not be sent."""
        return not self._event_log and super()._is_quiet

    def _tell_progress(self) -> None:
        """Tells number 0 which entries are known here and on the standby."""
        primary, number = self._primary, self.replica.event_log.number
        if primary is not None and number != self._took:
            self._took = number
            self._replication.send(primary, Took(number=number))

    def _tell_moves(self) -> None:
        """Tells number 0 that this server lives, and who is sending to it."""
        moving = [r for r, p in self._workers.items() if p.channel.has_moved()]
        is_due = self._clock() - self._told >= BEAT_S
        if (moving or is_due) and self._primary is not None:
            self._told = self._clock()
            self._connections.send(self._primary, Moving(ranks=tuple(moving)))

    def _start(self, failover: FailoverState | None) -> None:
        if failover is not None and failover.lead.order is not None:
            self._follow(failover.lead.order, FOLLOW_S)
        elif self.spec.order is not None:
            self._follow(self.spec.order, START_S)

    def _follow(self, address: tuple[str, int], limit_s: float) -> None:
        """Connects to number 0, and tells it which parts have arrived."""
        before, self._primary = self._primary, None
        if before is not None:
            self._connections.drop(before, "another server leads")
        identity = self.spec.identity
        certificate = None if identity is None else identity.certificate
        # The new number 0 sends waiting entries of the old one again.
        self._event_log.clear()
        try:
            link = self._environment.connect(
                address, self.spec.secret, certificate=certificate, timeout_s=limit_s
            )
            have = self.replica.event_log.number
            link.introduce(ShardCalls(number=self.spec.shard, have=have).pack())
        except (OSError, ShoalError):
            self._mention(Unordered(shard=self.spec.shard))
            return
        self._primary, self._took = self._connections.adopt(link, "primary"), -1
        # A server that took over has not heard which parts are here (decision 21).
        for session in self.replica.sessions.values():
            self._tell_staged(session)

    def _tell_of_failure(self, report: Broken) -> None:
        self._mention(report)

    # ---------------------------------------------------------------- orders

    def _hear_server(self, peer: Peer, head: Head, _body: memoryview) -> None:
        if head["kind"] != Ordered.kind:
            raise BadFrame(f"{head['kind']!r:.40} of the server that orders")
        ordered = Ordered.parse(head)
        if peer is not self._primary:
            return
        known = (
            self._event_log[-1].number
            if self._event_log
            else self.replica.event_log.number
        )
        number = ordered.number
        if number > known + 1:
            raise BadFrame(f"entry {number} after {known}")
        if number == known + 1:
            self._event_log.append(LogEntry(number, ordered.event, ordered.at))
            self._work()

    def _work(self) -> None:
        """Handles entries whose vectors have arrived."""
        # An entry without its vectors holds up all later ones: every server handles the
        # events in one order (decision 21).
        while self._event_log and self._has_vectors(self._event_log[0].event):
            _, event, at = self._event_log.popleft()
            # Number 0 has the optimizer's state; this one only knows if there is one.
            has_blob = isinstance(event, WorkerSays) and event.has_blob
            blob = b"\0" if has_blob else b""
            self._replication.log(event, at, None, blob)
            # An event that failed at number 0 fails here too.
            with suppress(ArithmeticError, LookupError, TypeError, ValueError):
                entry = self.replica.enter(event, at)
                self._carry_out(self.replica.handle(entry, blob))
            if isinstance(event, WorkerJoins):
                self._attach_early()

    def _has_vectors(self, event: Event) -> bool:
        if not isinstance(event, WorkerSays):
            return True
        is_snapshot = isinstance(event.message, Snapshot)
        if not isinstance(event.message, Push) and not (
            is_snapshot and self.spec.rules.exchanges_gradients
        ):
            return True
        session = self.replica.sessions.get(event.rank)
        if session is None or session.incarnation != event.incarnation:
            return True
        return session.staged >= event.question

    # --------------------------------------------------------------- workers

    def _take_caller(self, peer: Peer, head: Head) -> bool:
        if head["kind"] != Attend.kind:
            return False
        message = Attend.parse(head)
        if not self._attend(peer, message):
            waiting = self._attending.items()
            self._attending = {p: m for p, m in waiting if not p.is_gone}
            self._attending[peer] = message
        return True

    def _attach_early(self) -> None:
        """Attaches workers that connected before their joining was known here."""
        waiting, self._attending = self._attending, {}
        for peer, message in waiting.items():
            if not peer.is_gone:
                self._connections.deliver_again(peer, message.pack())

    def _attend(self, peer: Peer, message: Attend) -> bool:
        """Attaches a worker; returns False if number 0 has not reported it yet."""
        rank, incarnation = message.rank, message.incarnation
        session = self.replica.sessions.get(rank)
        if session is None or session.incarnation < incarnation:
            return False
        if session.incarnation != incarnation or session.token != message.token:
            self._refuse(peer, "another process has its place")
            return True
        before = self._workers.pop(rank, None)
        if before is not None:
            self._connections.drop(before, "it called again")
        self._attach(peer, session)
        peer.vector_codec = connection_codec(
            session.buffers, self.spec.strategy, is_server=True
        )
        vector_codec = peer.vector_codec
        peer.channel.inbox = (
            session.buffers.up if vector_codec is None else vector_codec.landing
        )
        center = self.replica.center.vector
        body = center.tobytes() if message.wants_center else b""
        self._replication.send(peer, Attached(), body)
        if session.answer is not None and session.question == message.question:
            self.answer(session, *session.answer)
        return True

    def answer(self, session: WorkerSession, message: ToWorker, blob: bytes) -> None:
        """Sends a worker its part of an answer; number 0 sends all else.

        For a stored part of a snapshot the answer is a part without a vector: then the
        worker may overwrite its own.
        """
        peer, question = self._workers.get(session.rank), session.question
        if peer is None:
            return
        if isinstance(message, Answer) and message.has_vectors:
            part = AnswerPart(question=question, body=message.body)
            self._send_vectors(peer, session, part, b"")
        elif isinstance(message, Stored) and self.spec.rules.exchanges_gradients:
            part = AnswerPart(question=question, body="none", is_coded=False)
            self._replication.send(peer, part)

    def _hear(self, peer: Peer, head: Head, body: memoryview) -> None:
        """Handles the part of a worker's message."""
        session = self.replica.sessions.get(peer.rank)
        if head["kind"] != MessagePart.kind:
            raise BadFrame(f"{head['kind']!r:.40} of a worker, to a shard")
        message = MessagePart.parse(head)
        if session is None or session.incarnation != peer.incarnation:
            return  # number 0 has ordered that it is gone
        if message.is_coded:
            if peer.vector_codec is None:
                raise BadFrame("a vector that is encoded, and was not to be")
            exactly(body[peer.vector_codec.unpack(body) :], 0, "more than a part")
        else:
            part = exactly(body, len(session.buffers.up), "a part")
            if body.obj is not session.buffers.up.obj:
                session.buffers.up[:] = part
        session.staged = max(session.staged, message.question)
        staged = Staged(
            rank=session.rank, staged=session.staged, incarnation=session.incarnation
        )
        # Both messages below are held until the standby has the part: a part that was
        # confirmed survives this server (decision 21).
        self._replication.log(staged, 0.0, session, b"")
        self._replication.send(peer, Kept(question=message.question))
        self._tell_staged(session)
        self._work()

    def _tell_staged(self, session: WorkerSession) -> None:
        if self._primary is not None and session.staged:
            has = Has(
                rank=session.rank,
                incarnation=session.incarnation,
                question=session.staged,
            )
            self._replication.send(self._primary, has)

    def _worker_gone(self, peer: Peer, reason: str) -> None:
        """A worker may return; number 0 decides when it is gone."""

    def _other_gone(self, peer: Peer) -> None:
        if peer is self._primary:
            self._primary = None
            self._mention(Unordered(shard=self.spec.shard))

    # ------------------------------------------------------------ controller

    def _command(self, command: Command, body: memoryview) -> None:
        if isinstance(command, Follow):
            self._follow(command.order, FOLLOW_S)

    def report(self, report: Report, *body: bytes) -> None:
        """Reports this part to the controller; number 0 reports all else."""
        if isinstance(report, VectorReport):
            super().report(report, *body)
