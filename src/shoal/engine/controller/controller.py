"""The controller: follows a run, and supervises its processes.

It decides nothing about training (the server does) and nothing about Keras (the
observer does). It turns reports of processes and the server into calls of the observer,
and the observer's requests into commands.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TypeVar

from shoal.engine.controller.checkpoint_schedule import CheckpointSchedule
from shoal.engine.controller.inbox import POLL_S, Inbox
from shoal.engine.controller.observer import EpochsInOrder, Observer
from shoal.engine.controller.process_pool import ProcessPool
from shoal.engine.controller.resume_point import ResumePoint
from shoal.engine.controller.servers import GRACE_S, ServerGone
from shoal.engine.controller.settings import CallbackSettings
from shoal.engine.controller.shared_servers import SharedServers
from shoal.engine.controller.spec import ControllerSpec
from shoal.engine.controller.standing_commands import StandingCommands
from shoal.engine.controller.supervisor import WorkerSupervisor
from shoal.engine.controller.worker_errors import error_of
from shoal.engine.server.checkpoint import OptimizerSnapshot, read_checkpoint
from shoal.engine.server.records import Rescue
from shoal.engine.server.reports import read_center, read_epoch, read_records
from shoal.engine.server.spec import ServerSpec
from shoal.engine.transport.messages.base import Report
from shoal.engine.transport.messages.controller_to_server import (
    AskCenter,
    AskState,
    Command,
    Finish,
    Proceed,
    Stop,
)
from shoal.engine.transport.messages.server_to_controller import (
    Broken,
    Exchanges,
    Joined,
    RolledBack,
    WorkerLeft,
    WorkerReady,
    WorkerTold,
)
from shoal.engine.transport.messages.state_reports import (
    CenterShown,
    EpochEnded,
    OptimizerState,
    RestartState,
    WorkerSnapshot,
    WorkerState,
)
from shoal.engine.transport.messages.worker_reports import Failed, NanReport
from shoal.engine.worker import nan_policy
from shoal.engine.worker.spec import WorkerSpec
from shoal.errors import ClusterError, ShoalError
from shoal.interruption import check
from shoal.vectors import Vector

__all__ = ["Controller", "ServerGone"]

STATE_TIMEOUT_S = 20.0
SLOW_BYTES_S = 10e6  # a slow link over which a worker's state may come
CENTER_TIMEOUT_S = 2.0
RESCUE_S = 0.8  # for each request after Ctrl-C
R = TypeVar("R", bound=Report)


class Controller:
    """Follows one run; use it as a context, so that its processes end.

    Args:
        job: The parts of the plan.
        observer: Observer of the run.
        pool: Pool of the processes; its maker closes it.
    """

    def __init__(
        self, job: ControllerSpec, observer: Observer, pool: ProcessPool
    ) -> None:
        self._job, self._observer, self._pool = job, observer, pool
        self._clock = pool.environment.clock
        self._settings = CallbackSettings(observer, self._command)
        self._epochs = EpochsInOrder(job.first_epoch, job.epochs, observer, self._open)
        self._supervisor = WorkerSupervisor(
            pool, job.policy, job.log, observer, self._command, job.spares
        )
        self._servers = SharedServers(
            pool,
            observer,
            job.workers + job.growth,
            self._supervisor.living,
            count=job.servers,
            has_standby=job.has_standby,
            on_succession=self._repeat,
        )
        self._inbox = Inbox(self._servers, self._watch)
        self._standing = StandingCommands()
        self._schedule = CheckpointSchedule(job.often, self._clock())
        self._resume_point: ResumePoint | None = None
        self._gone: ServerGone | None = None

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------- starting

    def give(
        self, server: ServerSpec, make_spec: Callable[[int, str], WorkerSpec]
    ) -> None:
        """Gives every process its spec, and connects to the server."""
        self._settings.begin(server)
        self._resume_point = ResumePoint(server, make_spec)
        self._begin(self._resume_point)

    def _begin(self, resume_point: ResumePoint) -> None:
        self._servers.start(self._settings.written_to(resume_point.part))
        self._supervisor.give(self._job.workers, resume_point.worker, self._job.growth)
        self._servers.connect(self._supervisor.start_limit_s, self._watch)

    # ------------------------------------------------------------ following

    def run(self) -> None:
        """Follows the run to its end.

        Raises:
            WorkerFailed: User code raised on a worker.
            WorkerLost: Workers are gone beyond the limits of the policy.
            ClusterError: The server is gone.
        """
        if self._epochs.are_over:
            return
        self._open(self._job.first_epoch)
        while not self._epochs.are_over:
            try:
                self._turn()
            except ServerGone as error:
                self._go_on(error)
        self._supervisor.dismiss()
        self._finish()

    def _go_on(self, error: ServerGone) -> None:
        """Starts servers until one lives.

        Raises:
            ServerGone: No replacement is left.
        """
        while self._supervisor.take_restart():
            try:
                self._replace_server(error)
            except ServerGone as again:
                error = again
            else:
                return
        raise error

    def _replace_server(self, error: ServerGone, event: str = "server_lost") -> None:
        """Starts another server from the last checkpoint."""
        resume_point = self._resume_point
        if resume_point is None:
            raise error
        began, self._gone = self._clock(), None
        self._observer.on_event(event, reason=str(error).partition(". ")[0])
        # Reports that were not handled are of a lineage that ends here.
        self._inbox.drop()
        self._supervisor.recall()
        self._settings.reached(-1)
        if resume_point.server.checkpoint is None:
            # A server without a checkpoint has nothing to go back to, and reports
            # nothing.
            self._observer.on_event("rollback", lineage=0, clock=0, committed={})
        self._servers.prepare()
        self._begin(resume_point)
        # After `_begin`: the server that starts there raises the lineage of its
        # checkpoint by one. The next server from the same checkpoint has to begin above
        # that.
        resume_point.next_lineage()
        self._go_back(resume_point)
        self._repeat()
        seconds = round(self._clock() - began, 3)
        self._observer.on_event("server_replaced", seconds=seconds, by="restart")

    def _go_back(self, resume_point: ResumePoint) -> None:
        """Continues from a checkpoint, perhaps from before an end that was reported."""
        checkpoint, upcoming = resume_point.server.checkpoint, self._job.first_epoch
        if checkpoint is not None:
            upcoming = checkpoint.open_sequencer(resume_point.server.rules).upcoming
        # `_keep_epoch` does not report the end of an epoch a second time.
        self._standing.go_back(upcoming)

    def _halt(self) -> None:
        """Sends `Halt`, if a callback wants to stop and the server can be told."""
        self._command_all(self._standing.halts(self._epochs.next))

    def _repeat(self) -> None:
        """Repeats commands that the lost server may not have handled."""
        self._command_all(self._standing.of_run(self._epochs.next))
        self._settings.repeat()
        self._command_all(self._standing.requests())

    def _turn(self) -> None:
        """Handles one message, or looks after the processes if there is none."""
        self._observer.on_turn()
        check()
        if self._gone is not None:
            raise self._gone
        has_ended = self._supervisor.has_ended
        message = self._inbox.next(0.0 if has_ended else POLL_S)
        if message is not None:
            self._hear(*message)
        if not self._epochs.are_over:
            is_idle = message is None and not (has_ended and self._servers.has_input)
            self._watch(is_idle=is_idle)
            if self._schedule.is_due:
                self._checkpoint()

    def _checkpoint(self) -> None:
        """Requests all that another server needs; it comes when it is ready."""
        self._command(self._schedule.request(self._clock()))

    def _watch(self, *, is_idle: bool = True) -> None:
        check()
        exits = self._supervisor.watch(is_idle=is_idle)
        self._servers.look(exits, self._supervisor.start_limit_s)

    def _hear(self, report: Report, body: memoryview) -> None:
        match report:
            case Exchanges():
                self._keep_records(report, body)
            case EpochEnded():
                self._keep_epoch(report, body)
            case RestartState():
                self._keep_checkpoint(report, body)
            case WorkerSnapshot():
                self._keep_snapshot(report, body)
            case CenterShown() | OptimizerState():
                pass  # answers that came too late
            case Broken(reason=reason):
                raise ClusterError(reason)
            case _:
                self._hear_of(report)

    def _hear_of(self, report: Report) -> None:
        """Handles a report about workers, or about the run."""
        match report:
            case Joined():
                self._supervisor.joined(report)
            case WorkerReady(rank=rank):
                self._supervisor.ready(rank)
            case WorkerTold():
                self._told(report)
            case WorkerLeft():
                self._observer.on_event("worker_left", **report.to_json())
                rank, reason = report.rank, report.reason
                self._supervisor.left(rank, reason, is_hung=report.is_hung)
            case _:
                if isinstance(report, RolledBack):
                    self._go_back_with_workers(report.lineage)
                self._observer.on_event(report.kind, **report.to_json())

    def _told(self, report: WorkerTold) -> None:
        """Handles a worker's report."""
        said = report.said
        if isinstance(said, Failed):
            raise error_of(report.rank, said)
        self._observer.on_event(said.kind, **report.to_json())
        if isinstance(said, NanReport):
            self._not_finite(report.rank, said)

    def _go_back_with_workers(self, lineage: int) -> None:
        """Handles a rollback: reported steps are not committed any more."""
        self._settings.roll_back()
        if self._resume_point is not None:
            self._resume_point.keep_lineage(lineage)

    def _keep_checkpoint(self, report: RestartState, body: memoryview) -> None:
        self._standing.checkpoint_came()
        if self._resume_point is not None:
            checkpoint = read_checkpoint(report, body)
            self._observer.on_checkpoint(self._resume_point.keep(checkpoint))

    def _keep_snapshot(self, report: WorkerState, body: memoryview) -> None:
        """Keeps a worker's state; under gradient exchange all have the same."""
        sender = report.sender
        if self._resume_point is not None and sender is not None:
            snapshot = OptimizerSnapshot(
                sender.incarnation, sender.sequence, bytes(body)
            )
            self._resume_point.keep_snapshot(sender.rank, snapshot)

    def _keep_records(self, report: Exchanges, body: memoryview) -> None:
        records, sums = read_records(report, body)
        self._settings.reached(max((r.version for r in records), default=-1))
        self._schedule.count(sum(record.samples for record in records))
        self._observer.on_records(records, sums)
        self._settings.tell()
        wants_stop = self._observer.wants_stop
        if wants_stop and not self._standing.is_halted and not self._epochs.are_over:
            self._standing.is_halted = True
            self._halt()
        # After the callbacks: a step that was not begun is not taken.
        self._settings.pace()

    def _not_finite(self, rank: int, found: NanReport) -> None:
        """Reports numbers that are NaN or infinite; continues if the policy says so.

        Raises:
            NotFinite: The run must not continue.
        """
        resume_point = self._resume_point
        is_rolled_back = found.reaction == "rollback"
        is_over = (
            resume_point is not None
            and resume_point.rollbacks >= nan_policy.MOST_ROLLBACKS
        )
        if found.reaction == "stop" or (is_rolled_back and is_over):
            raise nan_policy.error_of(rank, found)
        text = nan_policy.what_follows(rank, found)
        self._observer.on_event("warning", text=text)
        if is_rolled_back and resume_point is not None:
            resume_point.leave_out(found.epoch, found.ranges, found.rows)
            text = nan_policy.describe(rank, found)
            self._replace_server(ServerGone(text), "rolling_back")

    # --------------------------------------------------------------- epochs

    def _open(self, epoch: int) -> None:
        self._observer.on_epoch_begin(epoch)
        self._settings.tell()
        self._settings.pace()
        self._proceed(epoch)

    def _proceed(self, epoch: int) -> None:
        """Opens an epoch; without a barrier also the one after it."""
        self._command(Proceed(epoch=epoch))

    def _keep_epoch(self, report: EpochEnded, body: memoryview) -> None:
        epoch = report.epoch
        if epoch < self._epochs.next:  # its end was reported, and then forgotten
            self._checkpoint()
            self._proceed(epoch + 1)
            self._halt()
            return
        state = self._ask(AskState(), OptimizerState, STATE_TIMEOUT_S + self._slow_s)
        if state is None:
            text = "no worker sent its optimizer state; the model keeps an older one"
            self._observer.on_event("warning", text=text)
        else:
            self._keep_snapshot(*state)
        found = None if state is None else bytes(state[1])
        # With this checkpoint the epoch is not trained again, whatever happens.
        self._checkpoint()
        self._epochs.ended(read_epoch(report, body, found))

    @property
    def _slow_s(self) -> float:
        """Seconds that a worker's whole state takes on a slow link."""
        if self._resume_point is None:
            return 0.0
        return self._resume_point.server.sizes.frame_bytes / SLOW_BYTES_S

    # ------------------------------------------------------------ questions

    def _ask(
        self, command: AskCenter | AskState, kind: type[R], timeout_s: float
    ) -> tuple[R, memoryview] | None:
        """Sends a request and waits; other messages are handled later."""
        # Sent again by `_repeat`: a server that takes over is asked as well.
        self._command(command)
        try:
            return self._inbox.wait_for(kind, timeout_s)
        finally:
            self._standing.answered()

    def center(self) -> tuple[Vector, Vector] | None:
        """Requests the current center; returns None if no server answers in time."""
        try:
            found = self._ask(AskCenter(), CenterShown, CENTER_TIMEOUT_S)
        except ServerGone as error:
            # A callback asks: the next turn raises it. The exit of the process was
            # taken, so that nothing else would tell of it.
            self._gone = error
            return None
        return None if found is None else read_center(*found)[:2]

    def rescue(self, timeout_s: float = RESCUE_S) -> Rescue | None:
        """Returns what two requests give of the run, after Ctrl-C.

        It uses a new connection, as the old one may have been cut within a frame.

        Args:
            timeout_s: Seconds for each answer.
        """
        self._supervisor.dismiss()
        with contextlib.suppress(OSError, ShoalError):
            old = self._servers.call_again(timeout_s)
            if not old:
                return None
            try:
                found = self._ask(AskCenter(), CenterShown, timeout_s)
            finally:
                # A server ends without a controller. Once it has answered, it knows
                # the new connection and does not need the old one.
                for link in old:
                    link.close()
            if found is None:
                return None
            state = None
            with contextlib.suppress(KeyboardInterrupt):  # pressed again: no rescue
                state = self._ask(AskState(), OptimizerState, timeout_s)
            vector, statistics, _ = read_center(*found)
            return Rescue(
                vector=vector,
                statistics=statistics,
                samples=found[0].samples,
                clock=found[0].state.clock,
                optimizer_state=None if state is None else bytes(state[1]),
            )
        return None

    # --------------------------------------------------------------- ending

    def _finish(self) -> None:
        """Ends the run for all processes, and handles their last messages."""
        self._command(Finish())
        self._command(Stop())
        for report, body in self._inbox.last(GRACE_S):
            if isinstance(report, Exchanges):
                self._hear(report, body)
        self._pool.dismiss(self._supervisor.workers(), GRACE_S)

    def _command(self, command: Command, body: bytes = b"") -> None:
        self._standing.note(command)
        self._servers.command(command, body)

    def _command_all(self, commands: Iterable[Command]) -> None:
        for command in commands:
            self._command(command)

    def close(self) -> None:
        """Ends every process; safe to repeat."""
        self._pool.end(0.0)
        self._servers.close()
