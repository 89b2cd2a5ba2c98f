"""The server: carries the sequencer's instructions out, on peers and vectors.

One thread: a message is checked, applied, committed and answered before the next
is looked at, which is what makes commits atomic. What is decided lies in
`sequencer.py`, what is computed in `center.py`, who is connected in
`connections.py`.
"""

from __future__ import annotations

import math
import socket
import time
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import final

from shoal.engine.bulk import Bulk, Sizes
from shoal.engine.center import Center
from shoal.engine.complaints import COMPLAINTS, read_doubt
from shoal.engine.connections import Connections, Listener, Peer
from shoal.engine.ledger import Piece
from shoal.engine.patience import PAUSE_S
from shoal.engine.reporter import FLUSH_S, Reporter
from shoal.engine.restart import Restart, pack_restart
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
from shoal.engine.slots import Slot, tag_of
from shoal.engine.strangers import Strangers
from shoal.engine.tls import Identity, server_context
from shoal.engine.wire import BadFrame, Head
from shoal.engine.words import failure, hint_of, names
from shoal.strategies.base import Facts, Strategy
from shoal.vectors import Vector


class StrategyFailed(Exception):
    """The strategy's own code raised; its text is for the user."""


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
        restart: What an earlier server left, None for the first.
        identity: For TLS, None for none.
    """

    secret: bytes = field(repr=False)
    strategy: Strategy
    rules: Rules
    sizes: Sizes
    vector: Vector
    statistics: Vector
    learning_rate: float | None = None
    restart: Restart | None = None
    identity: Identity | None = None


@final
class Server(Listener):
    """Serves one run on a listening socket until the controller ends it.

    Args:
        spec: What to serve.
        socket_: Bound and listening; the server owns it from now on.
    """

    def __init__(self, spec: ServerSpec, socket_: socket.socket) -> None:
        self.spec = spec
        restart = spec.restart
        self.sequencer = (
            Sequencer(spec.rules)
            if restart is None
            else restart.open_sequencer(spec.rules)
        )
        self.center = Center(spec.strategy, spec.vector, spec.statistics)
        self._learning_rate = spec.learning_rate
        self._blob = b"" if restart is None else restart.blob
        self._is_state_wanted = self._is_center_wanted = False
        self._is_whole_wanted = False
        self._published = self._doubt = 0
        self._saved = (self.center.vector.copy(), self.center.statistics.copy())
        self._workers: dict[int, Peer] = {}
        self._strangers = Strangers()
        self._is_running = True
        limit = (1 << 16) + 16 * (spec.sizes.slot_bytes + (1 << 20))
        tls = None if spec.identity is None else server_context(spec.identity)
        self._connections = Connections(socket_, spec.secret, limit, self, tls)
        self._reporter = Reporter(self._connections, spec.sizes.metrics)
        if restart is not None:
            restart.fill(self.center, self._reporter.accounts)
            self._saved = (self.center.vector.copy(), self.center.statistics.copy())
            self._published = self.sequencer.version

    # -------------------------------------------------------------- the loop

    def run(self) -> None:
        """Serves until the controller says stop, or is gone."""
        try:
            while self._is_running:
                self._turn()
        except StrategyFailed as error:
            self._reporter.tell({"kind": "broken", "reason": str(error)})
        finally:
            self.close()

    def _turn(self) -> None:
        before = time.monotonic()
        self._connections.serve(FLUSH_S)
        if self._reporter.is_due:
            self._reporter.flush()
            self._connections.drop_strangers()
            self._tell_of_strangers()
            self._drop_hung(before)

    def _drop_hung(self, before: float) -> None:
        """Drops workers that are silent for too long, by their own measure.

        Args:
            before: When the server last looked; it may have been stopped since.
        """
        now = time.monotonic()
        for peer in list(self._workers.values()):
            if now - before > PAUSE_S:
                peer.patience.forgive(now - before)
            elif peer.patience.is_over(now):
                limit_s = peer.patience.limit_s
                reason = f"hung: silent for more than {limit_s:.1f} s"
                peer.is_hung = True
                self._connections.drop(peer, reason)

    def close(self) -> None:
        """Closes every connection and gives every slot back."""
        self._reporter.flush()
        self._is_running = False
        self._connections.close()

    def on_gone(self, peer: Peer, reason: str) -> None:
        """A connection is closed: the sequencer hears of it, nothing else changes."""
        if peer is self._reporter.controller:
            self._reporter.controller, self._is_running = None, False
        elif peer.role == "worker":
            if self._workers.get(peer.rank) is peer:
                del self._workers[peer.rank]
            self.center.forget(peer.rank)
            rows = self.sequencer.ledger.held_rows(peer.rank)
            self._reporter.tell(
                {"kind": "left", "rank": peer.rank, "incarnation": peer.incarnation,
                 "reason": reason, "rows": rows, "is_hung": peer.is_hung}
            )  # fmt: skip
            self._carry_out(self.sequencer.leave(peer.rank, peer.incarnation))
        elif not peer.role and self._is_running:
            self._strangers.note(peer.name, reason)
            self._tell_of_strangers()

    def _tell_of_strangers(self) -> None:
        found = self._strangers.take(time.monotonic())
        if found is not None:
            self._reporter.tell(found)

    # ------------------------------------------------------------- messages

    def on_frame(self, peer: Peer, head: Head, body: memoryview) -> None:
        """One message; anything malformed counts as a bad frame."""
        try:
            receive = {
                "": self._greet,
                "controller": self._obey,
                "worker": self._hear,
            }[peer.role]
            receive(peer, head, body)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise BadFrame(f"{head['kind']!r:.40}: {error!r:.200}") from error

    def _greet(self, peer: Peer, head: Head, _body: memoryview) -> None:
        if head["kind"] == "control" and peer.channel.is_commander:
            peer.role = "controller"
            self._reporter.attach(peer)
            if self.spec.restart is not None:
                self._tell_rollback(self.sequencer.lineage)
        elif head["kind"] == "join":
            self._welcome(peer, head)
        else:
            raise BadFrame(f"first frame is {head['kind']!r:.40}")

    def _welcome(self, peer: Peer, head: Head) -> None:
        sizes = self.spec.sizes
        if head["digest"] != sizes.digest or head["metrics"] != sizes.metrics:
            self._connections.send(
                peer, {"kind": "refused", "reason": "another model layout"}
            )
            self._reporter.tell({"kind": "mismatch", "node": names(head)["node"]})
            return
        known = names(head)
        member = self.sequencer.join(hint_of(head))
        peer.role, peer.head = "worker", head
        peer.rank, peer.incarnation = member.rank, member.incarnation
        self._workers[member.rank] = peer
        tag = tag_of(self.spec.secret)
        made = Slot.make(sizes.slot_bytes, tag) if head["wants_slot"] else None
        offer = None
        if made is not None:
            peer.offer = made[0]
            offer = {"path": str(made[0].path), "mark": made[1]}
        self._connections.send(
            peer,
            {"kind": "welcome", "rank": member.rank, "incarnation": member.incarnation,
             "slot": offer, **self._state()},
            self.center.vector.tobytes(), self.center.statistics.tobytes(), self._blob,
        )  # fmt: skip
        peer.patience.answered(time.monotonic())
        self._reporter.tell(
            {"kind": "joined", "rank": member.rank, "incarnation": member.incarnation,
             **known}
        )  # fmt: skip

    def _hear(self, peer: Peer, head: Head, body: memoryview) -> None:
        rank, incarnation = peer.rank, peer.incarnation
        kind = head["kind"]
        if kind != "slot":
            peer.patience.heard(time.monotonic(), is_ready=kind == "ready")
        if kind == "push":
            self._push(peer, head)
        elif kind == "need":
            self._carry_out(self.sequencer.need(rank, incarnation))
        elif kind == "slot":
            self._settle(peer, is_shared=bool(head["is_shared"]))
        elif kind == "ready":
            peer.the_bulk()
            self._reporter.tell(
                {"kind": "ready", "rank": rank, "incarnation": incarnation}
            )
            self._carry_out(self.sequencer.ready(rank, incarnation))
        elif kind == "snapshot":
            self._publish(peer, body)
        elif kind == "failed":
            said = {"kind": kind, **failure(head)}
            self._reporter.tell({**said, "rank": rank, "incarnation": incarnation})
        elif kind in COMPLAINTS:
            said = {"kind": kind, **COMPLAINTS[kind](head)}
            self._reporter.tell({**said, "rank": rank, "incarnation": incarnation})
        else:
            raise BadFrame(f"unknown message {kind!r:.40}")

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
        peer.the_bulk()
        times = [float(seconds) for seconds in head["times"]]
        compute_s, data_s, wait_s, exchange_s = times
        peer.head = {
            **head,
            "times": [compute_s, data_s, wait_s, exchange_s],
            "doubt": read_doubt(head),
        }
        samples, steps = float(head["samples"]), int(head["steps"])
        if steps < 1 or not (math.isfinite(samples) and samples >= 0):
            raise ValueError(f"{steps} steps of {samples} samples")
        push = Push(
            rank=peer.rank,
            incarnation=peer.incarnation,
            lineage=int(head["lineage"]),
            sequence=int(head["sequence"]),
            pieces=tuple(Piece(*map(int, piece)) for piece in head["pieces"]),
            steps=steps,
            samples=samples,
        )
        self._carry_out(self.sequencer.push(push))

    def _publish(self, peer: Peer, body: memoryview) -> None:
        """A gang member's whole state becomes the center."""
        bulk = peer.the_bulk()
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
            self._reporter.accounts.save()
            self._published = self.sequencer.version
        # First of all the ledger of this moment is saved: it goes with the center.
        later = self.sequencer.published(peer.rank, peer.incarnation)
        self._send_center()
        if self._is_state_wanted:
            self._send_state()
        self._carry_out(later)
        self._connections.send(peer, {"kind": "stored", **self._state()})
        peer.patience.answered(time.monotonic())

    # --------------------------------------------------------- instructions

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for place, instruction in enumerate(instructions):
            match instruction:
                case Apply():
                    self._apply(instruction)
                case Merge():
                    self._merge(instruction, instructions[place + 1 :])
                case Answer():
                    self._answer(instruction)
                case Refuse(rank, incarnation, reason):
                    peer = self._workers.get(rank)
                    if peer is not None and peer.incarnation == incarnation:
                        refusal = {"kind": "refused", "reason": reason}
                        self._connections.send(peer, refusal)
                case EpochDone(epoch):
                    self._end_epoch(epoch)
                case Rollback(lineage):
                    self.center.vector[:], self.center.statistics[:] = self._saved
                    self._reporter.accounts.restore()
                    self._tell_rollback(lineage)

    def _tell_rollback(self, lineage: int) -> None:
        """What was counted since the snapshot is not committed any more."""
        ledger = self.sequencer.ledger
        committed = {str(e): ledger.committed(e) for e in ledger.epochs}
        self._reporter.tell(
            {"kind": "rollback", "lineage": lineage, "clock": self.sequencer.clock,
             "committed": committed}
        )  # fmt: skip

    def _apply(self, apply: Apply) -> None:
        peer = self._workers[apply.rank]
        bulk = peer.the_bulk()
        with self._strategy_at_work():
            self.center.apply(
                apply.rank,
                bulk.message,
                bulk.message_statistics,
                apply.facts,
                bulk.reply,
            )
        self._note({apply.rank: apply.facts})

    def _merge(self, merge: Merge, later: list[Instruction]) -> None:
        bulks = {rank: self._workers[rank].the_bulk() for rank in merge.facts}
        targets = [
            self._workers[answer.rank].the_bulk()
            for answer in later
            if isinstance(answer, Answer) and answer.body == "reply"
        ]

        def write(rank: int, part: slice, values: Vector) -> None:
            for bulk in targets if rank < 0 else [bulks[rank]]:
                bulk.reply[part] = values

        with self._strategy_at_work():
            self.center.merge(
                {rank: bulk.message for rank, bulk in bulks.items()},
                {rank: bulk.message_statistics for rank, bulk in bulks.items()},
                merge.facts,
                write,
            )
        doubts = [int(self._workers[rank].head["doubt"]) for rank in merge.facts]
        self._doubt = max(doubts, default=0)
        self._note(merge.facts)

    def _note(self, found: dict[int, Facts]) -> None:
        self._reporter.note(found, self._workers, self.sequencer.version)

    @contextmanager
    def _strategy_at_work(self) -> Generator[None]:
        """Its samples are committed: an error in here ends the run, no worker."""
        try:
            yield
        except Exception as error:
            name = self.spec.strategy.name
            raise StrategyFailed(
                f"strategy {name!r} raised {type(error).__name__}: {error} on the "
                "server. Its arithmetic must take every message of its own workers. "
                "Correct the strategy, with the laws of shoal.testing perhaps; its "
                f"traceback:\n{traceback.format_exc()}"
            ) from error

    def _answer(self, answer: Answer) -> None:
        peer = self._workers[answer.rank]
        peer.patience.answered(time.monotonic())
        head = {"kind": answer.kind, "body": answer.body, **self._state()}
        head["pieces"], head["doubt"] = answer.pieces, self._doubt
        head["publish"] = answer.kind == "publish" or self.sequencer.asked(answer.rank)
        if answer.body == "none":
            self._connections.send(peer, head)
            return
        bulk = peer.the_bulk()
        if answer.body != "reply":
            bulk.reply[:] = self.center.vector
        bulk.reply_statistics[:] = self.center.statistics
        blob = self._blob if answer.body == "snapshot" else b""
        self._connections.send(peer, head, bulk.inline_down, blob)

    def _state(self) -> Head:
        """What every answer tells."""
        return {
            "version": self.sequencer.version,
            "lineage": self.sequencer.lineage,
            "clock": self.sequencer.clock,
            "workers": max(1, len(self._workers)),
            "lr": self._learning_rate,
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
        elif kind == "finish":
            self._carry_out(self.sequencer.finish())
        elif kind == "stop":
            self._is_running = False
        else:
            self._inform(kind)

    def _inform(self, kind: str) -> None:
        """The controller wants to know something."""
        if kind == "center":
            self._give_center()
        elif kind == "state":
            self._give_state()
        elif kind == "checkpoint":
            self._give_center(is_whole=True)
        elif kind == "ping":
            self._reporter.tell({"kind": "pong"})
        else:
            raise BadFrame(f"unknown command {kind!r}")

    def _give_center(self, *, is_whole: bool = False) -> None:
        """Tells the controller the center; in a gang some worker publishes it first.

        Args:
            is_whole: With all that another server would need to go on.
        """
        self._is_whole_wanted |= is_whole
        self._is_center_wanted |= not is_whole
        has_ready = any(m.is_ready for m in self.sequencer.members.values())
        is_old = self._published != self.sequencer.version
        if self.spec.rules.is_gang and has_ready and is_old:
            self._carry_out(self.sequencer.ask())
        else:
            self._send_center()

    def _send_center(self) -> None:
        """Tells the controller what it waits for, if it does."""
        if self._is_whole_wanted:
            self._is_whole_wanted = False
            accounts = self._reporter.accounts
            head, body = pack_restart(self.sequencer, self.center, accounts, self._blob)
            self._reporter.tell(head, *body)
        if not self._is_center_wanted:
            return
        self._is_center_wanted = False
        ledger = self.sequencer.ledger
        samples = sum(ledger.committed(epoch) for epoch in ledger.epochs)
        self._show_center({"kind": "center", "samples": samples})

    def _give_state(self) -> None:
        """The controller wants one worker's optimizer state, at the end of a run."""
        self._is_state_wanted = True
        if self.spec.rules.is_gang and self._blob:
            self._send_state()
        else:
            self._carry_out(self.sequencer.ask())

    def _send_state(self) -> None:
        self._is_state_wanted = False
        self._reporter.tell({"kind": "optimizer"}, self._blob)

    def _end_epoch(self, epoch: int) -> None:
        rows = self.sequencer.ledger.committed(epoch)
        self._show_center({"kind": "epoch", "epoch": epoch, "rows": rows}, epoch)

    def _show_center(self, head: Head, epoch: int | None = None) -> None:
        center, sizes = self.center, self.spec.sizes
        lengths = {"size": sizes.vector, "statistics": sizes.statistics}
        head = {**head, **self._state(), **lengths}
        self._reporter.show_center(head, center.vector, center.statistics, epoch)
