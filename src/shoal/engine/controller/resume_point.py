"""The start of another server, if the current one is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import final

from shoal.engine.coordination.skipped import Skipped
from shoal.engine.server.checkpoint import OptimizerSnapshot, ServerCheckpoint
from shoal.engine.server.spec import ServerSpec
from shoal.engine.worker.spec import WorkerSpec


@final
class ResumePoint:
    """Specs of server and workers, with what the run has learnt since.

    Args:
        server: Spec from the start of the run, or from its last checkpoint.
        make_worker: Makes a worker's spec from a rank to ask for and a token.

    Attributes:
        rollbacks: Number of rollbacks with samples left out.
    """

    def __init__(
        self, server: ServerSpec, make_worker: Callable[[int, str], WorkerSpec]
    ) -> None:
        self.server, self._make_worker = server, make_worker
        self.rollbacks = 0
        before = server.checkpoint
        self._left_out = Skipped() if before is None else before.left_out
        self._snapshots = {} if before is None else dict(before.snapshots)

    def worker(self, hint: int, token: str) -> WorkerSpec:
        """Returns a worker's spec."""
        own = self._snapshots.get(hint)
        return replace(
            self._make_worker(hint, token),
            left_out=self._left_out,
            optimizer=b"" if own is None else own.blob,
        )

    @property
    def part(self) -> ServerSpec:
        """Returns a server's spec, without the parts for workers only."""
        checkpoint = self.server.checkpoint
        if checkpoint is None:
            return self.server
        return replace(self.server, checkpoint=replace(checkpoint, snapshots={}))

    def keep_snapshot(self, rank: int, snapshot: OptimizerSnapshot) -> None:
        """Keeps a worker's optimizer state."""
        self._snapshots[rank] = snapshot

    def keep(self, checkpoint: ServerCheckpoint) -> ServerCheckpoint:
        """Keeps a checkpoint; returns it with the parts that the server lacks."""
        known = {"left_out": self._left_out, "snapshots": dict(self._snapshots)}
        checkpoint = replace(checkpoint, **known)
        self.server = replace(self.server, checkpoint=checkpoint)
        return checkpoint

    def keep_lineage(self, lineage: int) -> None:
        """Keeps the lineage: the next server begins above it."""
        if self.server.checkpoint is not None:
            self.keep(self.server.checkpoint.at_least(lineage))

    def next_lineage(self) -> None:
        """Raises the lineage: a third server must not share the second one's."""
        if self.server.checkpoint is not None:
            self.keep_lineage(int(self.server.checkpoint.sequencer["lineage"]) + 1)

    def leave_out(
        self, epoch: int, ranges: Iterable[Sequence[int]], rows: Iterable[int]
    ) -> None:
        """Goes back, and leaves these samples out; see `Skipped.also`."""
        self.rollbacks += 1
        self._left_out = self._left_out.also(epoch, ranges, rows)
