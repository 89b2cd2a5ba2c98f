"""What another server would begin with, were this one lost now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import final

from shoal.engine.coordination.skipped import Skipped
from shoal.engine.server.checkpoint import Restart, Snapshot
from shoal.engine.server.spec import ServerSpec
from shoal.engine.worker.spec import WorkerSpec


@final
class ResumePoint:
    """The parts of server and workers, with what the run has come to know since.

    Args:
        server: As the run began, or as its last checkpoint left it.
        make_worker: Makes a worker's part from a rank to wish for and a token.

    Attributes:
        rollbacks: How often samples were left out and the run went back.
    """

    def __init__(
        self, server: ServerSpec, make_worker: Callable[[int, str], WorkerSpec]
    ) -> None:
        self.server, self._make_worker = server, make_worker
        self.rollbacks = 0
        before = server.restart
        self._left_out = Skipped() if before is None else before.left_out
        self._snapshots = {} if before is None else dict(before.snapshots)

    def worker(self, hint: int, token: str) -> WorkerSpec:
        """A worker's part."""
        own = self._snapshots.get(hint)
        return replace(
            self._make_worker(hint, token),
            left_out=self._left_out,
            optimizer=b"" if own is None else own.blob,
        )

    @property
    def part(self) -> ServerSpec:
        """A server's part, without what only workers are given."""
        restart = self.server.restart
        if restart is None:
            return self.server
        return replace(self.server, restart=replace(restart, snapshots={}))

    def keep_snapshot(self, rank: int, snapshot: Snapshot) -> None:
        """A worker has sent its optimizer's state."""
        self._snapshots[rank] = snapshot

    def keep(self, restart: Restart) -> Restart:
        """A checkpoint has arrived; returns it with what the server does not know."""
        known = {"left_out": self._left_out, "snapshots": dict(self._snapshots)}
        restart = replace(restart, **known)
        self.server = replace(self.server, restart=restart)
        return restart

    def keep_lineage(self, lineage: int) -> None:
        """A server after this one begins above every lineage there was."""
        if self.server.restart is not None:
            self.keep(self.server.restart.at_least(lineage))

    def next_lineage(self) -> None:
        """A server has begun here: a third must not share the lineage of the second."""
        if self.server.restart is not None:
            self.keep_lineage(int(self.server.restart.sequencer["lineage"]) + 1)

    def leave_out(
        self, epoch: int, ranges: Iterable[Sequence[int]], rows: Iterable[int]
    ) -> None:
        """The run goes back, and on without these samples; see `Skipped.also`."""
        self.rollbacks += 1
        self._left_out = self._left_out.also(epoch, ranges, rows)
