"""Samples of a run by epoch: the expected and the committed ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast, final

from shoal.runs.events import exchange_columns


@final
class Samples:
    """Counts the samples of each epoch from a run's events, in constant memory.

    Example:
        >>> samples = Samples()
        >>> samples.end(0, {"samples": 64})
        >>> samples.committed([0]), samples.rows_of(1, {"epoch_rows": [64, 36]})
        (64, 36)
    """

    def __init__(self) -> None:
        self._committed: dict[int, int] = {}
        self._settled: set[int] = set()
        self._members: dict[int, int] = {}

    @property
    def total(self) -> int:
        """Returns the samples committed in all epochs."""
        return sum(self._committed.values())

    def committed(self, epochs: Collection[int]) -> int:
        """Returns the samples committed in some epochs."""
        return sum(self._committed.get(epoch, 0) for epoch in epochs)

    def add(self, event: Mapping[str, Any]) -> None:
        """Counts the exchanges of an event."""
        columns = exchange_columns(event)
        counts = columns.get("samples", ())
        epochs = columns.get("epoch") or [0] * len(counts)
        if len(set(epochs)) == 1 and counts:  # as nearly all have; a sum is quicker
            epochs, counts = epochs[:1], [sum(filter(None, counts))]
        for epoch, count in zip(epochs, counts, strict=False):
            if int(epoch or 0) not in self._settled:
                before = self._committed.get(int(epoch or 0), 0)
                self._committed[int(epoch or 0)] = before + int(count or 0)

    def end(self, epoch: int, event: Mapping[str, Any]) -> None:
        """Notes the end of an epoch, of all models that reached it so far."""
        self._members[epoch] = len(cast("list[Any]", event.get("members") or [None]))
        if "samples" in event:  # the ledger's count overrides the sum of records
            self._settled.add(epoch)
            self._committed[epoch] = int(event["samples"])

    def roll_back(self, committed: Mapping[str, Any]) -> None:
        """Subtracts samples that a rollback of the weights lost.

        It also applies to an ended epoch, whose samples will be counted again.
        """
        before = self._committed
        self._committed = {int(epoch): int(n) for epoch, n in committed.items()}
        self._settled = {
            epoch
            for epoch in self._settled
            if self._committed.get(epoch) == before.get(epoch)
        }

    def rows_of(self, epoch: int, plan: Mapping[str, Any]) -> int:
        """Returns the samples an epoch should have, of all models that reached its end.

        Args:
            epoch: Number of the epoch.
            plan: Fields of `run_started`: `epoch_rows` of one pass over the data.
        """
        rows = cast("list[int]", plan.get("epoch_rows") or [])
        since = epoch - int(plan.get("initial_epoch") or 0)
        each = rows[since % len(rows)] if rows else int(plan.get("rows") or 0)
        return each * self._members.get(epoch, 1)
