"""The server that orders events: from peers to the replica, and back.

Where several servers share the vector this is number 0: it decides the order of
events, and the others follow (`shard.py`).
"""

from __future__ import annotations

from typing import final

from shoal.engine.coordination.timeouts import PAUSE_S
from shoal.engine.environment import SYSTEM, Environment
from shoal.engine.server.base import FLUSH_S, BaseServer
from shoal.engine.server.replication import ENDED, FailoverState
from shoal.engine.server.session import WorkerSession
from shoal.engine.server.shard_peers import (
    JOINED_AGAIN,
    ShardPeers,
    SplitMessage,
    SplitMessages,
)
from shoal.engine.server.spec import ServerSpec
from shoal.engine.server.worker_slots import WorkerSlots
from shoal.engine.transport.client_connection import TURN_S
from shoal.engine.transport.fields import exactly
from shoal.engine.transport.listener import Connections, Peer
from shoal.engine.transport.messages.base import read
from shoal.engine.transport.messages.controller_to_server import (
    Command,
    RunCommand,
    WorkerEnded,
)
from shoal.engine.transport.messages.events import (
    Commanded,
    Event,
    Flush,
    Overdue,
    WorkerJoins,
    WorkerLeaves,
    WorkerSays,
)
from shoal.engine.transport.messages.server_to_controller import (
    Broken,
    Mismatch,
)
from shoal.engine.transport.messages.server_to_worker import (
    Answer,
    Done,
    ToWorker,
    Welcome,
    WelcomeBack,
)
from shoal.engine.transport.messages.shard import (
    FROM_SHARD,
    Has,
    Moving,
    ShardCalls,
)
from shoal.engine.transport.messages.standby import Took
from shoal.engine.transport.messages.worker_to_server import (
    Join,
    Push,
    Rejoin,
    SlotSettled,
    Snapshot,
    WorkerRequest,
)
from shoal.wire.frames import BadFrame, Head

SEE_OFF_S = 1.0  # most time for which a hung worker delays the end of a run


@final
class Primary(BaseServer):
    """Serves one run until the controller ends it.

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
        super().__init__(spec, connections, failover, environment)
        self._began = self._clock() - self.replica.at
        self._split_messages = SplitMessages(spec.others)
        self._shards = ShardPeers(spec.others, connections, self._replication)
        self._slots = WorkerSlots(spec, self._replication)

    # -------------------------------------------------------------- the loop

    def _see_off(self) -> None:
        """Serves until every worker has been told that the run is over.

        A worker that is kept for the next run of a `shoal.Session` needs this answer:
        without it, it would take the end of this server for a failure.
        """
        until = self._clock() + SEE_OFF_S
        while self._report_channel.controller is not None and self._has_work_out:
            left_s = until - self._clock()
            if left_s <= 0:
                break
            self._connections.serve(left_s)

    @property
    def _has_work_out(self) -> bool:
        """Whether a worker has not been told that the run is over."""
        answers = [self.replica.sessions[rank].answer for rank in self._workers]
        return any(answer and not isinstance(answer[0], Done) for answer in answers)

    def turn(self) -> None:
        """Handles what peers send, or waits for a moment; then looks at the clock."""
        before = self._clock()
        self._connections.serve(min(FLUSH_S, self._straggler_timeout.left_s(before)))
        if self._clock() - before > PAUSE_S:
            self._straggler_timeout.forgive(self._clock() - before)
        # Messages that came before were handled.
        if self._straggler_timeout.is_over(before):
            self._do(Overdue())
        if self._look():
            if self.replica.report_buffer.has_records:
                self._do(Flush())
            self._drop_hung(before)

    def _drop_hung(self, before: float) -> None:
        """Drops workers that are silent for too long, each by its own limit.

        Args:
            before: Time of the last look; the server may have been stopped since.
        """
        now = self._clock()
        pause_s = now - before
        self._straggler_timeout.forgive(self._replication.stalled_s())
        waiting = self._replication.waiting
        are_heard = self._shards.are_heard(now)
        for session in list(self.replica.sessions.values()):
            peer = self._workers.get(session.rank)
            if peer in waiting:
                session.liveness.answered(now)  # it waits for the standby
            elif not are_heard:  # it may wait for a shard
                session.liveness.seeks(now, within_s=TURN_S)
            elif peer is not None and peer.channel.has_moved():
                session.liveness.moves(now)
            elif pause_s > PAUSE_S:  # this server stood still, and has read nothing
                session.liveness.forgive(pause_s)
            elif session.liveness.is_over(now):
                limit_s = session.liveness.limit_s
                self._lose(session, f"hung: silent for more than {limit_s:.1f} s")
        self._standby_peer.look(pause_s)

    def _lose(self, session: WorkerSession, reason: str) -> None:
        """Drops a worker that hangs, or that has not returned after a failover."""
        peer = self._workers.get(session.rank)
        if peer is None:
            self._leave(session, reason, is_hung=True)
        else:
            peer.is_hung = True
            self._connections.drop(peer, reason)

    def close(self) -> None:
        """Closes every connection, and every worker's slot."""
        self._is_running = False
        if self.replica.report_buffer.has_records:
            self._do(Flush())
        super().close()

    def _tell_of_failure(self, report: Broken) -> None:
        self._carry_out(self.replica.tell(report))

    # ---------------------------------------------------------------- events

    def _do(
        self,
        event: Event,
        session: WorkerSession | None = None,
        blob: bytes | memoryview = b"",
    ) -> None:
        """Handles an event, here and on the standby.

        Args:
            event: The event.
            session: Session of the sender of vectors, else None.
            blob: Bytes that follow the event.
        """
        # Told to the standby and the other servers before it is handled: all compute at
        # the same time. Replies and reports of this event are held until the standby
        # has acknowledged it (decisions 14 and 21).
        at = round(self._clock() - self._began, 6)
        self._replication.log(event, at, session, blob)
        entry = self.replica.enter(event, at)
        self._shards.send(entry)
        self._carry_out(self.replica.handle(entry, blob))
        if self.spec.rules.quorum:
            self._straggler_timeout.look(
                self.replica.sequencer.round_progress, self._clock()
            )

    def answer(self, session: WorkerSession, message: ToWorker, blob: bytes) -> None:
        """Answers a worker; one without a connection repeats its message later."""
        peer = self._workers.get(session.rank)
        if peer is None or not peer.is_asking:
            return
        peer.is_asking = False
        if isinstance(message, Answer) and message.has_vectors:
            self._send_vectors(peer, session, message, blob)
        else:
            self._replication.send(peer, message, blob)

    def _worker_gone(self, peer: Peer, reason: str) -> None:
        self._leave(self.replica.sessions[peer.rank], reason, is_hung=peer.is_hung)

    def _leave(self, session: WorkerSession, reason: str, *, is_hung: bool) -> None:
        self._do(
            WorkerLeaves(
                rank=session.rank,
                incarnation=session.incarnation,
                reason=reason,
                is_hung=is_hung,
            )
        )
        self._split_messages.forget(session.rank, session.incarnation)
        session.buffers.close()

    # ------------------------------------------------------------- messages

    def _take_caller(self, peer: Peer, head: Head) -> bool:
        kind = head["kind"]
        if kind == Join.kind:
            self._welcome(peer, Join.parse(head))
        elif kind == Rejoin.kind:
            self._take_back(peer, Rejoin.parse(head))
        elif kind == ShardCalls.kind and peer.channel.is_commander:
            message = ShardCalls.parse(head)
            lacking = self.replica.event_log.after(message.have)
            self._shards.add(peer, message.number, lacking, self._clock())
        else:
            return False
        return True

    def _welcome(self, peer: Peer, message: Join) -> None:
        sizes, replica = self.spec.sizes, self.replica
        if (message.digest, message.metrics) != (sizes.digest, sizes.metrics):
            self._refuse(peer, "another model layout")
            self._mention(Mismatch(node=message.node))
            return
        for session in list(replica.sessions.values()):
            if session.token == message.token and session.token:
                self._forget(session, JOINED_AGAIN)  # it never received its welcome
        before = set(replica.sessions)
        self._do(
            WorkerJoins(
                hint=message.hint,
                pid=message.pid,
                node=message.node,
                token=message.token,
            )
        )
        [rank] = replica.sessions.keys() - before
        session = replica.sessions[rank]
        self._attach(peer, session)
        # Other workers may move the center before this one is ready; it gets the center
        # again then (`Member.is_stale`).
        center = replica.center
        welcome = Welcome(
            rank=rank,
            incarnation=peer.incarnation,
            slot=self._slots.offer(peer, session, wants_slot=message.wants_slot),
            state=replica.state(),
        )
        self._replication.send(
            peer,
            welcome,
            center.vector.tobytes(),
            center.statistics.tobytes(),
            replica.blob,
        )

    def _take_back(self, peer: Peer, message: Rejoin) -> None:
        """Attaches a worker again whose server was lost."""
        session = self.replica.sessions.get(message.rank)
        is_known = (
            session is not None
            and session.incarnation == message.incarnation
            and session.token == message.token
        )
        if session is None or not is_known or session.rank in self._workers:
            self._refuse(peer, "it has no place in the run any more")
            return
        self._attach(peer, session)
        slot = self._slots.offer(peer, session, wants_slot=message.wants_slot)
        self._connections.send(peer, WelcomeBack(slot=slot))

    def _hear(self, peer: Peer, head: Head, body: memoryview) -> None:
        if head["kind"] == SlotSettled.kind:
            exactly(body, 0, "a word without any")
            session = self.replica.sessions[peer.rank]
            is_shared = SlotSettled.parse(head).is_shared
            self._slots.settle(peer, session, is_shared=is_shared)
            return
        request = WorkerRequest.parse(head)
        if not peer.is_settled:
            raise BadFrame("a message before the slot was settled")
        session = self.replica.sessions[peer.rank]
        peer.is_asking = True
        # The worker has reconnected and sent its request again: its answer was lost, or
        # is not there yet. The request has been handled, and is not handled again.
        if request.number and request.number == session.question:
            if session.answer is None:
                session.liveness.waits()
            else:
                self.answer(session, *session.answer)
            return
        self._take(peer, session, request, body)

    def _take(
        self,
        peer: Peer,
        session: WorkerSession,
        request: WorkerRequest,
        body: memoryview,
    ) -> None:
        """Makes an event of a message, with its vectors if it has some."""
        message, sequencer = request.message, self.replica.sequencer
        is_snapshot = isinstance(message, Snapshot)
        is_asked = sequencer.publisher == peer.rank or sequencer.has_finished
        if is_snapshot and not is_asked:
            raise BadFrame("a snapshot that nobody asked for")
        is_push = isinstance(message, Push)
        has_vectors = is_push or (is_snapshot and self.spec.rules.exchanges_gradients)
        target = session.buffers.inline_up if has_vectors else memoryview(b"")
        if is_push and request.is_coded:
            if peer.vector_codec is None:
                raise BadFrame("a vector that is encoded, and was not to be")
            rest = body[peer.vector_codec.unpack(body) :]
        else:
            vectors, rest = body[: len(target)], body[len(target) :]
            exactly(vectors, len(target), "vectors")
            if len(target) and body.obj is not target.obj:
                # It was too long for the inbox, or came together with the message that
                # set the inbox.
                target[:] = vectors
        if not is_snapshot:
            exactly(rest, 0, "more than vectors")
        blob = rest if is_snapshot else b""
        event = WorkerSays(
            rank=session.rank,
            incarnation=session.incarnation,
            question=request.number,
            message=message,
            has_blob=len(blob) > 0,
        )
        if not has_vectors:
            self._do(event, None, blob)
        elif self._split_messages.add(SplitMessage(event, session, blob)):
            self._do(event, session, blob)

    # ---------------------------------------------------------- other servers

    def _hear_server(self, peer: Peer, head: Head, _body: memoryview) -> None:
        shard, sessions = peer.rank, self.replica.sessions
        self._shards.hear(shard, self._clock())
        match read(FROM_SHARD, head, "a shard"):
            case Took(number=number):
                event_log = self.replica.event_log
                # The standby has a log too, and drops what no shard lacks.
                if event_log.took(shard, number):
                    self._replication.note_shards(event_log.oldest)
            case Moving(ranks=ranks):
                for session in (sessions[rank] for rank in ranks if rank in sessions):
                    session.liveness.moves(self._clock())
            case Has(rank=rank, incarnation=incarnation, question=question):
                session = sessions.get(rank)
                if session is not None and session.incarnation == incarnation:
                    self._split_arrived(shard, rank, incarnation, question)

    def _split_arrived(
        self, shard: int, rank: int, incarnation: int, question: int
    ) -> None:
        """Handles a message when all of its parts have arrived."""
        complete = self._split_messages.arrived(shard, rank, incarnation, question)
        if complete is not None:
            self._do(complete.event, complete.session, complete.blob)

    def _other_gone(self, peer: Peer) -> None:
        self._shards.gone(peer)

    # ------------------------------------------------------------ controller

    def _command(self, command: Command, body: memoryview) -> None:
        if isinstance(command, WorkerEnded):
            for session in list(self.replica.sessions.values()):
                if session.token == command.token:
                    self._forget(session)
        elif isinstance(command, RunCommand):
            self._do(Commanded(command=command), None, body)
        else:
            raise BadFrame(f"{command.kind!r} to a server that leads")

    def _forget(self, session: WorkerSession, reason: str = ENDED) -> None:
        """Removes a worker that is not connected and will not return."""
        if session.rank not in self._workers:
            self._leave(session, reason, is_hung=False)

    def _start(self, failover: FailoverState | None) -> None:
        if failover is None:
            return
        now = self._clock()
        for session in list(self.replica.sessions.values()):
            # It may call at the address of the lost server, where nobody answers.
            session.liveness.returns(now, within_s=TURN_S)
            if session.token not in failover.lead.living:
                self._forget(session)
