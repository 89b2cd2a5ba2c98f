"""The server: carries the sequencer's instructions out, on sockets and vectors.

One thread, one selector: a message is checked, applied, committed and answered
before the next is looked at, which is what makes commits atomic. What is decided
lies in `sequencer.py`, what is computed in `center.py`.
"""

from __future__ import annotations

import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.engine.bulk import Bulk, Sizes
from shoal.engine.center import Center
from shoal.engine.ledger import Piece
from shoal.engine.sequencer import (
    Answer,
    Apply,
    EpochDone,
    Instruction,
    Merge,
    Push,
    Refuse,
    Rollback,
    Rules,
    Sequencer,
)
from shoal.engine.slots import Slot
from shoal.engine.wire import GREETING_TIMEOUT_S, BadFrame, Channel, Head
from shoal.strategies.base import Strategy
from shoal.vectors import Vector

MAX_CONNECTIONS = 4096
FLUSH_S = 0.1
SMALL_METRICS = 16  # numbers of metric state that ride with every record


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """What a server process is given.

    Args:
        secret: Of the run, 32 bytes.
        strategy: Whose arithmetic runs.
        rules: Of the sequencer.
        sizes: Of the vectors.
        vector: Initial weights.
        statistics: Initial statistics.
        learning_rate: Where the driver's optimizer stands, None for a schedule.
    """

    secret: bytes
    strategy: Strategy
    rules: Rules
    sizes: Sizes
    vector: Vector
    statistics: Vector
    learning_rate: float | None = None


@dataclass
class Peer:
    """One connection and what is known of its other end."""

    channel: Channel
    name: str
    role: str = ""
    rank: int = -1
    incarnation: int = 0
    bulk: Bulk | None = None
    offer: Slot | None = None
    head: Head = field(default_factory=dict[str, Any])
    asked_at: float = 0.0


class Server:
    """Serves one run on a listening socket until the controller ends it.

    Args:
        spec: What to serve.
        listener: A bound, listening socket; the server owns it from now on.
    """

    def __init__(self, spec: ServerSpec, listener: socket.socket) -> None:
        self.spec = spec
        self.sequencer = Sequencer(spec.rules)
        self.center = Center(spec.strategy, spec.vector, spec.statistics)
        self._learning_rate = spec.learning_rate
        self._blob = b""
        self._is_state_wanted = self._is_center_wanted = False
        self._published = 0
        self._metrics: dict[int, np.ndarray[Any, Any]] = {}
        self._saved = (self.center.vector.copy(), self.center.statistics.copy())
        self._saved_metrics: dict[int, np.ndarray[Any, Any]] = {}
        self._workers: dict[int, Peer] = {}
        self._controller: Peer | None = None
        self._peers: dict[int, Peer] = {}
        self._lost: list[tuple[Peer, str]] = []
        self._records: list[list[Any]] = []
        self._flushed = self._began = time.monotonic()
        self._is_running = True
        self._listener = listener
        listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, None)

    # -------------------------------------------------------------- the loop

    def run(self) -> None:
        """Serves until the controller says stop, or is gone."""
        try:
            while self._is_running:
                self._turn()
        finally:
            self.close()

    def _turn(self) -> None:
        for key, mask in self._selector.select(FLUSH_S):
            peer: Peer | None = key.data
            if peer is None:
                self._accept()
            elif self._peers.get(key.fd) is peer:
                self._attend(peer, mask)
            self._drop_lost()
        now = time.monotonic()
        if now - self._flushed >= FLUSH_S:
            self._flush(now)
            late = now - GREETING_TIMEOUT_S
            for peer in list(self._peers.values()):
                if not peer.channel.is_proven and peer.channel.accepted < late:
                    self._drop(peer, "no proof of the secret in time")

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except OSError:
            return
        if len(self._peers) >= MAX_CONNECTIONS:
            connection.close()
            return
        sizes, limit = self.spec.sizes, 1 << 16
        channel = Channel(connection, self.spec.secret, max_body_bytes=limit)
        channel.max_body_bytes = limit + 16 * (sizes.slot_bytes + (1 << 20))
        peer = Peer(channel=channel, name=str(address))
        self._peers[connection.fileno()] = peer
        self._selector.register(connection, selectors.EVENT_READ, peer)
        self._send_rest(peer)

    def _attend(self, peer: Peer, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                peer.channel.flush()
            if mask & selectors.EVENT_READ:
                for head, body in peer.channel.read():
                    self._receive(peer, head, body)
        except BadFrame as error:
            self._drop(peer, f"bad frame: {error}")
        except OSError as error:
            self._drop(peer, str(error) or "connection lost")
        else:
            self._send_rest(peer)

    def _send(self, peer: Peer, head: Head, *body: memoryview | bytes) -> None:
        """Sends one frame, or finds that its peer is gone.

        A peer is dropped only between two messages: whoever is gone must not be
        mistaken for the sender of the message that is answered, nor change the
        order of what is carried out.
        """
        try:
            peer.channel.send(head, *body)
        except OSError as error:
            self._lost.append((peer, str(error) or "connection lost"))
            return
        self._send_rest(peer)

    def _drop_lost(self) -> None:
        while self._lost:
            self._drop(*self._lost.pop(0))

    def _send_rest(self, peer: Peer) -> None:
        """Watches for room in the socket only while something waits."""
        connection = peer.channel.socket
        if connection.fileno() < 0:
            return
        try:
            peer.channel.flush()
        except OSError as error:
            self._lost.append((peer, str(error) or "connection lost"))
            return
        wanted = selectors.EVENT_READ
        if peer.channel.has_output:
            wanted |= selectors.EVENT_WRITE
        if self._selector.get_key(connection).events != wanted:
            self._selector.modify(connection, wanted, peer)

    def _drop(self, peer: Peer, reason: str) -> None:
        """Closes one connection and tells the sequencer; nothing else is touched."""
        connection = peer.channel.socket
        if self._peers.pop(connection.fileno(), None) is None:
            return
        self._selector.unregister(connection)
        peer.channel.close()
        for bulk in (peer.bulk, peer.offer):
            if bulk is not None:
                bulk.close()
        peer.bulk = peer.offer = None
        if peer is self._controller:
            self._controller, self._is_running = None, False
        elif peer.role == "worker":
            if self._workers.get(peer.rank) is peer:
                del self._workers[peer.rank]
            self.center.forget(peer.rank)
            rows = self.sequencer.ledger.held_rows(peer.rank)
            self._notify(
                {"kind": "left", "rank": peer.rank, "incarnation": peer.incarnation,
                 "reason": reason, "rows": rows}
            )  # fmt: skip
            self._carry_out(self.sequencer.leave(peer.rank, peer.incarnation))
        elif not peer.channel.is_proven:
            self._notify({"kind": "stranger", "peer": peer.name, "reason": reason})

    def close(self) -> None:
        """Closes every connection and gives every slot back."""
        self._flush(time.monotonic())
        self._is_running = False
        for peer in list(self._peers.values()):
            peer.role = ""
            self._drop(peer, "the run is over")
        self._selector.close()
        self._listener.close()

    # ------------------------------------------------------------- messages

    def _receive(self, peer: Peer, head: Head, body: memoryview) -> None:
        """One message; anything malformed counts as a bad frame."""
        try:
            receive = {
                "": self._greet,
                "controller": self._obey,
                "worker": self._hear,
            }[peer.role]
            receive(peer, head, body)
        except (KeyError, TypeError, ValueError) as error:
            raise BadFrame(f"{head.get('kind')}: {error!r}") from error

    def _greet(self, peer: Peer, head: Head, _body: memoryview) -> None:
        if head["kind"] == "control":
            peer.role, self._controller = "controller", peer
        elif head["kind"] == "join":
            self._welcome(peer, head)
        else:
            raise BadFrame(f"first frame is {head['kind']!r}")

    def _welcome(self, peer: Peer, head: Head) -> None:
        sizes = self.spec.sizes
        if head["digest"] != sizes.digest or head["metrics"] != sizes.metrics:
            self._send(peer, {"kind": "refused", "reason": "another model layout"})
            self._notify({"kind": "mismatch", "node": str(head["node"])})
            return
        member = self.sequencer.join(int(head["hint"]))
        peer.role, peer.head = "worker", head
        peer.rank, peer.incarnation = member.rank, member.incarnation
        self._workers[member.rank] = peer
        made = Slot.make(sizes.slot_bytes) if head["wants_slot"] else None
        offer = None
        if made is not None:
            peer.offer = made[0]
            offer = {"path": str(made[0].path), "mark": made[1]}
        self._send(
            peer,
            {"kind": "welcome", "rank": member.rank, "incarnation": member.incarnation,
             "slot": offer, **self._state()},
            self.center.vector.tobytes(), self.center.statistics.tobytes(),
        )  # fmt: skip
        self._notify(
            {"kind": "joined", "rank": member.rank, "incarnation": member.incarnation,
             "pid": head["pid"], "node": head["node"], "token": head["token"]}
        )  # fmt: skip

    def _hear(self, peer: Peer, head: Head, body: memoryview) -> None:
        rank, incarnation = peer.rank, peer.incarnation
        kind = head["kind"]
        if kind == "push":
            self._push(peer, head)
        elif kind == "need":
            peer.asked_at = time.monotonic()
            self._carry_out(self.sequencer.need(rank, incarnation))
        elif kind == "slot":
            self._settle(peer, is_shared=bool(head["is_shared"]))
        elif kind == "ready":
            peer.asked_at = time.monotonic()
            self._notify({"kind": "ready", "rank": rank, "incarnation": incarnation})
            self._carry_out(self.sequencer.ready(rank, incarnation))
        elif kind == "snapshot":
            self._publish(peer, body)
        elif kind == "failed":
            self._notify({**head, "rank": rank, "incarnation": incarnation})
        else:
            raise BadFrame(f"unknown message {kind!r}")

    def _settle(self, peer: Peer, *, is_shared: bool) -> None:
        """The worker has mapped its slot or cannot; the name is not needed again."""
        if peer.bulk is not None:
            raise BadFrame("a slot that is settled already")
        slot, peer.offer = peer.offer, None
        if slot is not None:
            slot.unlink()
            if not is_shared:
                slot.close()
                slot = None
        peer.bulk = Bulk(self.spec.sizes, slot)
        peer.channel.inbox = peer.bulk.up if slot is None else None

    def _push(self, peer: Peer, head: Head) -> None:
        self._bulk(peer)
        compute_s, data_s, wait_s, exchange_s = map(float, head["times"])
        peer.head = {**head, "times": [compute_s, data_s, wait_s, exchange_s]}
        pieces = tuple(Piece(*map(int, piece)) for piece in head["pieces"])
        push = Push(
            rank=peer.rank,
            incarnation=peer.incarnation,
            lineage=int(head["lineage"]),
            sequence=int(head["sequence"]),
            pieces=pieces,
            steps=int(head["steps"]),
            samples=float(head["samples"]),
        )
        self._carry_out(self.sequencer.push(push))

    def _publish(self, peer: Peer, body: memoryview) -> None:
        """A gang member's whole state becomes the center."""
        bulk = self._bulk(peer)
        if self.sequencer.publisher != peer.rank:
            raise BadFrame("a snapshot that nobody asked for")
        skip = len(bulk.inline_up)
        if len(body) > skip:  # too long for where messages are received
            bulk.inline_up[:] = body[:skip]
        self._blob = bytes(body[skip:])
        if self.spec.rules.is_gang:
            self.center.vector[:] = bulk.message
            self.center.statistics[:] = bulk.message_statistics
            self._saved = (self.center.vector.copy(), self.center.statistics.copy())
            self._saved_metrics = {e: m.copy() for e, m in self._metrics.items()}
            self._published = self.sequencer.version
        if self._is_center_wanted:
            self._send_center()
        if self._is_state_wanted:
            self._send_state()
        self._carry_out(self.sequencer.published(peer.rank, peer.incarnation))
        self._send(peer, {"kind": "stored", **self._state()})

    # --------------------------------------------------------- instructions

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for place, instruction in enumerate(instructions):
            match instruction:
                case Apply(rank, facts):
                    peer = self._workers[rank]
                    bulk = self._bulk(peer)
                    self.center.apply(
                        rank, bulk.message, bulk.message_statistics, facts, bulk.reply
                    )
                    self._record(peer, facts.staleness)
                case Merge():
                    self._merge(instruction, instructions[place + 1 :])
                case Answer():
                    self._answer(instruction)
                case Refuse(rank, incarnation, reason):
                    peer = self._workers.get(rank)
                    if peer is not None and peer.incarnation == incarnation:
                        self._send(peer, {"kind": "refused", "reason": reason})
                case EpochDone(epoch):
                    self._end_epoch(epoch)
                case Rollback(lineage):
                    self.center.vector[:], self.center.statistics[:] = self._saved
                    self._metrics = {
                        e: m.copy() for e, m in self._saved_metrics.items()
                    }
                    self._tell_rollback(lineage)

    def _tell_rollback(self, lineage: int) -> None:
        """What was counted since the snapshot is not committed any more."""
        ledger = self.sequencer.ledger
        committed = {str(e): ledger.committed(e) for e in ledger.epochs}
        self._notify(
            {"kind": "rollback", "lineage": lineage, "clock": self.sequencer.clock,
             "committed": committed}
        )  # fmt: skip

    def _bulk(self, peer: Peer) -> Bulk:
        if peer.bulk is None:
            raise BadFrame("a vector before the slot was settled")
        return peer.bulk

    def _merge(self, merge: Merge, later: list[Instruction]) -> None:
        bulks = {rank: self._bulk(self._workers[rank]) for rank in merge.facts}
        targets = [
            self._bulk(self._workers[answer.rank])
            for answer in later
            if isinstance(answer, Answer) and answer.body == "reply"
        ]

        def write(rank: int, part: slice, values: Vector) -> None:
            for bulk in targets if rank < 0 else [bulks[rank]]:
                bulk.reply[part] = values

        self.center.merge(
            {rank: bulk.message for rank, bulk in bulks.items()},
            {rank: bulk.message_statistics for rank, bulk in bulks.items()},
            merge.facts,
            write,
        )
        for rank, facts in merge.facts.items():
            self._record(self._workers[rank], facts.staleness)

    def _answer(self, answer: Answer) -> None:
        peer = self._workers[answer.rank]
        head = {"kind": answer.kind, "body": answer.body, **self._state()}
        head["pieces"] = answer.pieces
        head["publish"] = answer.kind == "publish" or self.sequencer.asked(answer.rank)
        if answer.body == "none":
            self._send(peer, head)
            return
        bulk = self._bulk(peer)
        if answer.body != "reply":
            bulk.reply[:] = self.center.vector
        bulk.reply_statistics[:] = self.center.statistics
        blob = self._blob if answer.body == "snapshot" else b""
        self._send(peer, head, bulk.inline_down, blob)

    def _state(self) -> Head:
        """What every answer tells."""
        return {
            "version": self.sequencer.version,
            "lineage": self.sequencer.lineage,
            "clock": self.sequencer.clock,
            "workers": max(1, len(self._workers)),
            "lr": self._learning_rate,
            "size": self.spec.sizes.vector,
        }

    # ------------------------------------------------------------ controller

    def _obey(self, _peer: Peer, head: Head, _body: memoryview) -> None:
        kind = head["kind"]
        if kind == "proceed":
            self._carry_out(self.sequencer.proceed(int(head["epoch"])))
        elif kind == "expect":
            self._carry_out(self.sequencer.expect(int(head["workers"])))
        elif kind == "halt":
            self._carry_out(self.sequencer.halt())
        elif kind == "learning_rate":
            self._learning_rate = head["value"]
        elif kind == "center":
            self._give_center()
        elif kind == "state":
            self._give_state()
        elif kind == "finish":
            self._carry_out(self.sequencer.finish())
        elif kind == "stop":
            self._is_running = False
        else:
            raise BadFrame(f"unknown command {kind!r}")

    def _give_center(self) -> None:
        """Tells the controller the center; in a gang some worker publishes it first."""
        has_ready = any(m.is_ready for m in self.sequencer.members.values())
        is_old = self._published != self.sequencer.version
        if self.spec.rules.is_gang and has_ready and is_old:
            self._is_center_wanted = True
            self._carry_out(self.sequencer.ask())
        else:
            self._send_center()

    def _send_center(self) -> None:
        self._is_center_wanted = False
        ledger = self.sequencer.ledger
        samples = sum(ledger.committed(epoch) for epoch in ledger.epochs)
        head = {"kind": "center", "samples": samples, **self._state()}
        self._notify(head, is_center=True)

    def _give_state(self) -> None:
        """The controller wants one worker's optimizer state, at the end of a run."""
        self._is_state_wanted = True
        if self.spec.rules.is_gang and self._blob:
            self._send_state()
        else:
            self._carry_out(self.sequencer.ask())

    def _send_state(self) -> None:
        self._is_state_wanted = False
        self._flush(time.monotonic())
        self._say({"kind": "optimizer"}, self._blob)

    def _record(self, peer: Peer, staleness: int) -> None:
        """Adds a push to the epoch's sums and to what the controller will hear."""
        head = peer.head
        epoch = int(head["pieces"][0][0])
        bulk = self._bulk(peer)
        sums = self._metrics.setdefault(epoch, np.zeros(self.spec.sizes.metrics))
        sums += bulk.metrics
        rows = sum(int(piece[2]) - int(piece[1]) for piece in head["pieces"])
        small = sums.tolist() if sums.size <= SMALL_METRICS else None
        self._records.append(
            [round(time.monotonic() - self._began, 6), peer.rank, epoch, rows,
             int(head["steps"]), self.sequencer.version, staleness, *head["times"],
             small]
        )  # fmt: skip

    def _flush(self, now: float) -> None:
        self._flushed = now
        if self._records and self._controller is not None:
            records, self._records = self._records, []
            sums = {}
            if self.spec.sizes.metrics > SMALL_METRICS:
                sums = {records[-1][2]: self._metrics[records[-1][2]].tolist()}
            self._say({"kind": "records", "records": records, "sums": sums})

    def _end_epoch(self, epoch: int) -> None:
        self._flush(time.monotonic())  # its last records tell of sums that go now
        sums = self._metrics.pop(epoch, np.zeros(self.spec.sizes.metrics))
        self._notify(
            {"kind": "epoch", "epoch": epoch, "metrics": sums.tolist(),
             "rows": self.sequencer.ledger.committed(epoch), **self._state()},
            is_center=True,
        )  # fmt: skip

    def _notify(self, head: Head, *, is_center: bool = False) -> None:
        """Tells the controller, after everything that happened before."""
        self._flush(time.monotonic())
        vectors = (self.center.vector, self.center.statistics) if is_center else ()
        self._say(head, *(vector.tobytes() for vector in vectors))

    def _say(self, head: Head, *body: bytes) -> None:
        peer = self._controller
        if peer is None:
            return
        try:
            peer.channel.send(head, *body)
        except OSError:
            return  # the loop will see that it is gone
        self._send_rest(peer)
