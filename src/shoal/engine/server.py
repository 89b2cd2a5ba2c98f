"""The server: brings what peers say to the machine, and back what it answers.

One thread: an event is handled before the next is looked at, which is what makes
commits atomic. What a run is lies in `machine.py`, who is connected in
`connections.py`, what a standby must know first in `mirror.py`.
"""

from __future__ import annotations

import socket
import time
from typing import final

from shoal.engine.bulk import Bulk
from shoal.engine.connections import Connections, Listener, Peer
from shoal.engine.fields import whole
from shoal.engine.frozen import pack
from shoal.engine.grace import Grace
from shoal.engine.handover import Handover
from shoal.engine.machine import Machine, ServerSpec, StrategyFailed
from shoal.engine.mirror import Mirror
from shoal.engine.parcels import parcels_of
from shoal.engine.patience import PAUSE_S
from shoal.engine.post import Post
from shoal.engine.relief import ENDED, Relief
from shoal.engine.reporter import Reporter
from shoal.engine.slots import Slot, tag_of
from shoal.engine.spread import InPairs
from shoal.engine.strangers import Strangers
from shoal.engine.tls import server_context
from shoal.engine.wire import BadFrame, Head
from shoal.engine.words import WORDS, hint_of, names

FLUSH_S = 0.1
SEE_OFF_S = 1.0  # most that a worker which hangs holds up the end of a run
JOINED_AGAIN = "it joined again"


def open_connections(spec: ServerSpec, socket_: socket.socket) -> Connections:
    """Listens for the peers of a run.

    Args:
        spec: Of the run.
        socket_: Bound and listening; it is owned from now on.
    """
    limit = (1 << 16) + 16 * (spec.sizes.slot_bytes + (1 << 20))
    tls = None if spec.identity is None else server_context(spec.identity)
    return Connections(socket_, spec.secret, limit, tls)


@final
class Server(Listener):
    """Serves one run until the controller ends it.

    Args:
        spec: What to serve.
        connections: Where peers call; the server owns it from now on.
        handover: What a standby leaves to the server it becomes; None for a new run.
    """

    def __init__(
        self,
        spec: ServerSpec,
        connections: Connections,
        handover: Handover | None = None,
    ) -> None:
        self.spec, self._handover = spec, handover
        self._connections = connections
        self._mirror = Mirror(connections)
        self._workers: dict[int, Peer] = {}
        self._strangers = Strangers()
        self._relief = Relief(connections, self._mirror, self._mention)
        self._is_running = True
        self._flushed = time.monotonic()
        if handover is None:
            self._reporter, self._grace = Reporter(), Grace()
            self.machine = Machine(spec, self)
        else:
            self._reporter, self._grace = handover.reporter, handover.grace
            self.machine = handover.machine
            self.machine.serve(self)
        self._began = time.monotonic() - self.machine.at
        self._spread = self.machine.center.spread = InPairs()
        connections.listener = self

    # -------------------------------------------------------------- the loop

    @property
    def is_running(self) -> bool:
        """Whether the controller is there, and has not said stop."""
        return self._is_running

    def run(self) -> None:
        """Serves until the controller says stop, or is gone."""
        try:
            self.begin()
            while self._is_running:
                self.turn()
            self._see_off()
        except StrategyFailed as error:
            self._mirror.end()
            self.machine.tell({"kind": "broken", "reason": str(error)})
        finally:
            self.close()

    def _see_off(self) -> None:
        """Whoever still works hears, with its next message, that the run is over.

        A worker of a session that were cut off could not wait for the next run.
        """
        until = time.monotonic() + SEE_OFF_S
        while self._reporter.controller is not None and self._has_work_out:
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
            self._connections.serve(left_s)

    @property
    def _has_work_out(self) -> bool:
        """Whether a worker was told of anything but the end, last."""
        answers = [self.machine.posts[rank].answer for rank in self._workers]
        return any(answer and answer[0]["kind"] != "done" for answer in answers)

    def turn(self) -> None:
        """Hears whoever speaks, or waits for a moment; then looks at the clock."""
        before = time.monotonic()
        self._connections.serve(min(FLUSH_S, self._grace.left_s(before)))
        if time.monotonic() - before > PAUSE_S:
            self._grace.forgive(time.monotonic() - before)
        if self._grace.is_over(before):  # and who spoke until then has been heard
            self._do({"event": "overdue"})
        if (
            self._relief.has_caller
            and self._reporter.controller is not None
            and self.machine.is_quiet
        ):
            self._relief.take(lambda: pack(self.machine.freeze()))
        if time.monotonic() - self._flushed >= FLUSH_S:
            self._flushed = time.monotonic()
            if self.machine.teller.has_records:
                self._do({"event": "flush"})
            self._connections.drop_strangers()
            self._tell_of_strangers()
            self._drop_hung(before)

    def _drop_hung(self, before: float) -> None:
        """Drops whoever is silent for too long, by its own measure.

        Args:
            before: When the server last looked; it may have been stopped since.
        """
        now = time.monotonic()
        pause_s = now - before
        self._grace.forgive(self._mirror.stalled_s())
        waiting = self._mirror.waiting
        for post in list(self.machine.posts.values()):
            peer = self._workers.get(post.rank)
            if peer in waiting:
                post.patience.answered(now)  # it will be, once the standby knows
            elif peer is not None and peer.channel.has_moved():
                post.patience.moves(now)
            elif pause_s > PAUSE_S:
                post.patience.forgive(pause_s)
            elif post.patience.is_over(now):
                limit_s = post.patience.limit_s
                self._lose(post, f"hung: silent for more than {limit_s:.1f} s")
        self._relief.look(pause_s)

    def _lose(self, post: Post, reason: str) -> None:
        """A worker hangs, or has not come back after its server was lost."""
        peer = self._workers.get(post.rank)
        if peer is None:
            self._leave(post, reason, is_hung=True)
        else:
            peer.is_hung = True
            self._connections.drop(peer, reason)

    def close(self) -> None:
        """Closes every connection and gives every slot back."""
        self._is_running = False
        if self.machine.teller.has_records:
            self._do({"event": "flush"})
        self._connections.close()
        self._spread.close()

    # ---------------------------------------------------------------- events

    def _do(
        self, event: Head, post: Post | None = None, blob: bytes | memoryview = b""
    ) -> None:
        """Handles an event, here and on the standby.

        Args:
            event: What happens.
            post: Whose vectors come with it, else None.
            blob: That comes with it.
        """
        event["at"] = round(time.monotonic() - self._began, 6)
        self._mirror.log(event, post, blob)
        self.machine.handle(event, blob)
        if self.spec.rules.quorum:
            self._grace.look(self.machine.sequencer.standing, time.monotonic())

    def answer(self, post: Post, head: Head, blob: bytes) -> None:
        """Answers a worker; one that is on its way back asks again."""
        peer = self._workers.get(post.rank)
        if peer is None or not peer.is_asking:
            return
        peer.is_asking = False
        if head.get("body", "none") == "none":
            self._mirror.send(peer, head, blob)
            return
        parts = (post.bulk.inline_down,)
        if peer.parcels is not None:
            coded = peer.parcels.pack() if head["body"] == "reply" else None
            parts, head = coded or parts, {**head, "is_coded": coded is not None}
            if head["body"] != "reply":
                peer.parcels.sent()
        self._mirror.send(peer, head, *parts, blob)

    def report(self, head: Head, *body: bytes) -> None:
        """Tells the controller what follows from events."""
        self._reporter.say(self._mirror.send, head, *body)

    def _mention(self, head: Head) -> None:
        """Tells the controller of something that is no part of the run's state."""
        self._reporter.say(self._connections.send, head)

    def on_gone(self, peer: Peer, reason: str) -> None:
        """A connection is closed: the machine hears of it, nothing else changes."""
        if peer is self._reporter.controller:
            self._reporter.controller, self._is_running = None, False
        elif peer.role == "worker":
            if self._workers.get(peer.rank) is peer:
                del self._workers[peer.rank]
                self._leave(self.machine.posts[peer.rank], reason, is_hung=peer.is_hung)
        elif peer.role == "standby":
            self._relief.gone(peer, reason)
        elif self._is_running and not (peer.role or peer.is_refused):
            self._strangers.note(peer.name, reason)
            self._tell_of_strangers()

    def _leave(self, post: Post, reason: str, *, is_hung: bool) -> None:
        self._do(
            {"event": "leave", "rank": post.rank, "incarnation": post.incarnation,
             "reason": reason, "is_hung": is_hung}
        )  # fmt: skip
        post.bulk.close()

    def _tell_of_strangers(self) -> None:
        found = self._strangers.take(time.monotonic())
        if found is not None:
            self._mention(found)

    # ------------------------------------------------------------- messages

    def on_frame(self, peer: Peer, head: Head, body: memoryview) -> None:
        """One message; anything malformed counts as a bad frame."""
        try:
            receive = {
                "": self._greet,
                "controller": self._obey,
                "worker": self._hear,
                "standby": self._relief.heed,
            }[peer.role]
            receive(peer, head, body)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise BadFrame(f"{head['kind']!r:.40}: {error!r:.200}") from error

    def _greet(self, peer: Peer, head: Head, _body: memoryview) -> None:
        kind, is_commander = head["kind"], peer.channel.is_commander
        if kind == "control" and is_commander:
            peer.role = "controller"
            heard = int(head.get("heard", 0))
            self._reporter.attach(self._mirror.send, peer, heard)
        elif kind == "standby" and is_commander:
            self._relief.called(peer, head)
        elif kind == "join":
            self._welcome(peer, head)
        elif kind == "rejoin":
            self._take_back(peer, head)
        else:
            raise BadFrame(f"first frame is {kind!r:.40}")

    def _welcome(self, peer: Peer, head: Head) -> None:
        sizes, known = self.spec.sizes, names(head)
        if head["digest"] != sizes.digest or head["metrics"] != sizes.metrics:
            self._refuse(peer, "another model layout")
            self._mention({"kind": "mismatch", "node": known["node"]})
            return
        hint, wants_slot = hint_of(head), bool(head["wants_slot"])
        for post in list(self.machine.posts.values()):  # it never heard that it had
            if post.token == known["token"] and post.token:
                self._forget(post, JOINED_AGAIN)
        peer.role = "worker"
        machine = self.machine
        before = set(machine.posts)
        self._do({"event": "join", "hint": hint, "known": known})
        [rank] = machine.posts.keys() - before
        self._seat(peer, machine.posts[rank])
        center = machine.center
        self._mirror.send(
            peer,
            {"kind": "welcome", "rank": rank, "incarnation": peer.incarnation,
             "slot": self._offer(peer, wants_slot=wants_slot), **machine.state()},
            center.vector.tobytes(), center.statistics.tobytes(), machine.blob,
        )  # fmt: skip

    def _take_back(self, peer: Peer, head: Head) -> None:
        """A worker whose server was lost goes on here."""
        post = self.machine.posts.get(whole(head["rank"]))
        is_known = (
            post is not None
            and post.incarnation == head["incarnation"]
            and post.token == head["token"]
        )
        if post is None or not is_known or post.rank in self._workers:
            self._refuse(peer, "it has no place in the run any more")
            return
        peer.role = "worker"
        self._seat(peer, post)
        slot = self._offer(peer, wants_slot=bool(head["wants_slot"]))
        self._connections.send(peer, {"kind": "again", "slot": slot})

    def _refuse(self, peer: Peer, reason: str) -> None:
        """Tells one that proved the secret; it stays under the limits of callers."""
        peer.is_refused = True
        self._connections.send(peer, {"kind": "refused", "reason": reason})

    def _seat(self, peer: Peer, post: Post) -> None:
        peer.rank, peer.incarnation = post.rank, post.incarnation
        self._workers[post.rank] = peer

    def _offer(self, peer: Peer, *, wants_slot: bool) -> dict[str, str] | None:
        """Shared memory for a worker that can map it, with its last message in it."""
        sizes = self.spec.sizes
        tag = tag_of(self.spec.secret)
        made = Slot.make(sizes.slot_bytes, tag) if wants_slot else None
        if made is None:
            return None
        slot, mark = made
        peer.offer = Bulk(sizes, slot)
        post = self.machine.posts[peer.rank]
        if post.question:
            peer.offer.up[:] = post.bulk.up
        return {"path": str(slot.path), "mark": mark}

    def _settle(self, peer: Peer, *, is_shared: bool) -> None:
        """The worker has mapped its slot or cannot; the name is not needed again."""
        if peer.is_settled:
            raise BadFrame("a slot that is settled already")
        offer, peer.offer = peer.offer, None
        post, peer.is_settled = self.machine.posts[peer.rank], True
        if offer is None or offer.slot is None or not is_shared:
            strategy = self.spec.strategy
            peer.parcels = parcels = parcels_of(post.bulk, strategy, is_server=True)
            peer.channel.inbox = post.bulk.up if parcels is None else parcels.landing
            if offer is not None:
                offer.close()
            return
        offer.slot.unlink()
        if post.question:
            offer.down[:] = post.bulk.down
        before, post.bulk = post.bulk, offer
        before.close()

    def _hear(self, peer: Peer, head: Head, body: memoryview) -> None:
        kind = head["kind"]
        if kind == "slot":
            self._settle(peer, is_shared=bool(head["is_shared"]))
            return
        if kind not in WORDS:
            raise BadFrame(f"unknown message {kind!r:.40}")
        if not peer.is_settled:
            raise BadFrame("a message before the slot was settled")
        said, post = WORDS[kind](head), self.machine.posts[peer.rank]
        peer.is_asking = True
        question = whole(head.get("question", 0))
        if question and question == post.question:
            if post.answer is None:
                post.patience.waits()
            else:
                self.answer(post, *post.answer)
            return
        is_snapshot = kind == "snapshot"
        sequencer = self.machine.sequencer
        is_asked = sequencer.publisher == peer.rank or sequencer.has_finished
        if is_snapshot and not is_asked:
            raise BadFrame("a snapshot that nobody asked for")
        has_vectors = kind == "push" or (is_snapshot and self.spec.rules.is_gang)
        target = post.bulk.inline_up if has_vectors else memoryview(b"")
        if kind == "push" and head.get("is_coded"):
            if peer.parcels is None:
                raise BadFrame("a vector that is encoded, and was not to be")
            body = body[peer.parcels.unpack(body) :]
        elif len(body) >= len(target) > 0 and body.obj is not target.obj:
            # Too long for where messages are received, or it came with the word
            # that settled where that is.
            target[:] = body[: len(target)]
        blob = body[len(target) :] if is_snapshot else b""
        event = {"event": kind, "rank": peer.rank, "incarnation": peer.incarnation}
        sender = post if has_vectors else None
        self._do({**event, "question": question, **said}, sender, blob)

    # ------------------------------------------------------------ controller

    def _obey(self, _peer: Peer, head: Head, _body: memoryview) -> None:
        kind = head["kind"]
        if "heard" in head:
            self._mirror.note(whole(head["heard"]))
        if kind == "stop":
            self._is_running = False
            self._mirror.end()
        elif kind == "ping":
            self._mention({"kind": "pong"})
        elif kind == "alone":
            self._relief.give_up(whole(head["generation"]))
        elif kind == "gone":
            for post in list(self.machine.posts.values()):
                if post.token == head["token"]:
                    self._forget(post)
        else:
            self._do({**head, "event": "command"})

    def _forget(self, post: Post, reason: str = ENDED) -> None:
        """A worker that is not connected will not come back."""
        if post.rank not in self._workers:
            self._leave(post, reason, is_hung=False)

    def begin(self) -> None:
        """Goes on where another server was lost, if one was.

        Raises:
            StrategyFailed: At an event that the other server may not have told of any
                more, or now.
        """
        handover = self._handover
        if handover is None:
            return
        heard = int(handover.lead["heard"])
        self._reporter.attach(self._mirror.send, handover.controller, heard)
        self._mention({"kind": "leads"})
        if handover.failure is not None:
            raise handover.failure
        now = time.monotonic()
        for post in list(self.machine.posts.values()):
            post.patience.answered(now)  # the next word is: here I am
            if post.token not in handover.lead["living"]:
                self._forget(post)
        for peer, head, _ in handover.callers:
            if not peer.is_gone:
                peer.role = "" if peer.role == "caller" else peer.role
                self._connections.deliver_again(peer, head)
