"""What was done in each epoch: sums of metric states, and a line an exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from shoal.engine.post import Post
from shoal.strategies.base import Facts
from shoal.vectors import Sums

SMALL_METRICS = 16  # numbers of metric state that ride with every record


@final
class Accounts:
    """Keeps the books of a run.

    Args:
        size: Numbers of metric state.
        losses: Places among them of losses times the rows they were computed for.
    """

    def __init__(self, size: int, losses: Sequence[int] = ()) -> None:
        self._size, self._losses = size, list(losses)
        self._sums: dict[int, Sums] = {}
        self._saved: dict[int, Sums] = {}
        self._records: list[list[Any]] = []

    @property
    def has_records(self) -> bool:
        """Whether `take_records` would give some."""
        return bool(self._records)

    def note(
        self, post: Post, at: float, version: int, staleness: int, share: float = 1.0
    ) -> None:
        """Enters a worker's last push and its metric states.

        Args:
            post: The worker's.
            at: Seconds of the run.
            version: Of the center, after it.
            staleness: As the strategy was told.
            share: See `share_of_loss`.
        """
        head = post.push
        epoch = int(head["pieces"][0][0])
        sums = self._sums.setdefault(epoch, np.zeros(self._size))
        sums += weighed(post.bulk.metrics, self._losses, share)
        rows = sum(int(piece[2]) - int(piece[1]) for piece in head["pieces"])
        small = sums.tolist() if sums.size <= SMALL_METRICS else None
        self._records.append(
            [at, post.rank, epoch, rows,
             int(head["steps"]), version, staleness, *head["times"], small]
        )  # fmt: skip

    def take_records(self) -> tuple[list[list[Any]], bytes]:
        """Returns what is new, and large metric states of its last epoch."""
        records, self._records = self._records, []
        if not records or self._size <= SMALL_METRICS:
            return records, b""
        return records, self._sums[records[-1][2]].tobytes()

    def close(self, epoch: int) -> Sums:
        """Returns the sums of an epoch that is over."""
        return self._sums.pop(epoch, np.zeros(self._size))

    def save(self) -> None:
        """Keeps the sums of now, to go back to."""
        self._saved = {epoch: sums.copy() for epoch, sums in self._sums.items()}

    def kept(self, is_saved: bool) -> list[tuple[int, Sums]]:
        """Returns the sums of open epochs, as they are or as they were kept."""
        return sorted((self._saved if is_saved else self._sums).items())

    def adopt(self, sums: dict[int, Sums]) -> None:
        """Goes on from the sums of another server."""
        self._saved = sums
        self.restore()

    def restore(self) -> None:
        """Goes back to the sums that were kept."""
        self._sums = {epoch: sums.copy() for epoch, sums in self._saved.items()}


def weighed(metrics: Sums, losses: Sequence[int], share: float) -> Sums:
    """Sums of metric states of which losses weigh by more than their rows."""
    if share == 1.0 or not losses:
        return metrics
    found = metrics.copy()
    found[list(losses)] *= share
    return found


def share_of_loss(rank: int, facts: Mapping[int, Facts]) -> float:
    """By what a worker's loss weighs more in a step than its rows say.

    Workers count a loss by rows. One that is divided by something else, such as what
    masks leave, has its part of a step by that.

    Args:
        rank: Of the worker.
        facts: Of all messages of the step.

    Example:
        >>> facts = {0: Facts(samples=9, rows=2), 1: Facts(samples=3, rows=4)}
        >>> share_of_loss(0, facts), share_of_loss(1, facts)
        (2.25, 0.375)
    """
    if all(f.rows is None for f in facts.values()):
        return 1.0
    rows = {r: f.samples if f.rows is None else f.rows for r, f in facts.items()}
    mass = sum(f.samples for f in facts.values())
    if not rows[rank] or not mass:
        return 1.0
    return facts[rank].samples / mass * sum(rows.values()) / rows[rank]
