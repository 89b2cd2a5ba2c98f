"""The processes of a run, started before anybody knows what they will do.

Python, Keras and a backend take a second to import. Until the model is built, the
plan made and the data written, workers have done that.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from shoal.launchers.base import Exit, Preload, Role
from shoal.launchers.process import ProcessLauncher
from shoal.launchers.shared import SharedBlob

BACKLOG = 512  # connections that wait until the server accepts them


@dataclass(frozen=True, kw_only=True)
class Cast:
    """What is known of workers before anything else.

    Args:
        workers: How many.
        threads: Compute threads of each.
        preload: What they import while they wait.
        environment: Variables of each.
    """

    workers: int
    threads: int
    preload: Preload
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


@final
class Stage:
    """Server and workers that wait for their parts; it owns all they share.

    Args:
        cast: Of the workers.
        blob: Memory they inherit, default None makes some.
    """

    def __init__(self, cast: Cast, blob: SharedBlob | None = None) -> None:
        self.cast = cast
        self._owns_blob = blob is None
        self.blob = SharedBlob() if blob is None else blob
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self.address: tuple[str, int] = self.listener.getsockname()
        shared = (self.blob.descriptor, self.listener.fileno())
        self._launcher = ProcessLauncher(shared=shared)
        self._waiting: dict[int, str] = {}
        try:
            self.server = self.start_server()
            for hint in range(cast.workers):
                self._waiting[hint] = self._start(hint)
        except BaseException:
            self.close()
            raise

    def start_server(self) -> str:
        """Starts a server process, the first or one after another was lost."""
        role = Role(target="shoal.engine.serving:serve", name="server")
        self.server = self._launcher.start(role)
        return self.server

    def _start(self, hint: int) -> str:
        cast = self.cast
        role = Role(
            target="shoal.engine.worker:work",
            name=f"worker-{hint}",
            preload=cast.preload,
            environment=cast.environment,
            threads=cast.threads,
        )
        return self._launcher.start(role)

    def recast(self, cast: Cast) -> None:
        """The plan has become clear: workers that do not suit it go."""
        if cast == self.cast:
            return
        for token in self._waiting.values():
            self._launcher.stop(token)
        self._waiting = {}
        self.cast = cast

    def worker(self, hint: int) -> str:
        """Returns a worker's token: one that waits, or a new one."""
        return self._waiting.pop(hint, "") or self._start(hint)

    def echo(self, tell: Callable[[str, str], None]) -> None:
        """Tells of each line that a process writes: the name of its role, the line."""
        self._launcher.echo = tell

    def give(self, token: str, argument: Any, log: Path | None = None) -> None:
        """Sends a process its part."""
        self._launcher.give(token, argument, log)

    def poll(self) -> dict[str, Exit]:
        """Returns the processes that ended since the last call, by token."""
        return self._launcher.poll()

    def stop(self, token: str, grace_s: float = 0.0) -> None:
        """Ends one process, by force after `grace_s` seconds."""
        self._launcher.stop(token, grace_s)

    def end(self, grace_s: float) -> None:
        """Ends every process, by force after `grace_s` seconds."""
        self._launcher.close(grace_s)

    def close(self) -> None:
        """Ends every process and frees all; safe to repeat."""
        self._launcher.close()
        self.listener.close()
        if self._owns_blob:
            self._owns_blob = False
            self.blob.close()
