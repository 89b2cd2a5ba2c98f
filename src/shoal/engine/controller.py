"""The controller: starts server and workers, watches them, and follows the run.

It decides nothing about training (the server does) and nothing about Keras (the
observer does). It turns what processes and the server report into calls of the
observer, and the observer's wishes into commands.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.engine import recovery
from shoal.engine.observer import EpochEnd, Observer, Record, Rescue
from shoal.engine.opening import ServeInherited
from shoal.engine.server import ServerSpec
from shoal.engine.wire import Head, Link
from shoal.engine.worker import WorkerSpec
from shoal.errors import (
    ClusterError,
    ExchangeTimeout,
    ShoalError,
    WorkerFailed,
    WorkerLost,
)
from shoal.launchers.base import Exit, Role
from shoal.launchers.process import ProcessLauncher
from shoal.vectors import Vector

POLL_S = 0.1
GRACE_S = 2.0
STATE_TIMEOUT_S = 20.0
CENTER_TIMEOUT_S = 2.0
RESCUE_S = 0.8  # for each question after Ctrl-C


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the controller needs to know before models and data are ready.

    Args:
        workers: Processes aimed at.
        policy: What to do when one is gone.
        threads: Compute threads of each.
        first_epoch: The epoch the run starts with.
        epochs: The epoch it ends before.
        has_barrier: Workers wait between epochs.
        preload: Modules a worker imports while it waits for its spec.
        without: Modules it does without meanwhile; see `Role`.
        log: Path of a worker's log, None to keep none.
        shared: Descriptors that workers inherit.
    """

    workers: int
    policy: recovery.RecoveryPolicy
    threads: int
    first_epoch: int
    epochs: int
    has_barrier: bool
    preload: tuple[str, ...]
    without: tuple[str, ...]
    log: Callable[[int], Path | None]
    shared: tuple[int, ...] = ()


@dataclass
class _Worker:
    """A worker process, as the controller sees it."""

    hint: int
    token: str
    started: float
    rank: int = -1
    is_replacement: bool = False
    lost_at: float = 0.0


class Controller:
    """Owns the processes of one run; use it as a context, so that they all end.

    Args:
        job: What to start.
        observer: Whom to tell.
    """

    def __init__(self, job: Job, observer: Observer) -> None:
        self._job, self._observer = job, observer
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.address: tuple[str, int] = self._listener.getsockname()
        descriptor = self._listener.fileno()
        self._launcher = ProcessLauncher(shared=(*job.shared, descriptor))
        self._server = ""
        self._workers: dict[str, _Worker] = {}
        self._due: list[tuple[float, _Worker]] = []
        self._restarts = 0
        self._link: Link | None = None
        self._secret = b""
        self._make_spec: Callable[[int, str], WorkerSpec] | None = None
        self._learning_rate: float | None = None
        self._ended: dict[int, EpochEnd] = {}
        self._next_epoch = job.first_epoch
        self._is_over = job.first_epoch >= job.epochs
        self._is_halted = False
        self._backlog: deque[tuple[Head, memoryview]] = deque()

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------- starting

    def launch(self) -> None:
        """Starts all processes; they import what they need meanwhile."""
        role = Role(target="shoal.engine.opening:serve", name="server")
        self._server = self._launcher.start(role)
        for hint in range(self._job.workers):
            self._start_worker(hint)

    def _start_worker(self, hint: int) -> _Worker:
        role = Role(
            target="shoal.engine.worker:work",
            name=f"worker-{hint}",
            preload=self._job.preload,
            without=self._job.without,
            threads=self._job.threads,
            log=self._job.log(hint),
        )
        token = self._launcher.start(role)
        worker = _Worker(hint=hint, token=token, started=time.monotonic())
        self._workers[token] = worker
        if self._make_spec is not None:
            self._launcher.give(token, self._make_spec(hint, token))
        return worker

    def give(
        self, server: ServerSpec, make_spec: Callable[[int, str], WorkerSpec]
    ) -> None:
        """Sends everyone their part and connects to the server."""
        given = ServeInherited(spec=server, descriptor=self._listener.fileno())
        self._launcher.give(self._server, given)
        self._make_spec = make_spec
        self._learning_rate = server.learning_rate
        self._secret = server.secret
        for worker in list(self._workers.values()):
            self._launcher.give(worker.token, make_spec(worker.hint, worker.token))
        self._link = self._connect(server.secret)
        self._command("control")

    def _connect(self, secret: bytes) -> Link:
        """Connects to the server; its socket listens already, it answers when up."""
        try:
            return Link(self.address, secret)
        except (OSError, ExchangeTimeout) as error:
            exits = self._launcher.poll()
            gone = exits.get(self._server)
            why = f"{gone.reason}\n{gone.output}" if gone else str(error)
            raise ClusterError(
                f"the server of the run did not start: {why}. "
                "A server process on this machine was expected to answer. "
                "See the output above, and whether memory is free."
            ) from None

    # ------------------------------------------------------------ following

    def run(self) -> None:
        """Follows the run to its end.

        Raises:
            WorkerFailed: User code raised on a worker.
            WorkerLost: Workers are gone beyond the limits of the policy.
            ClusterError: The server is gone.
        """
        if self._is_over:
            return
        self._open(self._next_epoch)
        while not self._is_over:
            self._turn()
        self._finish()

    def _turn(self) -> None:
        """Hears one message, or looks after the processes when there is none."""
        link = self._link
        if link is None:
            raise ClusterError("the controller has no server; call `give` first.")
        ready, _, _ = select.select([link], [], [], 0 if self._backlog else POLL_S)
        if self._backlog:
            self._hear(*self._backlog.popleft())
        elif ready:
            try:
                head, body = link.receive()
            except OSError:
                self._lost_server()
            else:
                self._hear(head, body)
        self._watch()

    def _lost_server(self, gone: Exit | None = None) -> None:
        until = time.monotonic() + GRACE_S
        while gone is None and time.monotonic() < until:
            gone = self._launcher.poll().get(self._server)
        why = f"{gone.reason}\n{gone.output}" if gone else "closed its connection"
        raise ClusterError(
            f"the server of the run is gone: {why.strip()}. "
            "It was expected to live as long as the run. "
            "The model holds the center of the last epoch that ended."
        )

    def _hear(self, head: Head, body: memoryview) -> None:
        kind = head["kind"]
        if kind == "records":
            records = [Record(*record) for record in head["records"]]
            sums = {int(e): np.asarray(s) for e, s in head["sums"].items()}
            self._observer.on_records(records, sums)
            self._tell_learning_rate()
            if self._observer.wants_stop and not self._is_halted and not self._is_over:
                self._is_halted = True
                self._command("halt")
        elif kind == "epoch":
            self._keep_epoch(head, body)
        elif kind == "joined":
            self._joined(head)
        elif kind == "ready":
            self._ready(head)
        elif kind == "failed":
            self._failed(head)
        elif kind == "left":
            self._left(head)
        elif kind not in ("center", "optimizer"):  # answers that came too late
            self._observer.on_event(kind, **_fields(head))

    def _joined(self, head: Head) -> None:
        worker = self._workers.get(head["token"])
        if worker is not None:
            worker.rank = head["rank"]
            seconds = time.monotonic() - worker.started
            self._observer.on_event(
                "worker_started", startup_s=round(seconds, 3), **_fields(head)
            )

    def _ready(self, head: Head) -> None:
        for worker in self._workers.values():
            if worker.rank == head["rank"] and worker.is_replacement:
                seconds = time.monotonic() - worker.lost_at
                self._observer.on_event(
                    "worker_replaced", rank=worker.rank, seconds=round(seconds, 3)
                )
                worker.is_replacement = False

    def _failed(self, head: Head) -> None:
        where = f"worker {head['rank']} at step {head['step']:,}"
        raise WorkerFailed(
            f"{where} raised {head['error']}. "
            "Code of the model, its layers, loss or metrics must run on workers as "
            "it does here. Its traceback follows; correct it and call fit again.",
            rank=head["rank"],
            step=head["step"],
            traceback=head["traceback"],
        )

    def _left(self, head: Head) -> None:
        """A worker's connection is gone; its process, if it lives, is of no use."""
        self._observer.on_event("worker_left", **_fields(head))
        for worker in self._workers.values():
            if worker.rank == head["rank"] and not self._is_over:
                self._launcher.stop(worker.token)

    def _watch(self) -> None:
        for token, gone in self._launcher.poll().items():
            if token == self._server and not self._is_over:
                self._lost_server(gone)
            worker = self._workers.pop(token, None)
            if worker is not None and not self._is_over:
                self._lost(worker, gone)
        now = time.monotonic()
        for due in [d for d in self._due if d[0] <= now]:
            self._due.remove(due)
            replacement = self._start_worker(due[1].hint)
            replacement.is_replacement = True
            replacement.lost_at = due[1].lost_at

    def _lost(self, worker: _Worker, gone: Exit) -> None:
        worker.lost_at = time.monotonic()
        self._observer.on_event("worker_lost", rank=worker.hint, reason=gone.reason)
        loss = recovery.Loss(
            name=gone.name,
            reason=gone.reason,
            living=len(self._workers) + len(self._due),
            has_worked=worker.rank >= 0,
        )
        match recovery.decide(loss, self._job.policy, self._restarts):
            case recovery.Restart(after_s):
                self._restarts += 1
                self._due.append((worker.lost_at + after_s, worker))
            case recovery.Shrink(workers):
                self._command("expect", workers=workers)
                text = f"{gone.name} {gone.reason}; going on with {workers} worker(s)"
                self._observer.on_event("warning", text=text)
            case recovery.Abort(reason):
                raise WorkerLost(
                    f"{reason}. At least {self._job.policy.min_workers} worker(s) were "
                    "expected to live. Raise max_restarts, or look at the output:",
                    rank=worker.hint,
                    traceback=gone.output,
                )

    # --------------------------------------------------------------- epochs

    def _open(self, epoch: int) -> None:
        self._observer.on_epoch_begin(epoch)
        self._tell_learning_rate()
        # Without a barrier it may have begun; then the one after it may begin now.
        self._command("proceed", epoch=epoch)

    def _keep_epoch(self, head: Head, body: memoryview) -> None:
        vector, statistics = _vectors(head, body)
        state = self._ask("state", "optimizer", STATE_TIMEOUT_S)
        if state is None:
            text = "no worker sent its optimizer state; the model keeps an older one"
            self._observer.on_event("warning", text=text)
        end = EpochEnd(
            epoch=head["epoch"],
            rows=head["rows"],
            metrics=np.asarray(head["metrics"], np.float64),
            vector=vector,
            statistics=statistics,
            optimizer_state=None if state is None else bytes(state[1]),
        )
        # Without a barrier a later epoch may be complete before an earlier one.
        self._ended[end.epoch] = end
        while self._next_epoch in self._ended and not self._is_over:
            self._observer.on_epoch(self._ended.pop(self._next_epoch))
            self._next_epoch += 1
            is_last = self._next_epoch >= self._job.epochs
            if is_last or self._observer.wants_stop:
                self._is_over = True
            else:
                self._open(self._next_epoch)

    def _tell_learning_rate(self) -> None:
        """A learning rate set by a callback reaches workers with their next answer."""
        value = self._observer.learning_rate
        if value is not None and value != self._learning_rate:
            self._learning_rate = value
            self._command("learning_rate", value=value)

    # ------------------------------------------------------------ questions

    def _ask(
        self, command: str, kind: str, timeout_s: float
    ) -> tuple[Head, memoryview] | None:
        """Asks the server and waits; what else it says meanwhile is heard later."""
        self._command(command)
        until = time.monotonic() + timeout_s
        while self._link is not None and time.monotonic() < until:
            if not select.select([self._link], [], [], POLL_S)[0]:
                self._watch()
                continue
            head, body = self._link.receive(timeout_s=timeout_s)
            if head["kind"] == kind:
                return head, body
            self._backlog.append((head, body))
            if head["kind"] == "failed":
                break  # the run ends with it
        return None

    def center(self) -> tuple[Vector, Vector] | None:
        """Asks for the center as it is now; None when nobody answers in time."""
        found = self._ask("center", "center", CENTER_TIMEOUT_S)
        return None if found is None else _vectors(*found)

    def rescue(self) -> Rescue | None:
        """After Ctrl-C: what can be had of the run within two questions.

        Over a new connection, as the old one may have been cut within a frame.
        """
        if self._link is None:
            return None
        self._is_over = True
        self._due.clear()
        with contextlib.suppress(OSError, ShoalError):
            # The old link stays open: a server without a controller ends.
            old, self._link = (
                self._link,
                Link(self.address, self._secret, timeout_s=RESCUE_S),
            )
            self._command("control")
            found = self._ask("center", "center", RESCUE_S)
            old.close()
            if found is None:
                return None
            state = self._ask("state", "optimizer", RESCUE_S)
            vector, statistics = _vectors(*found)
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
        self._command("finish")
        self._command("stop")
        with contextlib.suppress(OSError, ExchangeTimeout):
            while self._link is not None:
                self._backlog.append(self._link.receive(timeout_s=GRACE_S))
        for head, body in self._backlog:
            if head["kind"] == "records":
                self._hear(head, body)
        self._launcher.close(GRACE_S)

    def _command(self, kind: str, **fields: Any) -> None:
        if self._link is not None:
            self._link.send({"kind": kind, **fields})

    def close(self) -> None:
        """Ends every process and frees the port; safe to repeat."""
        self._launcher.close()
        if self._link is not None:
            self._link.close()
            self._link = None
        self._listener.close()


def _fields(head: Head) -> dict[str, Any]:
    return {key: value for key, value in head.items() if key not in ("kind", "token")}


def _vectors(head: Head, body: memoryview) -> tuple[Vector, Vector]:
    """Center and statistics of a message of the server."""
    floats = np.frombuffer(body, np.float32)
    size = int(head["size"])
    return floats[:size], floats[size:]
