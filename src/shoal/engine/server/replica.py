"""The state of a server: it takes events, and returns answers and reports.

The same events in the same order make the same replica, bit for bit, on any host: a
standby server relies on it. So there is no socket in here, and no clock that decides
anything. `sequencer.py` decides, `center.py` computes; this file carries out the
sequencer's instructions on the center.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from shoal.engine.coordination.instructions import Instruction, PushMetadata, Respond
from shoal.engine.coordination.interpreter import Interpreter
from shoal.engine.coordination.lease_report import LEASES_S, lease_report
from shoal.engine.coordination.sequencer import Sequencer
from shoal.engine.coordination.timeouts import LivenessTimeout
from shoal.engine.server.callback_changes import CallbackChanges
from shoal.engine.server.center import Center
from shoal.engine.server.effects import AnswerWorker, Effect, Raise
from shoal.engine.server.event_log import EventLog, LogEntry
from shoal.engine.server.pending_requests import PendingRequests
from shoal.engine.server.reports import ReportBuffer
from shoal.engine.server.session import WorkerSession
from shoal.engine.server.spec import ServerSpec
from shoal.engine.server.strategy_calls import StrategyCalls
from shoal.engine.transport.buffers import Buffers
from shoal.engine.transport.changes import Changes
from shoal.engine.transport.messages.base import Report
from shoal.engine.transport.messages.controller_to_server import (
    AskCenter,
    AskCheckpoint,
    AskState,
    ChangeModel,
    Expect,
    Finish,
    Halt,
    Pace,
    Proceed,
    RunCommand,
    SetLearningRate,
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
    Joined,
    Late,
    LeasesShown,
    RolledBack,
    Warned,
    WorkerLeft,
    WorkerReady,
    WorkerTold,
)
from shoal.engine.transport.messages.server_to_worker import (
    ANSWERS,
    Noted,
    Refused,
    RunState,
    Stored,
    ToWorker,
)
from shoal.engine.transport.messages.state_reports import EpochEnded
from shoal.engine.transport.messages.worker_reports import WorkerReport
from shoal.engine.transport.messages.worker_to_server import (
    Busy,
    Compiling,
    NanStatus,
    Need,
    Push,
    ReadingData,
    Ready,
    Snapshot,
)
from shoal.strategies.base import Facts

UNGROUPED = (
    "workers cannot average gradients among themselves; the logs of the workers say "
    "why. From now on the server does it, as with collective='server'."
)


@final
class Replica(Interpreter):
    """A run, as its server knows it.

    Args:
        spec: Spec of the server.
        clock: Clock for the silence of workers; it decides nothing in here.
    """

    def __init__(self, spec: ServerSpec, clock: Callable[[], float]) -> None:
        self.spec, self._clock = spec, clock
        self._effects: list[Effect] = []
        self.sessions: dict[int, WorkerSession] = {}
        self.at = 0.0
        """Seconds of the run at the last event."""
        self._shown_at = -LEASES_S
        self.report_buffer = ReportBuffer(spec.sizes, self._effects, spec.losses)
        self.event_log = EventLog(spec.others)
        checkpoint = spec.checkpoint
        self.sequencer = (
            Sequencer(spec.rules)
            if checkpoint is None
            else checkpoint.open_sequencer(spec.rules)
        )
        # The center is changed in place. A server process owns the vectors of its spec;
        # elsewhere the caller may still use them.
        start = (spec.vector, spec.statistics)
        if not spec.is_private:
            start = (spec.vector.copy(), spec.statistics.copy())
        self.center = Center(spec.strategy, *start)
        self.learning_rate = spec.learning_rate
        self.changes = Changes(dict(spec.changes.found))
        self._callback_changes = CallbackChanges(
            self.changes, self.center, is_told_here=not spec.shard
        )
        self._strategy_calls = StrategyCalls(self.center, self._callback_changes)
        self._nan_status = NanStatus.FINITE
        if checkpoint is not None:
            checkpoint.fill(self.center, self.report_buffer.epoch_totals)
            # Older changes are in the checkpoint; workers may have moved them since.
            fresh = self.changes.after(checkpoint.changes)
            fresh.write_statistics(self.center.statistics)
        self._pending_requests = PendingRequests(
            self.center,
            self.report_buffer,
            self.state,
            version=self.sequencer.version,
            blob=b"" if checkpoint is None else checkpoint.blob,
            changes=self.changes,
            exchanges_gradients=spec.rules.exchanges_gradients,
        )
        # The controller may have heard of steps that the checkpoint does not have.
        if checkpoint is not None:
            self._tell_rollback(self.sequencer.lineage)

    @property
    def blob(self) -> bytes:
        """The optimizer's state that was published last, empty for none."""
        return self._pending_requests.blob

    # ------------------------------------------------------------ replicas

    _PLAIN = ("at", "sequencer", "learning_rate", "_nan_status", "_shown_at")

    def take_effects(self) -> list[Effect]:
        """Returns the effects that were not taken yet.

        A run that continues from a checkpoint has some from the beginning.
        """
        found = self._effects.copy()
        self._effects.clear()
        return found

    @property
    def is_quiet(self) -> bool:
        """Whether every received message was applied."""
        return not self.sequencer.has_round

    def freeze(self) -> dict[str, Any]:
        """Returns everything that `spec` lacks; `pack` it before the next event."""
        return {
            "plain": {name: getattr(self, name) for name in self._PLAIN},
            "changes": self.changes.found,
            "center": self.center.freeze(),
            "report_buffer": self.report_buffer.freeze(),
            "pending_requests": self._pending_requests.freeze(),
            "sessions": [session.freeze() for session in self.sessions.values()],
            "event_log": self.event_log.freeze(),
        }

    def thaw(self, found: dict[str, Any]) -> None:
        """Takes over the frozen state of another replica of the same spec.

        `found` belongs to this replica from now on.
        """
        for name, value in found["plain"].items():
            setattr(self, name, value)
        self._callback_changes.replace(found["changes"])
        self.center.thaw(found["center"])
        self.report_buffer.thaw(found["report_buffer"])
        self._pending_requests.thaw(found["pending_requests"])
        self.event_log.thaw(found["event_log"])
        sessions = [
            WorkerSession.thaw(self.spec.sizes, frozen) for frozen in found["sessions"]
        ]
        self.sessions = {session.rank: session for session in sessions}

    # -------------------------------------------------------------- events

    def enter(self, event: Event, at: float) -> LogEntry:
        """Gives an event its place in the order; call `handle` next.

        Where several servers share the vector, the others are told before this one
        computes its part, so that all parts are computed at once.

        Args:
            event: The event. The vectors of a worker's message are in the buffers of
                its session.
            at: Seconds of the run.
        """
        self.at = at
        return self.event_log.add(event, at)

    def handle(self, entry: LogEntry, blob: bytes | memoryview = b"") -> list[Effect]:
        """Handles an event, and calls nothing.

        Args:
            entry: Result of `enter`.
            blob: Optimizer state of a `Snapshot`; or changes of callbacks.

        Returns:
            The effects, in order. The last one raises if the strategy's own code did
            (`StrategyFailed`), or if the event is invalid.
        """
        try:
            self._handle(entry.event, blob)
        except Exception as error:
            # An effect like others: what was decided before it is carried out first,
            # and a standby finds the same error at the same place.
            self._effects.append(Raise(error))
        return self.take_effects()

    def _handle(self, event: Event, blob: bytes | memoryview) -> None:
        match event:
            case WorkerSays() | WorkerLeaves():
                session = self.sessions.get(event.rank)
                if session is None or session.incarnation != event.incarnation:
                    return
                if isinstance(event, WorkerSays):
                    self._hear(session, event, blob)
                else:
                    self._leave(session, event)
            case WorkerJoins():
                self._join(event)
            case Commanded(command=command):
                self._obey(command, blob)
            case Flush():
                self.report_buffer.flush()
            case Overdue():
                self._close_without_the_late()

    def _join(self, event: WorkerJoins) -> None:
        member = self.sequencer.join(event.hint)
        rank, incarnation = member.rank, member.incarnation
        session = WorkerSession(
            rank=rank,
            incarnation=incarnation,
            token=event.token,
            buffers=Buffers(self.spec.sizes, None),
            liveness=LivenessTimeout(more_s=self.spec.rules.group_s),
            adopted=self.changes.serial,
        )
        self.sessions[rank] = session
        session.liveness.answered(self._clock())
        self._tell(
            Joined(
                rank=rank,
                incarnation=incarnation,
                pid=event.pid,
                node=event.node,
                token=event.token,
            )
        )

    def _hear(
        self, session: WorkerSession, event: WorkerSays, blob: bytes | memoryview
    ) -> None:
        """Handles a worker's message."""
        rank, incarnation = who = session.rank, session.incarnation
        message = event.message
        session.liveness.heard(
            self._clock(),
            is_ready=isinstance(message, Ready),
            is_reading=isinstance(message, ReadingData),
            is_busy=isinstance(message, Busy),
        )
        if isinstance(message, WorkerReport):
            told = WorkerTold(rank=rank, incarnation=incarnation, said=message)
            self._tell(told)
        # From here on, a repeat of this request waits for its answer, and cannot get
        # the answer to the one before (decision 14).
        session.question, session.answer = event.question, None
        match message:
            case Push():
                self._push(session, message)
            case Need():
                self._carry_out(self.sequencer.need(*who))
            case Ready():
                self._tell(WorkerReady(rank=rank, incarnation=incarnation))
                self._carry_out(self.sequencer.ready(*who))
            case Snapshot():
                self._callback_changes.correct(session)
                self._carry_out(
                    self._pending_requests.published(
                        self.sequencer, session, bytes(blob)
                    )
                )
                self._say(session, Stored(state=self.state()))
            case _:
                self._say(session, Noted(state=self.state()))
                if isinstance(message, Compiling):
                    session.liveness.compiles()

    def _leave(self, session: WorkerSession, event: WorkerLeaves) -> None:
        rank, incarnation = session.rank, session.incarnation
        del self.sessions[rank]
        self.center.forget(rank)
        # Before `sequencer.leave`, which releases the rows that are counted here.
        self._tell(
            WorkerLeft(
                rank=rank,
                incarnation=incarnation,
                reason=event.reason,
                is_hung=event.is_hung,
                rows=self.sequencer.ledger.held_rows(rank),
            )
        )
        self._carry_out(self.sequencer.leave(rank, incarnation))

    def _close_without_the_late(self) -> None:
        # Read now: `overdue` gives them up, and the round awaits nobody then.
        late = self.sequencer.round_progress.awaited
        found = self.sequencer.overdue()
        if found:
            self._tell(Late(ranks=tuple(late)))
        self._carry_out(found)

    def _push(self, session: WorkerSession, message: Push) -> None:
        # The sequencer does not need its times and NaN status; records and rounds do.
        session.push = message
        push = PushMetadata(
            rank=session.rank,
            incarnation=session.incarnation,
            lineage=message.lineage,
            sequence=message.sequence,
            pieces=message.pieces,
            steps=message.steps,
            samples=message.samples,
            group=message.group,
            rows=message.rows,
            own=message.own,
            assumed=message.assumed,
            is_alone=message.is_alone,
        )
        self._carry_out(self.sequencer.push(push))

    # --------------------------------------------------------- instructions

    def _refuse(self, rank: int, incarnation: int, reason: str) -> None:
        session = self.sessions.get(rank)
        if session is not None and session.incarnation == incarnation:
            self._say(session, Refused(reason=reason, state=self.state()))

    def _roll_back(self, lineage: int) -> None:
        self._pending_requests.roll_back()
        self._tell_rollback(lineage)

    def _ungroup(self) -> None:
        self._tell(Warned(text=UNGROUPED))

    def _tell_rollback(self, lineage: int) -> None:
        """Reports that work since the snapshot is not committed any more."""
        ledger = self.sequencer.ledger
        committed = {str(e): ledger.committed(e) for e in ledger.epochs}
        clock = self.sequencer.clock
        self._tell(RolledBack(lineage=lineage, clock=clock, committed=committed))

    def _apply(self, rank: int, facts: Facts) -> None:
        self._strategy_calls.apply(self.sessions[rank], facts)
        self._note({rank: facts})

    def _merge(
        self, facts: dict[int, Facts], replied_to: Sequence[int], *, is_grouped: bool
    ) -> None:
        self._strategy_calls.merge(
            self.sessions, facts, replied_to, is_grouped=is_grouped
        )
        pushes = (self.sessions[rank].push for rank in facts)
        self._nan_status = max(
            (push.nan_status for push in pushes if push), default=NanStatus.FINITE
        )
        self._note(facts)

    def _note(self, found: dict[int, Facts]) -> None:
        self.report_buffer.note(self.sessions, found, self.at, self.sequencer.version)
        if self.sequencer.is_in_step:
            self.report_buffer.flush()  # all wait for the controller
        if self.at - self._shown_at >= LEASES_S:
            self._show_leases()

    def _show_leases(self) -> None:
        epochs = lease_report(self.sequencer.ledger)
        if epochs:
            self._shown_at = self.at
            self._tell(LeasesShown(epochs=epochs))

    def _respond(self, answer: Respond) -> None:
        session = self.sessions[answer.rank]
        buffers = session.buffers
        if answer.body != "none":
            # A reply was written there when the message was applied or merged.
            if answer.body != "reply":
                buffers.reply[:] = self.center.vector
            buffers.reply_statistics[:] = self.center.statistics
        blob = self.blob if answer.body == "snapshot" else b""
        untold = self._callback_changes.untold
        changes = b"" if answer.kind == "again" else untold(session)
        message = ANSWERS[answer.kind](
            body=answer.body,
            pieces=answer.pieces,
            nan_status=self._nan_status,
            group=answer.group,
            sums=answer.sums,
            wants_snapshot=answer.wants_snapshot or answer.kind == "publish",
            changes=len(changes),
            state=self.state(),
        )
        self._say(session, message, blob + changes)

    def _say(
        self, session: WorkerSession, message: ToWorker, blob: bytes = b""
    ) -> None:
        """Answers a worker; its next message is due."""
        session.liveness.answered(self._clock())
        # Kept for a worker that lost this answer with its server (decision 14).
        session.answer = message, blob
        self._effects.append(AnswerWorker(session, message, blob))

    def state(self) -> RunState:
        """The state that every answer tells."""
        return RunState(
            version=self.sequencer.version,
            lineage=self.sequencer.lineage,
            clock=self.sequencer.clock,
            workers=max(1, len(self.sessions)),
            learning_rate=self.learning_rate,
            changed=self.changes.serial,
        )

    # ------------------------------------------------------------ controller

    def _obey(self, command: RunCommand, blob: bytes | memoryview) -> None:
        match command:
            case SetLearningRate(value=value):
                self.learning_rate = value
            case ChangeModel():
                fresh = self._callback_changes.absorb(blob)
                self._pending_requests.change(fresh)
            case _:
                self._carry_out(self._asked_for(command))

    def _asked_for(self, command: RunCommand) -> list[Instruction]:
        """Returns the instructions for a command of the controller."""
        sequencer, pending = self.sequencer, self._pending_requests
        match command:
            case Proceed(epoch=epoch):
                return sequencer.proceed(epoch)
            case Expect(workers=workers):
                return sequencer.expect(workers)
            case Halt():
                return sequencer.halt()
            case Pace(after=after):
                return sequencer.pace(after)
            case Finish():
                return sequencer.finish()
            case AskCenter():
                return pending.ask_center(sequencer)
            case AskState():
                return pending.ask_state(sequencer)
            case AskCheckpoint(wants_snapshot=wants):
                return pending.ask_checkpoint(sequencer, bool(wants))
            case _:
                return []

    def _end_epoch(self, epoch: int) -> None:
        center = self.center
        report = EpochEnded(
            epoch=epoch,
            rows=self.sequencer.ledger.committed(epoch),
            state=self.state(),
            size=center.vector.size,
            statistics=center.statistics.size,
        )
        self.report_buffer.show(report, center)

    def tell(self, report: Report) -> list[Effect]:
        """Reports to the controller, after everything that happened before."""
        self._tell(report)
        return self.take_effects()

    def _tell(self, report: Report) -> None:
        self.report_buffer.tell(report)
