"""A server of one part of the vector: another one says in which order things happen.

It takes its part of every message from the workers, and tells number 0 that it has it.
What number 0 then orders it carries out on its part, and answers the workers with it.
So all parts go through the same events, and nothing is committed that is not here.
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
from shoal.engine.transport.listener import Connections, Peer
from shoal.engine.transport.messages import exactly, whole
from shoal.engine.transport.partition import VECTORS
from shoal.errors import ShoalError
from shoal.wire.frames import BadFrame, Head

FOLLOW_S = 2.0  # for the greeting of number 0, which is known to be up
START_S = 60.0  # the same, of one that is just starting


@final
class Shard(BaseServer):
    """Serves one part until the controller ends it.

    Args:
        spec: What to serve.
        connections: Where peers call; owned from now on.
        handover: What a standby leaves to the shard it becomes; None for a new run.
        environment: Time, and connections that this server makes itself.
    """

    def __init__(
        self,
        spec: ServerSpec,
        connections: Connections,
        handover: FailoverState | None = None,
        environment: Environment = SYSTEM,
    ) -> None:
        super().__init__(spec, connections, handover, environment)
        self._order: Peer | None = None
        self._event_log: deque[LogEntry] = deque()
        self._attending: dict[Peer, Head] = {}
        self._took = -1

    # -------------------------------------------------------------- the loop

    def turn(self) -> None:
        """Hears whoever speaks, or waits for a moment; then looks at the clock."""
        before = self._clock()
        self._connections.serve(FLUSH_S)
        self._tell_progress()
        if self._look():
            pause_s = self._clock() - before
            self._standby_peer.look(pause_s if pause_s > PAUSE_S else 0.0)
            self._tell_moves()

    @property
    def _is_quiet(self) -> bool:
        """Whether nothing lies here that its standby could not be told."""
        return not self._event_log and super()._is_quiet

    def _tell_progress(self) -> None:
        """Number 0 need not keep what is known here, and to the standby."""
        order, number = self._order, self.replica.event_log.number
        if order is not None and number != self._took:
            self._took = number
            self._replication.send(order, {"kind": "took", "number": number})

    def _tell_moves(self) -> None:
        """Number 0 sees nothing of a message that is on its way to here."""
        moving = [r for r, p in self._workers.items() if p.channel.has_moved()]
        if moving and self._order is not None:
            self._connections.send(self._order, {"kind": "moved", "ranks": moving})

    def _start(self, handover: FailoverState | None) -> None:
        if handover is not None:
            address = handover.lead["order"]
            self._follow((str(address[0]), int(address[1])), FOLLOW_S)
        elif self.spec.order is not None:
            self._follow(self.spec.order, START_S)

    def _follow(self, address: tuple[str, int], limit_s: float) -> None:
        """Calls number 0, and tells which parts are here already."""
        before, self._order = self._order, None
        if before is not None:
            self._connections.drop(before, "another server leads")
        identity = self.spec.identity
        certificate = None if identity is None else identity.certificate
        # What was received of the one before, and waits, comes again.
        self._event_log.clear()
        try:
            link = self._environment.connect(
                address, self.spec.secret, certificate=certificate, timeout_s=limit_s
            )
            have = self.replica.event_log.number
            link.introduce({"kind": "shard", "number": self.spec.shard, "have": have})
        except (OSError, ShoalError):
            self._mention({"kind": "unordered", "shard": self.spec.shard})
            return
        self._order, self._took = self._connections.adopt(link, "order"), -1
        for session in self.replica.sessions.values():
            self._tell_staged(session)

    def _tell_of_failure(self, head: Head) -> None:
        self._report_channel.say(self._connections.send, head)

    # ---------------------------------------------------------------- orders

    def _hear_server(self, peer: Peer, head: Head, _body: memoryview) -> None:
        if head["kind"] != "order":
            raise BadFrame(f"{head['kind']!r:.40} of the server that orders")
        if peer is not self._order:
            return
        known = (
            self._event_log[-1].number
            if self._event_log
            else self.replica.event_log.number
        )
        number = whole(head["number"])
        if number > known + 1:
            raise BadFrame(f"order {number} after {known}")
        if number == known + 1:
            self._event_log.append(LogEntry(number, head["event"]))
            self._work()

    def _work(self) -> None:
        """Carries out what is ordered and whose vectors are here."""
        while self._event_log and self._has_vectors(self._event_log[0].event):
            event = self._event_log.popleft().event
            # Number 0 has the optimizer's state; here counts whether there is one.
            blob = b"\0" if event.get("has_blob") else b""
            self._replication.log(event, None, blob)
            # What number 0 could not carry out, this one cannot either.
            with suppress(ArithmeticError, LookupError, TypeError, ValueError):
                self.replica.handle(event, blob)
            if event["event"] == "join":
                self._seat_early()

    def _has_vectors(self, event: Head) -> bool:
        kind = event["event"]
        if kind != "push" and not (
            kind == "snapshot" and self.spec.rules.exchanges_gradients
        ):
            return True
        session = self.replica.sessions.get(event["rank"])
        if session is None or session.incarnation != event["incarnation"]:
            return True
        return session.staged >= event["question"]

    # --------------------------------------------------------------- workers

    def _take_caller(self, peer: Peer, head: Head) -> bool:
        if head["kind"] != "attend":
            return False
        if not self._attend(peer, head):
            waiting = self._attending.items()
            self._attending = {p: h for p, h in waiting if not p.is_gone}
            self._attending[peer] = head
        return True

    def _seat_early(self) -> None:
        """Whoever called before it was known here that it had joined."""
        waiting, self._attending = self._attending, {}
        for peer, head in waiting.items():
            if not peer.is_gone:
                self._connections.deliver_again(peer, head)

    def _attend(self, peer: Peer, head: Head) -> bool:
        """A worker that number 0 knows; False where it is not known here yet."""
        rank, incarnation = whole(head["rank"]), whole(head["incarnation"])
        question, wants_center = whole(head["question"]), bool(head["wants_center"])
        session = self.replica.sessions.get(rank)
        if session is None or session.incarnation < incarnation:
            return False
        if session.incarnation != incarnation or session.token != head["token"]:
            self._refuse(peer, "another process has its place")
            return True
        before = self._workers.pop(rank, None)
        if before is not None:
            self._connections.drop(before, "it called again")
        self._seat(peer, session)
        peer.vector_codec = connection_codec(
            session.buffers, self.spec.strategy, is_server=True
        )
        vector_codec = peer.vector_codec
        peer.channel.inbox = (
            session.buffers.up if vector_codec is None else vector_codec.landing
        )
        body = self.replica.center.vector.tobytes() if wants_center else b""
        self._replication.send(peer, {"kind": "seated"}, body)
        if session.answer is not None and session.question == question:
            self.answer(session, *session.answer)
        return True

    def answer(self, session: WorkerSession, head: Head, blob: bytes) -> None:
        """Sends a worker its part of an answer; all else number 0 tells it.

        That its part of a snapshot is stored is told as a part without a vector: the
        worker may write over it then.
        """
        peer, body = self._workers.get(session.rank), head.get("body", "none")
        if peer is None:
            return
        part = {"kind": "part", "question": session.question, "body": body}
        if body != "none":
            self._send_vectors(peer, session, part, b"")
        elif head["kind"] == "stored" and self.spec.rules.exchanges_gradients:
            self._replication.send(peer, {**part, "is_coded": False})

    def _hear(self, peer: Peer, head: Head, body: memoryview) -> None:
        """Its part of a message."""
        session = self.replica.sessions.get(peer.rank)
        if head["kind"] != "stage":
            raise BadFrame(f"{head['kind']!r:.40} of a worker, to a shard")
        if session is None or session.incarnation != peer.incarnation:
            return  # it is gone, as number 0 says
        question = whole(head["question"])
        if head.get("is_coded"):
            if peer.vector_codec is None:
                raise BadFrame("a vector that is encoded, and was not to be")
            exactly(body[peer.vector_codec.unpack(body) :], 0, "more than a part")
        else:
            part = exactly(body, len(session.buffers.up), "a part")
            if body.obj is not session.buffers.up.obj:
                session.buffers.up[:] = part
        session.staged = max(session.staged, question)
        event = {"event": "stage", "rank": session.rank, "staged": session.staged}
        self._replication.log(
            {**event, "incarnation": session.incarnation}, session, b""
        )
        self._replication.send(peer, {"kind": "kept", "question": question})
        self._tell_staged(session)
        self._work()

    def _tell_staged(self, session: WorkerSession) -> None:
        if self._order is not None and session.staged:
            self._replication.send(
                self._order,
                {
                    "kind": "has",
                    "rank": session.rank,
                    "incarnation": session.incarnation,
                    "question": session.staged,
                },
            )  # fmt: skip

    def _worker_gone(self, peer: Peer, reason: str) -> None:
        """It may come back; number 0 says when it is gone."""

    def _other_gone(self, peer: Peer) -> None:
        if peer is self._order:
            self._order = None
            self._mention({"kind": "unordered", "shard": self.spec.shard})

    # ------------------------------------------------------------ controller

    def _command(self, head: Head, body: memoryview) -> None:
        if head["kind"] == "follow":
            address = head["order"]
            self._follow((str(address[0]), int(address[1])), FOLLOW_S)

    def report(self, head: Head, *body: bytes) -> None:
        """Tells the controller of this part; of all else number 0 tells it."""
        if head["kind"] in VECTORS:
            super().report(head, *body)
