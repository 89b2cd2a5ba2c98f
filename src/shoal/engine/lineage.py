"""What another server would begin with, were this one lost now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import final

from shoal.engine.ledger import Piece
from shoal.engine.machine import ServerSpec
from shoal.engine.restart import Restart
from shoal.engine.worker import WorkerSpec


@final
class Past:
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
        self._void: tuple[Piece, ...] = ()
        self._void_rows: tuple[int, ...] = ()

    def worker(self, hint: int, token: str) -> WorkerSpec:
        """A worker's part."""
        part = self._make_worker(hint, token)
        if not self.rollbacks:
            return part
        return replace(part, void=self._void, void_rows=self._void_rows)

    def keep(self, restart: Restart) -> None:
        """A checkpoint has arrived."""
        self.server = replace(self.server, restart=restart)

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
        """Samples that did harm count from now on, and are not trained on.

        Args:
            epoch: Of the ranges.
            ranges: (start, stop) in the order of that epoch.
            rows: Numbers of rows of the data, in any epoch.
        """
        self.rollbacks += 1
        found = (Piece(epoch, int(start), int(stop)) for start, stop in ranges)
        self._void = (*self._void, *found)
        self._void_rows = (*self._void_rows, *rows)
