"""What a server keeps of a run and does with it: events in, answers and reports out.

The same events in the same order make the same machine, bit for bit, wherever it runs:
that is what a standby server lives on. So there is no socket in here, and no clock that
decides anything. What is decided lies in `sequencer.py`, what is computed in
`center.py`; this file carries the one out on the other.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol, final

from shoal.engine.coordination.instructions import (
    Answer,
    Apply,
    EpochDone,
    Instruction,
    Merge,
    Push,
    Refuse,
    Rollback,
    Ungroup,
)
from shoal.engine.coordination.ledger import Piece
from shoal.engine.coordination.sequencer import Sequencer
from shoal.engine.coordination.timeouts import LivenessTimeout
from shoal.engine.server.center import Center
from shoal.engine.server.event_log import EventLog, LogEntry
from shoal.engine.server.pending_requests import PendingRequests
from shoal.engine.server.reports import ReportBuffer, ReportOutlet
from shoal.engine.server.session import WorkerSession
from shoal.engine.server.spec import ServerSpec
from shoal.engine.transport.buffers import Buffers
from shoal.engine.transport.changes import STATISTICS, Changes
from shoal.strategies.base import Facts
from shoal.vectors import Vector
from shoal.wire.frames import Head

UNGROUPED = (
    "workers cannot average gradients among themselves; the logs of the workers say "
    "why. From now on the server does it, as with collective='server'."
)


class StrategyFailed(Exception):
    """The strategy's own code raised; its text is for the user."""


class Outlet(ReportOutlet, Protocol):
    """Where answers and reports go."""

    def answer(self, session: WorkerSession, head: Head, blob: bytes) -> None:
        """A worker is answered; vectors that go along are in its bulk."""

    def ordered(self, order: LogEntry) -> None:
        """An event is about to be handled; others that hold vectors may begin."""


@final
class Replica:
    """A run, as its server knows it.

    Args:
        spec: What to serve.
        outlet: Where answers and reports go.
        clock: Measures how long workers are silent; it decides nothing in here.
    """

    def __init__(
        self, spec: ServerSpec, outlet: Outlet, clock: Callable[[], float]
    ) -> None:
        self.spec, self._outlet, self._clock = spec, outlet, clock
        self.sessions: dict[int, WorkerSession] = {}
        self.at = 0.0
        """Seconds of the run at the last event."""
        self.report_buffer = ReportBuffer(spec.sizes, outlet, spec.losses)
        self.event_log = EventLog(spec.others)
        restart = spec.restart
        self.sequencer = (
            Sequencer(spec.rules)
            if restart is None
            else restart.open_sequencer(spec.rules)
        )
        start = (spec.vector, spec.statistics)
        if not spec.is_private:
            start = (spec.vector.copy(), spec.statistics.copy())
        self.center = Center(spec.strategy, *start)
        self.learning_rate = spec.learning_rate
        self.changes = Changes(dict(spec.changes.found))
        self._doubt = 0
        if restart is not None:
            restart.fill(self.center, self.report_buffer.epoch_totals)
            # Others are in what it left, and workers may have moved them since.
            fresh = self.changes.after(restart.changes)
            fresh.write_statistics(self.center.statistics)
        self._pending_requests = PendingRequests(
            self.center,
            self.report_buffer,
            self.state,
            version=self.sequencer.version,
            blob=b"" if restart is None else restart.blob,
            changes=self.changes,
            exchanges_gradients=spec.rules.exchanges_gradients,
        )
        if restart is not None:
            self._tell_rollback(self.sequencer.lineage)

    @property
    def blob(self) -> bytes:
        """The optimizer's state that was published last, empty for none."""
        return self._pending_requests.blob

    # ------------------------------------------------------------ replicas

    _PLAIN = ("at", "sequencer", "learning_rate", "_doubt")

    def serve(self, outlet: Outlet) -> None:
        """Answers and reports go elsewhere from now on."""
        self._outlet = self.report_buffer.outlet = outlet

    @property
    def is_quiet(self) -> bool:
        """Whether no message lies here that was received and not applied yet."""
        return not self.sequencer.has_round

    def freeze(self) -> dict[str, Any]:
        """Everything that `spec` does not tell; `pack` it before the next event."""
        return {
            "plain": {name: getattr(self, name) for name in self._PLAIN},
            "changes": self.changes.found,
            "center": self.center.freeze(),
            "teller": self.report_buffer.freeze(),
            "wants": self._pending_requests.freeze(),
            "posts": [session.freeze() for session in self.sessions.values()],
            "orders": self.event_log.freeze(),
        }

    def thaw(self, found: dict[str, Any]) -> None:
        """Becomes what another machine of the same spec was when it was frozen.

        What `found` holds belongs to this machine from now on.
        """
        for name, value in found["plain"].items():
            setattr(self, name, value)
        self.changes.found.clear()
        self.changes.found.update(found["changes"])
        self.center.thaw(found["center"])
        self.report_buffer.thaw(found["teller"])
        self._pending_requests.thaw(found["wants"])
        self.event_log.thaw(found["orders"])
        sessions = [
            WorkerSession.thaw(self.spec.sizes, frozen) for frozen in found["posts"]
        ]
        self.sessions = {session.rank: session for session in sessions}

    # -------------------------------------------------------------- events

    def handle(self, event: Head, blob: bytes | memoryview = b"") -> None:
        """Takes one event; whoever calls has seen that its fields make sense.

        Args:
            event: Its name is at "event", seconds of the run are at "at". The vectors
                of a worker's message lie in the bulk of its post.
            blob: An optimizer's state, of a "snapshot".

        Raises:
            StrategyFailed: The strategy's own code raised.
        """
        self.at = event["at"]
        self._outlet.ordered(self.event_log.add(event))
        name = event["event"]
        if name == "join":
            self._join(event)
        elif name == "command":
            self._obey(event, blob)
        elif name == "flush":
            self.report_buffer.flush()
        elif name == "overdue":
            self._close_without_the_late()
        else:
            session = self.sessions.get(event["rank"])
            if session is not None and session.incarnation == event["incarnation"]:
                self._hear(session, name, event, blob)

    def _join(self, event: Head) -> None:
        member = self.sequencer.join(event["hint"])
        rank, incarnation = member.rank, member.incarnation
        session = WorkerSession(
            rank=rank,
            incarnation=incarnation,
            token=event["known"]["token"],
            buffers=Buffers(self.spec.sizes, None),
            liveness=LivenessTimeout(more_s=self.spec.rules.group_s),
            adopted=self.changes.serial,
        )
        self.sessions[rank] = session
        session.liveness.answered(self._clock())
        self.tell(
            {"kind": "joined", "rank": rank, "incarnation": incarnation,
             **event["known"]}
        )  # fmt: skip

    def _hear(
        self, session: WorkerSession, name: str, event: Head, blob: bytes | memoryview
    ) -> None:
        """A worker says something, or is gone."""
        rank, incarnation = who = session.rank, session.incarnation
        if name == "leave":
            self._leave(session, event)
            return
        session.liveness.heard(
            self._clock(),
            is_ready=name == "ready",
            is_reading=name == "reading",
            is_busy=name == "busy",
        )
        if name in ("failed", "complaint"):
            said = {"rank": rank, "incarnation": incarnation, **event["said"]}
            self.tell(said)
        session.question, session.answer = event["question"], None
        if name == "push":
            self._push(session, event)
        elif name == "need":
            self._carry_out(self.sequencer.need(*who))
        elif name == "ready":
            self.tell({"kind": "ready", "rank": rank, "incarnation": incarnation})
            self._carry_out(self.sequencer.ready(*who))
        elif name == "snapshot":
            self._refresh(session)
            self._carry_out(
                self._pending_requests.published(self.sequencer, session, bytes(blob))
            )
            self._say(session, {"kind": "stored"})
        else:
            self._say(session, {"kind": "noted"})
            if name == "compiling":
                session.liveness.compiles()

    def _leave(self, session: WorkerSession, event: Head) -> None:
        rank, incarnation = session.rank, session.incarnation
        del self.sessions[rank]
        self.center.forget(rank)
        self.tell(
            {"kind": "left", "rank": rank, "incarnation": incarnation,
             "reason": event["reason"], "is_hung": event["is_hung"],
             "rows": self.sequencer.ledger.held_rows(rank)}
        )  # fmt: skip
        self._carry_out(self.sequencer.leave(rank, incarnation))

    def _close_without_the_late(self) -> None:
        late = self.sequencer.standing.awaited
        found = self.sequencer.overdue()
        if found:
            self.tell({"kind": "late", "ranks": late})
        self._carry_out(found)

    def _push(self, session: WorkerSession, event: Head) -> None:
        session.push = event
        push = Push(
            rank=session.rank,
            incarnation=session.incarnation,
            lineage=event["lineage"],
            sequence=event["sequence"],
            pieces=tuple(Piece(*piece) for piece in event["pieces"]),
            steps=event["steps"],
            samples=event["samples"],
            group=event["group"],
            rows=event["rows"],
            own=tuple(event["own"]),
            assumed=tuple(event["assumed"]),
        )
        self._carry_out(self.sequencer.push(push))

    # --------------------------------------------------------- instructions

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for place, instruction in enumerate(instructions):
            match instruction:
                case Apply(rank, facts):
                    self._apply(self.sessions[rank], facts)
                case Merge(facts, is_grouped):
                    later = [] if is_grouped else instructions[place + 1 :]
                    self._merge(facts, later, is_grouped=is_grouped)
                case Answer():
                    self._answer(instruction)
                case Refuse(rank, incarnation, reason):
                    session = self.sessions.get(rank)
                    if session is not None and session.incarnation == incarnation:
                        self._say(session, {"kind": "refused", "reason": reason})
                case EpochDone(epoch):
                    self._end_epoch(epoch)
                case Rollback(lineage):
                    self._pending_requests.roll_back()
                    self._tell_rollback(lineage)
                case Ungroup():
                    self.tell({"kind": "warning", "text": UNGROUPED})

    def _tell_rollback(self, lineage: int) -> None:
        """What was counted since the snapshot is not committed any more."""
        ledger = self.sequencer.ledger
        committed = {str(e): ledger.committed(e) for e in ledger.epochs}
        self.tell(
            {"kind": "rollback", "lineage": lineage, "clock": self.sequencer.clock,
             "committed": committed}
        )  # fmt: skip

    def _apply(self, session: WorkerSession, facts: Facts) -> None:
        buffers = session.buffers
        self._refresh(session)
        with self._strategy_at_work():
            self.center.apply(
                session.rank,
                buffers.message,
                buffers.message_statistics,
                facts,
                buffers.reply,
            )
        self._note({session.rank: facts})

    def _merge(
        self, facts: dict[int, Facts], later: list[Instruction], *, is_grouped: bool
    ) -> None:
        bulks = {rank: self.sessions[rank].buffers for rank in facts}
        for rank in facts:
            self._refresh(self.sessions[rank])
        targets = [
            self.sessions[answer.rank].buffers
            for answer in later
            if isinstance(answer, Answer) and answer.body == "reply"
        ]

        def write(rank: int, part: slice, values: Vector) -> None:
            for buffers in targets if rank < 0 else [bulks[rank]]:
                buffers.reply[part] = values

        statistics = {
            rank: buffers.message_statistics for rank, buffers in bulks.items()
        }
        if is_grouped:  # the workers have averaged their vectors
            self.center.merge_statistics(statistics, facts)
        else:
            with self._strategy_at_work():
                messages = {rank: buffers.message for rank, buffers in bulks.items()}
                self.center.merge(messages, statistics, facts, write)
        doubts = [self.sessions[rank].push["doubt"] for rank in facts]
        self._doubt = max(doubts, default=0)
        self._note(facts)

    def _refresh(self, session: WorkerSession) -> None:
        """What a callback changed after a worker began to compute is not put back."""
        values = self.center.statistics
        if not values.size:
            return
        for key, value in self.changes.after(session.told, session.adopted).of(
            STATISTICS
        ):
            part = slice(key.number, key.number + value.size)
            session.buffers.message_statistics[part] = values[part]

    def _note(self, found: dict[int, Facts]) -> None:
        self.report_buffer.note(self.sessions, found, self.at, self.sequencer.version)
        if self.sequencer.is_in_step:
            self.report_buffer.flush()  # the controller is waited for

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
        session = self.sessions[answer.rank]
        buffers = session.buffers
        head: Head = {"kind": answer.kind, "body": answer.body}
        head["pieces"], head["doubt"] = answer.pieces, self._doubt
        head["group"] = answer.group
        if answer.sums:
            head["sums"] = answer.sums
        head["publish"] = answer.kind == "publish" or (
            # Told "again", a worker has something else to say first. `asked` changes
            # the sequencer: the request goes out with this answer and with no other,
            # on the standby too, which makes the same answers (decision 14).
            answer.kind != "again" and self.sequencer.asked(answer.rank)
        )
        if answer.body != "none":
            if answer.body != "reply":
                buffers.reply[:] = self.center.vector
            buffers.reply_statistics[:] = self.center.statistics
        blob = self.blob if answer.body == "snapshot" else b""
        changes = b"" if answer.kind == "again" else self._untold(session)
        if changes:
            head["changes"] = len(changes)
        self._say(session, head, blob + changes)

    def _untold(self, session: WorkerSession) -> bytes:
        """What callbacks changed, and this worker was not told yet."""
        if self.spec.shard or session.told == self.changes.serial:
            return b""
        found = self.changes.after(session.told, session.adopted)
        session.told = session.adopted = self.changes.serial
        return found.pack()

    def _say(self, session: WorkerSession, head: Head, blob: bytes = b"") -> None:
        """Answers a worker; the next word is its own."""
        session.liveness.answered(self._clock())
        head = {**head, **self.state()}
        session.answer = head, blob
        self._outlet.answer(session, head, blob)

    def state(self) -> Head:
        """What every answer tells."""
        return {
            "version": self.sequencer.version,
            "lineage": self.sequencer.lineage,
            "clock": self.sequencer.clock,
            "workers": max(1, len(self.sessions)),
            "lr": self.learning_rate,
            "changed": self.changes.serial,
        }

    # ------------------------------------------------------------ controller

    def _set(self, command: Head, blob: bytes | memoryview) -> None:
        """A callback has set something; shards only hear that one did."""
        if command["kind"] == "learning_rate":
            self.learning_rate = command["value"]
            return
        fresh = self.changes.absorb(Changes.read(blob))
        if self.center.statistics.size:
            fresh.write_statistics(self.center.statistics)
            self._pending_requests.change(fresh)

    def _obey(self, command: Head, blob: bytes | memoryview) -> None:
        kind = command["kind"]
        if kind == "proceed":
            self._carry_out(self.sequencer.proceed(int(command["epoch"])))
        elif kind == "expect":
            self._carry_out(self.sequencer.expect(int(command["workers"])))
        elif kind == "halt":
            self._carry_out(self.sequencer.halt())
        elif kind == "pace":
            self._carry_out(self.sequencer.pace(command["after"]))
        elif kind in ("learning_rate", "changes"):
            self._set(command, blob)
        elif kind == "finish":
            self._carry_out(self.sequencer.finish())
        elif kind == "center":
            self._carry_out(self._pending_requests.ask_center(self.sequencer))
        elif kind == "state":
            self._carry_out(self._pending_requests.ask_state(self.sequencer))
        elif kind == "checkpoint":
            with_snapshot = bool(command.get("wants_snapshot"))
            wanted = self._pending_requests.ask_checkpoint(
                self.sequencer, with_snapshot
            )
            self._carry_out(wanted)
        else:
            raise ValueError(f"unknown command {kind!r}")

    def _end_epoch(self, epoch: int) -> None:
        rows = self.sequencer.ledger.committed(epoch)
        head: Head = {"kind": "epoch", "epoch": epoch, "rows": rows}
        self.report_buffer.show(head, self.center, self.state(), epoch)

    def tell(self, head: Head, *body: bytes) -> None:
        """Tells the controller, after everything that happened before."""
        self.report_buffer.tell(head, *body)
