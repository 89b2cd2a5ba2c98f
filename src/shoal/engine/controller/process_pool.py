"""The processes of a run, started before their work is known.

Python, Keras and a backend take a second to import. Workers do it while the model is
built, the plan made and the data written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, final

from shoal.engine.controller.endpoints import ServerEndpoints, ServerSocket
from shoal.engine.controller.placement import place_servers
from shoal.engine.environment import SYSTEM, Environment
from shoal.host.scratch import Scratch
from shoal.launchers.base import Exit, Launcher, NodeSocket, Preload, Role
from shoal.launchers.process import ProcessLauncher
from shoal.launchers.shared import SharedBlob


@dataclass(frozen=True, kw_only=True)
class WorkerEnvironment:
    """Properties of workers that are known first.

    Args:
        workers: Number of workers.
        threads: Compute threads of each.
        preload: Modules that they import while they wait.
        environment: Environment variables of each.
        places: More variables for each place of a worker; ranks beyond the last place
            begin with the first again.
    """

    workers: int
    threads: int
    preload: Preload
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    places: tuple[Mapping[str, str], ...] = ()

    def place(self, number: int) -> int:
        """The place of a worker or a spare process, by its number."""
        return number % max(1, len(self.places))


CommandPrefix: TypeAlias = Callable[[Role], Sequence[str]]
OpenLauncher: TypeAlias = Callable[[SharedBlob], Launcher]
"""Makes the launcher of workers that share a blob."""


@final
class ProcessPool:
    """Server and workers that wait for their specs; it owns all that they share.

    Args:
        worker_environment: Properties of the workers.
        blob: Memory that they inherit, default None makes some.
        is_kept: Workers of a run that ended well wait for the next one.
        address: Host and port at which servers listen, each at the next free port; port
            0 is any.
        through: See `ProcessLauncher`.
        environment: Clock and connections of all that follow the run.
        open_launcher: Opens the launcher of workers, and of servers beside them;
            default None: processes of this machine, as the server that orders events
            always is.
    """

    def __init__(
        self,
        worker_environment: WorkerEnvironment,
        blob: SharedBlob | None = None,
        *,
        is_kept: bool = False,
        address: tuple[str, int] = ("127.0.0.1", 0),
        through: CommandPrefix | None = None,
        open_launcher: OpenLauncher | None = None,
        environment: Environment = SYSTEM,
    ) -> None:
        self.environment = environment
        self.worker_environment, self.is_kept = worker_environment, is_kept
        self._address, start = address, self._start_server
        self.run = ""
        """Id of the run of these processes now, empty if it has none."""
        self._is_resting = False
        self._owns_blob = blob is None
        self.blob = SharedBlob() if blob is None else blob
        self._scratch: Scratch | None = None
        self._launcher = ProcessLauncher((self.blob.descriptor,), through)
        self._pairs = [ServerEndpoints("server", address, start)]
        self._workers: Launcher = self._launcher
        self._waiting: dict[int, str] = {}
        self._spares: dict[str, int] = {}
        self._began: dict[str, float] = {}
        self._servers_there: set[str] = set()
        self._polled: dict[str, Exit] = {}
        self.longest_join_s = 0.0
        """The longest time to a worker's connection, of all runs: mostly the start
        of a process, which depends on no model."""
        try:
            if open_launcher is not None:
                self._workers = open_launcher(self.blob)
            self.main.start_server()
            for hint in range(worker_environment.workers):
                self._waiting[hint] = self._start(hint)
        except BaseException:  # the caller has no pool yet that it could close
            self.close()
            raise

    # ---------------------------------------------------------------- servers

    @property
    def main(self) -> ServerEndpoints:
        """The server of the run; of several servers, the ordering one."""
        return self._pairs[0]

    @property
    def _is_spread(self) -> bool:
        """Whether workers have a launcher of their own, and servers go to its nodes."""
        return self._workers is not self._launcher

    def pair(self, number: int) -> ServerEndpoints:
        """One of the servers that share the vector.

        On this machine its process is started; on others `place_servers` comes first.
        """
        is_here = not self._is_spread
        while len(self._pairs) <= number:
            name = f"server-{len(self._pairs)}"
            pair = ServerEndpoints(
                name, self._address, self._start_server, is_here=is_here
            )
            self._pairs.append(pair)
            if is_here:
                pair.start_server()
        return self._pairs[number]

    def place_servers(self, *, has_standby: bool) -> None:
        """Waits until every server has an address, on another node if there is one.

        Args:
            has_standby: Each server has a standby.

        Raises:
            ClusterError: A node does not report one.
        """
        if self._is_spread:
            place_servers(
                self._pairs[1:],
                self._workers,
                self._address[0],
                has_standby=has_standby,
                look=self._look,
                clock=self.environment.clock,
            )

    def _start_server(self, name: str, at: ServerSocket) -> str:
        role = Role(target="shoal.engine.server.main:serve", name=name)
        if isinstance(at, NodeSocket):
            token = self._workers.start_at(at, role)
            self._servers_there.add(token)
            return token
        return self._launcher.start(replace(role, inherits=(at.descriptor,)))

    # ---------------------------------------------------------------- workers

    def _start(
        self, hint: int, *, is_spare: bool = False, is_patient: bool = False
    ) -> str:
        """Starts a process for a worker, or for any lost one of its place."""
        worker_environment = self.worker_environment
        here = (
            worker_environment.places[worker_environment.place(hint)]
            if worker_environment.places
            else {}
        )
        role = Role(
            target="shoal.engine.worker.main:work",
            name="spare" if is_spare else f"worker-{hint}",
            preload=worker_environment.preload,
            environment={**worker_environment.environment, **here},
            threads=worker_environment.threads,
            is_patient=is_patient,
        )
        token = self._workers.start(role)
        self._began[token] = self.environment.clock()
        return token

    def change_environment(self, worker_environment: WorkerEnvironment) -> None:
        """Ends workers that do not suit the plan, once it is known."""
        if self._is_resting:
            self._is_resting = False
            self._forget_lost()
        if not self.main.server:
            self.main.start_server()
        if worker_environment == self.worker_environment:
            return
        # Variables of a process are set when it starts.
        for token in (*self._waiting.values(), *self._spares):
            self._workers.stop(token)
        self._waiting, self._spares = {}, {}
        self.worker_environment = worker_environment

    def _forget_lost(self) -> None:
        """Forgets processes that ended between runs: the next run has not lost them."""
        ended, waiting = self.poll(), self._waiting
        self._waiting = {h: t for h, t in waiting.items() if t not in ended}
        if self.main.server in ended:
            self.main.server = ""

    def age_s(self, token: str) -> float:
        """Seconds since a worker's process was started."""
        return self.environment.clock() - self._began[token]

    def worker(self, hint: int) -> str:
        """Returns a worker's token: a waiting one, a spare one, or a new one."""
        if hint in self._waiting:
            return self._waiting.pop(hint)
        # A spare has the variables of its place, such as the GPU that it may use.
        place = self.worker_environment.place(hint)
        for token, number in self._spares.items():
            if self.worker_environment.place(number) == place:
                del self._spares[token]
                self._workers.rename(token, f"worker-{hint}")
                return token
        return self._start(hint)

    def awaited(self, hint: int) -> str:
        """Returns the token of a worker that begins when a machine has room for it."""
        return self._start(hint, is_patient=True)

    def keep_spares(self, count: int) -> list[str]:
        """Starts waiting processes until there are enough, of different places.

        Returns:
            Tokens of the new ones.
        """
        missing = sorted(set(range(count)) - set(self._spares.values()))
        started = [self._start(number, is_spare=True) for number in missing]
        self._spares.update(zip(started, missing, strict=True))
        return started

    def make_folder(self) -> Path:
        """Makes an empty folder that all processes can see; it ends with the pool."""
        if self._scratch is None:
            self._scratch = Scratch()
        return self._scratch.make_folder()

    def echo(self, tell: Callable[[str, str], None] | None) -> None:
        """Reports each line that a process writes: the name of its role, the line.

        Args:
            tell: Called with both, None for no reports.
        """
        for launcher in self._launchers():
            launcher.echo(tell)

    def _launchers(self) -> list[Launcher]:
        """The launcher of servers, and that of workers if it is another one."""
        return [self._launcher, *([self._workers] if self._is_spread else [])]

    def _of(self, token: str) -> Launcher:
        """The launcher of a process."""
        is_there = token in self._began or token in self._servers_there
        return self._workers if is_there else self._launcher

    def share(self) -> None:
        """Sends the complete blob to machines that do not have it."""
        self._workers.share()

    def is_waiting(self, token: str) -> bool:
        """Whether a worker's process has not begun as no machine has room for it."""
        return self._of(token).is_waiting(token)

    def spent_s(self, token: str) -> float | None:
        """Processor time that a process has used, None if unknown."""
        return self._of(token).spent_s(token)

    def give(self, token: str, argument: Any, log: Path | None = None) -> None:
        """Gives a process its spec."""
        self._of(token).give(token, argument, log)

    def poll(self) -> dict[str, Exit]:
        """Returns the processes that ended since the last call, by token."""
        # Begins with ends that `_look` and `poll_one` saw while they waited for others.
        found, self._polled = self._polled, {}
        for launcher in self._launchers():
            found |= launcher.poll()
        self._keep_of_spares(self._spares.keys() - found.keys())
        return found

    def _keep_of_spares(self, tokens: Collection[str]) -> None:
        self._spares = {t: number for t, number in self._spares.items() if t in tokens}

    def _look(self) -> None:
        """Handles what has come from processes; `poll` returns their ends."""
        for launcher in self._launchers():
            self._polled |= launcher.poll()

    def poll_one(self, token: str) -> Exit | None:
        """Returns how a process ended; `poll` returns other ends."""
        self._polled |= self._of(token).poll()
        return self._polled.pop(token, None)

    def pid(self, token: str) -> int:
        """Process id on this machine, 0 for a process elsewhere."""
        launcher = self._of(token)
        return launcher.pid(token) if isinstance(launcher, ProcessLauncher) else 0

    def stop(self, token: str, grace_s: float = 0.0) -> None:
        """Ends one process, by force after `grace_s` seconds."""
        self._of(token).stop(token, grace_s)

    def dismiss(self, workers: Mapping[int, str], grace_s: float) -> None:
        """Ends a run that ended well: its processes end, or wait if they are kept.

        Args:
            workers: Tokens of the finished workers, by the ranks they were started for.
            grace_s: Seconds after which processes are killed.
        """
        if not self.is_kept:
            self.end(grace_s)
            return
        others = [pair.server for pair in self._pairs[1:]]
        for token in (*others, *(pair.standby for pair in self._pairs)):
            if token:
                self.stop(token, grace_s)
        self._drop_shards()
        kept = {*workers.values(), *self._spares, self.main.server}
        living = {t for launcher in self._launchers() for t in launcher.prune(kept)}
        self.echo(None)
        self._polled, self.main.standby = {}, ""
        self._waiting = {h: t for h, t in workers.items() if t in living}
        self._keep_of_spares(living)
        self._began = {t: began for t, began in self._began.items() if t in living}
        has_server = self.main.server in living
        self.main.rest(has_server=has_server)
        if has_server:
            self._launcher.rename(self.main.server, "server")
        self._is_resting = True

    def end(self, grace_s: float) -> None:
        """Ends every process, by force after `grace_s` seconds.

        Processes that wait for the next run stay.
        """
        if not self._is_resting:
            # Workers first: they would take the end of their server for a failure.
            for launcher in reversed(self._launchers()):
                launcher.close(grace_s)
            self._waiting, self._spares, self._polled = {}, {}, {}
            self._servers_there.clear()
            self.main.server = self.main.standby = ""
            self._drop_shards()

    def _drop_shards(self) -> None:
        """Forgets all servers but the main one; their processes have ended."""
        for pair in self._pairs[1:]:
            pair.close()
        del self._pairs[1:]

    def close(self) -> None:
        """Ends every process and frees all; safe to repeat."""
        for launcher in reversed(self._launchers()):
            launcher.close()
        for pair in self._pairs:
            pair.close()
        if self._scratch is not None:
            self._scratch.close()
        if self._owns_blob:
            self._owns_blob = False
            self.blob.close()
