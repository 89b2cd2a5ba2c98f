"""The controller: follows a run, and looks after its processes meanwhile.

It decides nothing about training (the server does) and nothing about Keras (the
observer does). It turns what processes and the server report into calls of the
observer, and the observer's wishes into commands.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from shoal.engine import finite, recovery
from shoal.engine.ledger import Piece
from shoal.engine.observer import (
    EpochsInOrder,
    Observer,
    Rescue,
)
from shoal.engine.pulse import Pulse, Silent, hear
from shoal.engine.reports import fields, read_center, read_epoch, read_records
from shoal.engine.restart import read_restart
from shoal.engine.server import ServerSpec
from shoal.engine.serving import ServeInherited
from shoal.engine.slots import sweep, tag_of
from shoal.engine.staff import Staff
from shoal.engine.stage import Stage
from shoal.engine.wire import Head, Link
from shoal.engine.worker import WorkerSpec
from shoal.errors import (
    ClusterError,
    DataError,
    ExchangeTimeout,
    ShoalError,
    WorkerFailed,
)
from shoal.launchers.base import Exit
from shoal.plan.often import Often
from shoal.vectors import Vector

POLL_S = 0.1
GRACE_S = 2.0
GREETING_S = 60.0  # for a server's start, where no start of a worker was measured
STATE_TIMEOUT_S = 20.0
CENTER_TIMEOUT_S = 2.0
RESCUE_S = 0.8  # for each question after Ctrl-C
_EVENTS = {"left": "worker_left"}  # names in the records of a run, where they differ


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the controller needs to know of the plan.

    Args:
        workers: Processes aimed at.
        policy: What to do when one is gone.
        first_epoch: The epoch the run starts with.
        epochs: The epoch it ends before.
        log: Path of a worker's log, None to keep none.
        often: Between checkpoints.
    """

    workers: int
    policy: recovery.RecoveryPolicy
    first_epoch: int
    epochs: int
    log: Callable[[int], Path | None]
    often: Often


class ServerGone(ClusterError):
    """The server of the run is gone; whoever follows the run may start another."""


class Controller:
    """Follows one run; use it as a context, so that its processes end.

    Args:
        job: What to do.
        observer: Whom to tell.
        stage: Whose processes do it; whoever made it closes it.
    """

    def __init__(self, job: Job, observer: Observer, stage: Stage) -> None:
        self._job, self._observer, self._stage = job, observer, stage
        self._link: Link | None = None
        self._secret = b""
        self._learning_rate: float | None = None
        self._epochs = EpochsInOrder(job.first_epoch, job.epochs, observer, self._open)
        self._staff = Staff(stage, job.policy, job.log, observer, self._expect)
        self._is_halted = False
        self._void: tuple[Piece, ...] = ()
        self._void_rows: tuple[int, ...] = ()
        self._rollbacks = 0
        self._parts: Callable[[int, str], WorkerSpec] | None = None
        self._server: ServerSpec | None = None
        self._opened = job.first_epoch
        self._checkpointed, self._samples = time.monotonic(), 0
        self._backlog: deque[tuple[Head, memoryview]] = deque()
        self._pulse = Pulse()

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------- starting

    def give(
        self, server: ServerSpec, make_spec: Callable[[int, str], WorkerSpec]
    ) -> None:
        """Sends everyone their part and connects to the server."""
        self._learning_rate = server.learning_rate
        self._secret = server.secret
        self._server, self._parts = server, make_spec
        self._begin(server, make_spec)

    def _begin(
        self, server: ServerSpec, make_spec: Callable[[int, str], WorkerSpec]
    ) -> None:
        stage, began = self._stage, time.monotonic()
        descriptor = stage.listener.fileno()
        stage.give(stage.server, ServeInherited(spec=server, descriptor=descriptor))
        self._staff.give(self._job.workers, make_spec)
        self._link = self._connect(server.secret)
        startup_s = time.monotonic() - began
        self._pulse = Pulse.of(startup_s, server.sizes.slot_bytes, self._job.workers)
        self._command("control")

    def _connect(self, secret: bytes) -> Link:
        """Connects to the server; its socket listens already, it answers when up."""
        try:
            limit_s = min(GREETING_S, self._staff.start_limit_s)
            return self._call(secret, limit_s, self._watch)
        except (OSError, ExchangeTimeout) as error:
            raise ServerGone(
                f"the server of the run did not start: {error}. "
                "A server process on this machine was expected to answer. "
                "See whether memory is free."
            ) from None

    def _call(
        self, secret: bytes, limit_s: float, meanwhile: Callable[[], None]
    ) -> Link:
        address, server = self._stage.address, self._server
        identity = None if server is None else server.identity
        certificate = None if identity is None else identity.certificate
        return Link(
            address,
            secret,
            certificate=certificate,
            timeout_s=limit_s,
            meanwhile=meanwhile,
        )

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
        self._staff.dismiss()
        self._finish()

    def _go_on(self, error: ServerGone) -> None:
        """Starts servers until one lives.

        Raises:
            ServerGone: No replacement is left.
        """
        while self._staff.take_restart():
            try:
                self._replace_server(error)
            except ServerGone as again:
                error = again
            else:
                return
        raise error

    def _replace_server(self, error: ServerGone, event: str = "server_lost") -> None:
        """Starts another server where the last checkpoint left the run."""
        server, make_spec = self._server, self._parts
        if server is None or make_spec is None:
            raise error
        began = time.monotonic()
        self._observer.on_event(event, reason=str(error).partition(". ")[0])
        if self._link is not None:
            self._link.close()
        self._backlog.clear()
        self._staff.recall()
        self._stage.stop(self._stage.server)  # it may only hang
        sweep(tag_of(server.secret))
        self._stage.start_server()
        if server.restart is None:
            self._observer.on_event("rollback", lineage=0, clock=0, committed={})
        else:  # a third server must not share the lineage of the second
            next_lineage = int(server.restart.sequencer["lineage"]) + 1
            restart = server.restart.at_least(next_lineage)
            self._server = replace(server, restart=restart)
        self._begin(replace(server, learning_rate=self._learning_rate), make_spec)
        self._command("proceed", epoch=self._opened)
        if self._is_halted:
            self._command("halt")
        seconds = round(time.monotonic() - began, 3)
        self._observer.on_event("server_replaced", seconds=seconds)

    def _turn(self) -> None:
        """Hears one message, or looks after the processes when there is none."""
        self._observer.on_turn()
        if self._backlog:
            self._hear(*self._backlog.popleft())
        else:
            message = self._receive(POLL_S)
            if message is not None:
                self._hear(*message)
        if not self._epochs.are_over:
            self._watch()
            if self._job.often.is_due(self._samples, self._checkpointed):
                self._checkpoint()

    def _checkpoint(self) -> None:
        """Asks for all that another server would need; it comes when it is ready."""
        self._checkpointed, self._samples = time.monotonic(), 0
        self._command("checkpoint")

    def _receive(self, timeout_s: float) -> tuple[Head, memoryview] | None:
        """One message of the server, None when none comes in time."""
        link = self._link
        if link is None:
            raise RuntimeError("the controller has no server yet; call `give` first")
        try:
            return hear(link, self._pulse, timeout_s)
        except Silent as silent:
            self._lost_server(why=str(silent))
        except OSError:
            self._lost_server()

    def _watch(self) -> None:
        gone = self._staff.watch()
        if gone is not None:
            self._lost_server(gone)

    def _lost_server(self, gone: Exit | None = None, why: str = "") -> NoReturn:
        until = time.monotonic() + GRACE_S
        while gone is None and not why and time.monotonic() < until:
            gone = self._stage.poll().get(self._stage.server)
        if not why:
            why = f"{gone.reason}\n{gone.output}" if gone else "closed its connection"
        raise ServerGone(
            f"the server of the run is gone: {why.strip()}. "
            "It was expected to live as long as the run, and no replacement was left. "
            "Raise max_restarts; the model holds the center of the last epoch's end."
        )

    def _hear(self, head: Head, body: memoryview) -> None:
        keep = {
            "records": self._keep_records,
            "epoch": self._keep_epoch,
            "restart": self._keep_restart,
        }.get(head["kind"])
        if keep is not None:
            keep(head, body)
        else:
            self._hear_of(head["kind"], head)

    def _hear_of(self, kind: str, head: Head) -> None:
        """Something happened to workers, or to the run."""
        if kind == "joined":
            facts = {k: head[k] for k in ("incarnation", "pid", "node")}
            self._staff.joined(head["token"], head["rank"], facts)
        elif kind == "ready":
            self._staff.ready(head["rank"])
        elif kind == "failed":
            self._failed(head)
        elif kind == "not_finite":
            self._not_finite(head)
        elif kind == "broken":
            raise ClusterError(head["reason"])
        elif kind not in ("center", "optimizer"):  # answers that came too late
            if kind == "rollback":
                self._keep_lineage(head["lineage"])
            self._observer.on_event(_EVENTS.get(kind, kind), **fields(head))
            if kind == "left":
                rank, reason = head["rank"], head["reason"]
                self._staff.left(rank, reason, is_hung=head["is_hung"])

    def _keep_restart(self, head: Head, body: memoryview) -> None:
        if self._server is not None:
            restart = read_restart(head, body)
            self._server = replace(self._server, restart=restart)
            self._observer.on_checkpoint(restart)

    def _keep_lineage(self, lineage: int) -> None:
        """A server after this one begins above every lineage there was."""
        if self._server is not None and self._server.restart is not None:
            restart = self._server.restart.at_least(lineage)
            self._server = replace(self._server, restart=restart)

    def _keep_records(self, head: Head, body: memoryview) -> None:
        records, sums = read_records(head, body)
        self._samples += sum(record.samples for record in records)
        self._observer.on_records(records, sums)
        self._tell_learning_rate()
        wants_stop = self._observer.wants_stop
        if wants_stop and not self._is_halted and not self._epochs.are_over:
            self._is_halted = True
            self._command("halt")

    def _not_finite(self, head: Head) -> None:
        """Numbers of a worker are NaN or infinite: tells, and goes on as chosen.

        Raises:
            NotFinite: The run is not to go on.
        """
        self._observer.on_event("not_finite", **fields(head))
        is_rolled_back = head["reaction"] == "rollback"
        is_over = is_rolled_back and self._rollbacks >= finite.MOST_ROLLBACKS
        if is_over or head["reaction"] == "stop":
            raise finite.error_of(head)
        self._observer.on_event("warning", text=finite.what_follows(head))
        parts = self._parts
        if is_rolled_back and parts is not None:
            epoch, ranges = int(head["epoch"]), head["ranges"]
            void = (*self._void, *(Piece(epoch, int(a), int(b)) for a, b in ranges))
            rows = (*self._void_rows, *head["rows"])
            self._rollbacks += 1
            self._void, self._void_rows = void, rows
            self._parts = lambda hint, token: replace(
                parts(hint, token), void=void, void_rows=rows
            )
            self._replace_server(ServerGone(finite.describe(head)), "rolling_back")

    def _failed(self, head: Head) -> None:
        where = f"worker {head['rank']} at step {head['step']:,}"
        if head.get("is_data"):
            text = str(head["error"]).removeprefix("DataError: ")
            raise DataError(f"{where}: {text}.\n\n{head['traceback']}")
        raise WorkerFailed(
            f"{where} raised {head['error']}. "
            "Code of the model, its layers, loss or metrics must run on workers as "
            "it does here. Its traceback follows; correct it and call fit again.",
            rank=head["rank"],
            step=head["step"],
            traceback=head["traceback"],
        )

    # --------------------------------------------------------------- epochs

    def _open(self, epoch: int) -> None:
        self._opened = epoch
        self._observer.on_epoch_begin(epoch)
        self._tell_learning_rate()
        # Without a barrier it may have begun; then the one after it may begin now.
        self._command("proceed", epoch=epoch)

    def _keep_epoch(self, head: Head, body: memoryview) -> None:
        state = self._ask("state", "optimizer", STATE_TIMEOUT_S)
        if state is None:
            text = "no worker sent its optimizer state; the model keeps an older one"
            self._observer.on_event("warning", text=text)
        found = None if state is None else bytes(state[1])
        # From here on this epoch is not trained again, whatever happens.
        self._checkpoint()
        self._epochs.ended(read_epoch(head, body, found))

    def _tell_learning_rate(self) -> None:
        """A learning rate set by a callback reaches workers with their next answer."""
        value = self._observer.learning_rate
        if value is not None and value != self._learning_rate:
            self._learning_rate = value
            self._command("learning_rate", value=value)

    def _expect(self, workers: int) -> None:
        self._command("expect", workers=workers)

    # ------------------------------------------------------------ questions

    def _ask(
        self, command: str, kind: str, timeout_s: float
    ) -> tuple[Head, memoryview] | None:
        """Asks the server and waits; what else it says meanwhile is heard later."""
        self._command(command)
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            message = self._receive(POLL_S)
            if message is None:
                self._watch()
                continue
            if message[0]["kind"] == kind:
                return message
            self._backlog.append(message)
            if message[0]["kind"] == "failed":
                break  # the run ends with it
        return None

    def center(self) -> tuple[Vector, Vector] | None:
        """Asks for the center as it is now; None when nobody answers in time."""
        try:
            found = self._ask("center", "center", CENTER_TIMEOUT_S)
        except ServerGone:
            return None  # the next turn finds it gone as well
        return None if found is None else read_center(*found)[:2]

    def rescue(self, patience_s: float = RESCUE_S) -> Rescue | None:
        """After Ctrl-C: what can be had of the run within two questions.

        Over a new connection, as the old one may have been cut within a frame.

        Args:
            patience_s: For each answer.
        """
        if self._link is None:
            return None
        self._staff.dismiss()
        with contextlib.suppress(OSError, ShoalError):
            # The old link stays open: a server without a controller ends.
            old = self._link
            self._link = self._call(self._secret, patience_s, lambda: None)
            self._command("control")
            found = self._ask("center", "center", patience_s)
            old.close()
            if found is None:
                return None
            state = self._ask("state", "optimizer", patience_s)
            vector, statistics, _ = read_center(*found)
            return Rescue(
                vector=vector,
                statistics=statistics,
                samples=int(found[0]["samples"]),
                clock=int(found[0]["clock"]),
                optimizer_state=None if state is None else bytes(state[1]),
            )
        return None

    # --------------------------------------------------------------- ending

    def _finish(self) -> None:
        """Lets everyone go, and hears what they did until then."""
        link = self._link
        with contextlib.suppress(OSError, ExchangeTimeout):
            if link is not None:
                link.send({"kind": "finish"})
                link.send({"kind": "stop"})
            while link is not None:
                self._backlog.append(link.receive(timeout_s=GRACE_S))
        for head, body in self._backlog:
            if head["kind"] == "records":
                self._hear(head, body)
        self._stage.end(GRACE_S)

    def _command(self, kind: str, **values: Any) -> None:
        if self._link is None:
            return
        try:
            self._link.send({"kind": kind, **values})
        except OSError:
            self._lost_server()

    def close(self) -> None:
        """Ends every process; safe to repeat."""
        self._stage.end(0.0)
        sweep(tag_of(self._secret))
        if self._link is not None:
            self._link.close()
            self._link = None
