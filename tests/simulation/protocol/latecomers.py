"""Late workers, as the simulated run itself records them."""

from __future__ import annotations

from typing import final

from tests.simulation.protocol.lines import Line, Work
from tests.simulation.violation import require


@final
class Latecomers:
    """Workers that a round closed without, and the work that is lost with that."""

    def __init__(self) -> None:
        self._workers: dict[int, int] = {}
        self._lost: set[tuple[int, int]] = set()

    def miss(self, line: Line) -> None:
        """Records that a round closes without a worker that it awaited."""
        self._workers[line.rank] = line.worker

    def speaks(self, rank: int) -> bool:
        """Records a message or the loss of a rank; returns whether it was late."""
        return self._workers.pop(rank, None) is not None

    def lose(self, work: Work) -> None:
        """Records work that came too late."""
        self._lost.add((work.worker, work.serial))

    def is_lost(self, work: Work) -> bool:
        """Whether work has come too late, now or before."""
        return (work.worker, work.serial) in self._lost

    def look(self, work: Work) -> None:
        """Checks that work which is applied was not late."""
        require(not self.is_lost(work), "what came too late is not applied", work)
