"""The workers' processes: running ones, lost ones, and replacements.

`restart_policy.py` decides what follows a loss; this file carries it out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, final

from shoal.engine.controller.observer import Observer
from shoal.engine.controller.process_pool import ProcessPool
from shoal.engine.controller.start_progress import StartProgress
from shoal.engine.coordination import restart_policy
from shoal.engine.coordination.timeouts import PAUSE_S
from shoal.engine.transport.heartbeat import start_limit_s
from shoal.engine.transport.messages.controller_to_server import Expect, WorkerEnded
from shoal.engine.transport.messages.server_to_controller import Joined
from shoal.engine.worker.spec import WorkerSpec
from shoal.errors import WorkerLost
from shoal.launchers.base import Exit

LAST_WORDS_S = 1.0  # for a process that lost its connection to report why it ends


@dataclass(kw_only=True)
class WorkerProcess:
    """One worker's process.

    Args:
        hint: The rank it was started for.
        token: Name of the process.
        started: Monotonic seconds; later if the controller was stopped meanwhile.
        rank: Rank from the server, -1 before.
        reason: Reason why the server dropped its connection, empty before.
        replaces: Monotonic seconds of the loss that it replaces, 0 for none.
        ends_at: Monotonic seconds when its process is ended, 0 for never.
        works_since: Monotonic seconds when it had compiled, 0 before.
        is_warm: Its process was a waiting one.
        progress: Progress of its start.
    """

    hint: int
    token: str
    started: float
    rank: int = -1
    reason: str = ""
    replaces: float = 0.0
    ends_at: float = 0.0
    works_since: float = 0.0
    is_warm: bool = False
    progress: StartProgress


class Ended(NamedTuple):
    """The end of a worker's process.

    Args:
        exit: Its exit.
        at: Monotonic seconds when it was seen.
    """

    exit: Exit
    at: float


@final
class WorkerSupervisor:
    """Starts workers, notices their ends, and replaces them.

    Args:
        pool: Pool of the processes.
        policy: Policy for lost processes.
        log: Returns the path of a worker's log, None for no log.
        observer: Observer of the run.
        tell: Tells the server which process is "gone", and how many workers to
            "expect" when one will not be replaced.
        spares: Processes that wait for the loss of a worker.
    """

    def __init__(
        self,
        pool: ProcessPool,
        policy: restart_policy.RestartPolicy,
        log: Callable[[int], Path | None],
        observer: Observer,
        tell: Callable[[Expect | WorkerEnded], None],
        spares: int = 0,
    ) -> None:
        self._pool, self._policy, self._log = pool, policy, log
        self._observer, self._tell = observer, tell
        self._clock = pool.environment.clock
        self._make_spec: Callable[[int, str], WorkerSpec] | None = None
        self._processes: dict[str, WorkerProcess] = {}
        self._ended: dict[str, Ended] = {}
        self._due: list[tuple[float, WorkerProcess]] = []
        self._awaited: dict[str, int] = {}
        self._spares, self._restarts = spares, 0
        self._failures: dict[int, int] = {}
        self._longest_start_s = 0.0
        self._watched = self._clock()
        self._is_dismissed = False

    @property
    def start_limit_s(self) -> float:
        """Seconds that a worker's process may take to start; a server takes less."""
        longest_s = self._longest_start_s
        # In a session all may be running already, and the next one is not.
        return start_limit_s(longest_s and max(longest_s, self._pool.longest_join_s))

    def _limit_s(self, process: WorkerProcess) -> float:
        if process.is_warm:
            return start_limit_s(self._longest_start_s, is_warm=True)
        return self.start_limit_s

    def give(
        self,
        workers: int,
        make_spec: Callable[[int, str], WorkerSpec],
        growth: int = 0,
    ) -> None:
        """Gives every worker its spec.

        Args:
            workers: Number of workers that begin now.
            make_spec: Makes a worker's spec.
            growth: Number of workers that begin when a machine has room; until then
                they do not count.
        """
        self._make_spec = make_spec
        for hint in range(workers):
            self._start(hint)
        for hint in range(workers, workers + growth):
            self._awaited[self._pool.awaited(hint)] = hint

    def _start(self, hint: int, replaces: float = 0.0) -> None:
        self._begin(hint, self._pool.worker(hint), replaces)

    def _begin(self, hint: int, token: str, replaces: float = 0.0) -> None:
        """Gives a process its spec: it is one of the workers from now on."""
        if self._make_spec is None:
            raise RuntimeError("workers have no part yet; call `give` first")
        began = self._clock()
        # One that has waited for longer than a start takes has its imports done.
        self._processes[token] = WorkerProcess(
            hint=hint,
            token=token,
            started=began,
            replaces=replaces,
            is_warm=bool(replaces) and self._pool.age_s(token) > self._longest_start_s,
            progress=StartProgress(spent=partial(self._pool.spent_s, token)),
        )
        self._pool.give(token, self._make_spec(hint, token), self._log(hint))

    def joined(self, report: Joined) -> None:
        """Records the rank that the server gave a worker."""
        process = self._processes.get(report.token)
        if process is not None:
            process.rank = report.rank
            process.reason, process.ends_at = "", 0.0  # it may have joined before
            pool = self._pool
            startup_s = round(max(0.0, self._heard - process.started), 3)
            pool.longest_join_s = max(pool.longest_join_s, startup_s)
            self._observer.on_event(
                "worker_started",
                startup_s=startup_s,
                rank=report.rank,
                incarnation=report.incarnation,
                pid=report.pid,
                node=report.node,
            )

    def ready(self, rank: int) -> None:
        """Records that a worker has compiled its model."""
        now = self._clock()
        for process in self._processes.values():
            if process.rank != rank or process.works_since:
                continue
            process.works_since = now
            start_s = self._heard - process.started
            self._longest_start_s = max(self._longest_start_s, start_s)
            if process.replaces:
                seconds = round(now - process.replaces, 3)
                self._observer.on_event("worker_replaced", rank=rank, seconds=seconds)
                process.replaces = 0.0

    @property
    def _heard(self) -> float:
        """When the current message was sent, or earlier: the controller may pause."""
        now = self._clock()
        return self._watched if now - self._watched > PAUSE_S else now

    def left(self, rank: int, reason: str, *, is_hung: bool) -> None:
        """Records a lost connection: the process ends soon, or is ended."""
        grace_s = 0.0 if is_hung else LAST_WORDS_S
        for process in self._processes.values():
            if process.rank == rank and not process.ends_at:
                process.reason = reason if is_hung else f"lost its connection: {reason}"
                process.ends_at = self._clock() + grace_s

    def workers(self) -> dict[int, str]:
        """Tokens of the working processes, by the ranks they were started for."""
        processes = [
            h for h in self._processes.values() if h.works_since and not h.ends_at
        ]
        return {h.hint: h.token for h in processes if h.token not in self._ended}

    def living(self) -> list[str]:
        """Tokens of all workers whose process lives, as far as known."""
        return [token for token in self._processes if token not in self._ended]

    @property
    def has_ended(self) -> bool:
        """Whether a worker has ended that does not count as lost yet."""
        return bool(self._ended)

    def watch(self, *, is_idle: bool = True) -> dict[str, Exit]:
        """Looks after processes; returns exits of those that are not workers.

        Workers that ended with their server do not count as lost.

        Args:
            is_idle: Whether no message of a server was left before this look.

        Raises:
            WorkerLost: Too many are lost.
        """
        now = self._clock()
        self._end_hung(now)
        for process in self._running():
            if process.ends_at and process.ends_at <= now:
                self._pool.stop(process.token)
        exits = self._pool.poll()
        self._welcome(exits)
        others = {t: exits[t] for t in exits.keys() - self._processes.keys()}
        # A worker ends by itself when a server is lost, and its end may be seen before
        # that of the server. So it counts at a later look, when all that the servers
        # had sent was read, and with it the end of a connection.
        before = list(self._ended.items())
        for token in exits.keys() & self._processes:
            self._ended[token] = Ended(exits[token], now)
        if others:  # the server comes first
            return others
        for token, ended in before:
            if is_idle or now - ended.at > LAST_WORDS_S:
                self._count(token, ended)
        for due in [d for d in self._due if d[0] <= now]:
            self._due.remove(due)
            self._start(due[1].hint, replaces=due[1].replaces)
        if self._spares and all(
            process.works_since for process in self._processes.values()
        ):
            for token in self._pool.keep_spares(self._spares):  # this slows no start
                pid = self._pool.pid(token)
                self._observer.on_event("process_started", name="spare", pid=pid)
        return {}

    def _count(self, token: str, ended: Ended) -> None:
        """Counts a worker that has ended as lost, unless the run is over."""
        del self._ended[token]
        process = self._processes.pop(token)
        if not self._is_dismissed:
            self._lost(process, ended)

    def _running(self) -> list[WorkerProcess]:
        """Returns the workers whose process lives, as far as known."""
        return [self._processes[token] for token in self.living()]

    def _welcome(self, exits: dict[str, Exit]) -> None:
        """Begins awaited workers that have room now; gives up those that cannot."""
        for token, hint in list(self._awaited.items()):
            gone = exits.pop(token, None)
            if gone is None and self._pool.is_waiting(token):
                continue
            del self._awaited[token]
            if gone is None:
                self._begin(hint, token)
                continue
            text = f"{gone.name} does not join: {gone.reason}"
            self._observer.on_event("warning", text=text)

    def _end_hung(self, now: float) -> None:
        """Gives up processes that do not start, even if the server never saw them."""
        pause_s, self._watched = now - self._watched, now
        for process in self._running():
            if process.works_since or process.ends_at:
                continue
            if self._pool.is_waiting(process.token):  # no machine has room for it yet
                process.started = now
                continue
            limit_s, progress = self._limit_s(process), process.progress
            if pause_s > PAUSE_S:  # it may have reported in the pause
                process.started = min(now, process.started + pause_s)
                progress.forgive(pause_s)
            progress.look(now)
            late_s = now - process.started
            if progress.is_over(now, late_s=late_s, limit_s=limit_s):
                process.reason = f"hung: not ready after {limit_s:.1f} s"
                process.ends_at = now

    def take_restart(self) -> bool:
        """Spends one of the replacements that the policy allows, if one is left."""
        if self._restarts >= self._policy.max_restarts:
            return False
        self._restarts += 1
        return True

    def recall(self) -> None:
        """Ends all workers, as their server is lost; they do not count as lost."""
        for token in (*self._processes, *self._awaited):
            self._pool.stop(token)
        self._processes.clear()
        self._awaited.clear()
        self._ended.clear()
        self._due.clear()

    def dismiss(self) -> None:
        """Ends supervision after the run: ended processes are not replaced."""
        self._is_dismissed = True
        self._due.clear()
        for token, ended in self._ended.items():  # just before the end of the run
            if ended.exit.code:
                rank, reason = self._processes[token].hint, ended.exit.reason
                self._observer.on_event("worker_lost", rank=rank, reason=reason)
        for token in self._awaited:
            self._pool.stop(token)
        self._awaited.clear()

    def _lost(self, process: WorkerProcess, ended: Ended) -> None:
        now, gone = self._clock(), ended.exit
        self._tell(WorkerEnded(token=process.token))
        # A process that was ended here has the reason for it, not that of its signal.
        # One whose node is lost was only silent because of that.
        was_ended = bool(process.ends_at) and process.ends_at <= ended.at
        reason = process.reason if was_ended and not gone.is_lost else gone.reason
        is_settled = (
            process.works_since and now - process.works_since > restart_policy.SETTLED_S
        )
        # Only failures in a row make the next start wait.
        failures = 0 if is_settled else self._failures.get(process.hint, 0)
        self._failures[process.hint] = failures + 1
        self._observer.on_event("worker_lost", rank=process.hint, reason=reason)
        loss = restart_policy.Loss(
            name=gone.name,
            reason=reason,
            living=len(self._processes) + len(self._due),
            failures=failures,
        )
        match restart_policy.decide(loss, self._policy, self._restarts):
            case restart_policy.Restart(after_s):
                self._restarts += 1
                process.replaces = now
                self._due.append((now + after_s, process))
            case restart_policy.Shrink(workers):
                self._tell(Expect(workers=workers))
                text = f"{gone.name} {reason}; going on with {workers} worker(s)"
                self._observer.on_event("warning", text=text)
            case restart_policy.Abort(why):
                look = ", or look at the output:" if gone.output else "."
                raise WorkerLost(
                    f"{why}. Expected at least {self._policy.min_workers} worker(s) to "
                    f"be left. Raise max_restarts if losses are random{look}",
                    rank=process.hint,
                    traceback=gone.output,
                )
