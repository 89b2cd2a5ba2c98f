"""Who trains which samples of the last epochs, folded from events. Pure.

The server reports leases about once a second; what is older is corrected by events
between two reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast, final

Spans: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges of positions in an epoch's order, first and behind the last, in order."""
MOST_ENDED = 10
"""Epochs that are kept after their end."""


@final
@dataclass(frozen=True, kw_only=True)
class EpochLeases:
    """The samples of one epoch.

    Args:
        epoch: Its number from 0.
        rows: Its samples.
        committed: Ranges that are committed.
        leased: Rank -> ranges that it has leased.
        came_back: Ranges of lost workers that came back, committed since or not.
        t: Seconds of the run when it was reported.
    """

    epoch: int
    rows: int
    committed: Spans = ()
    leased: Mapping[int, Spans] = field(default_factory=dict[int, Spans])
    came_back: Spans = ()
    t: float = 0.0

    @property
    def leased_rows(self) -> int:
        """Samples that are leased."""
        return sum(map(rows_of, self.leased.values()))

    @property
    def committed_rows(self) -> int:
        """Samples that are committed."""
        return rows_of(self.committed)

    @property
    def free_rows(self) -> int:
        """Samples that are neither leased nor committed."""
        return max(0, self.rows - self.committed_rows - self.leased_rows)

    @property
    def is_complete(self) -> bool:
        """Whether every sample is committed."""
        return self.committed_rows == self.rows

    @property
    def returned(self) -> Spans:
        """Ranges that came back and are not committed yet."""
        return cut(self.came_back, self.committed)

    @property
    def returned_rows(self) -> int:
        """Samples that came back and are not committed yet."""
        return rows_of(self.returned)

    @property
    def came_back_rows(self) -> int:
        """Samples that came back at any time."""
        return rows_of(self.came_back)

    def without(self, rank: int) -> EpochLeases:
        """Returns the epoch after a worker was lost: its leases came back."""
        lost = cut(self.leased.get(rank, ()), self.committed)
        if not lost:
            return self
        leased = {r: spans for r, spans in self.leased.items() if r != rank}
        return replace(self, leased=leased, came_back=joined([*self.came_back, *lost]))


@final
class LeaseFold:
    """Adds events one by one and keeps the leases of the last epochs.

    Of an epoch that has ended it keeps what came back from lost workers.

    Example:
        >>> fold = LeaseFold()
        >>> one = {"epoch": 0, "rows": 9, "committed": [0, 3], "leased": {1: [3, 6]}}
        >>> fold.add({"kind": "leases", "epochs": [one]})
        >>> fold.add({"kind": "worker_left", "rank": 1})
        >>> [found] = fold.epochs()
        >>> found.returned, found.free_rows
        (((3, 6),), 6)
    """

    def __init__(self) -> None:
        self._open: dict[int, EpochLeases] = {}
        self._ended: dict[int, EpochLeases] = {}

    def epochs(self, *, is_over: bool = False) -> list[EpochLeases]:
        """Returns the last epochs, ended ones and those of the last report, in order.

        Args:
            is_over: Whether nobody trains any more: what was leased is free.
        """
        known = {**self._open, **self._ended}
        found = [known[epoch] for epoch in sorted(known)]
        return [replace(one, leased={}) for one in found] if is_over else found

    def add(self, event: Mapping[str, Any]) -> None:
        """Adds the next event."""
        match event.get("kind"):
            case "leases":
                before, last = self._open, max(self._ended, default=-1)
                t = float(event.get("t", 0.0))
                epochs = cast("list[dict[str, Any]]", event.get("epochs", ()))
                self._open = {
                    one.epoch: _following(replace(one, t=t), before.get(one.epoch))
                    for one in map(_read, epochs)
                    if one.epoch > last  # they end in their order
                }
            case "worker_left" | "worker_lost" if "rank" in event:
                rank = int(event["rank"])
                self._open = {
                    epoch: one.without(rank) for epoch, one in self._open.items()
                }
            case "epoch_ended" if "epoch" in event:
                self._end(int(event["epoch"]), int(event.get("samples", 0)))
            case "rollback" | "run_started" | "run_resumed":
                # The server reports again. Ended epochs may be trained once more.
                first = int(event.get("epoch", 0))
                ended = {e: one for e, one in self._ended.items() if e < first}
                self._open, self._ended = {}, ended
            case _:
                pass

    def _end(self, epoch: int, rows: int) -> None:
        """Keeps an epoch as complete, also one that no report told of."""
        one = self._open.pop(epoch, EpochLeases(epoch=epoch, rows=rows))
        whole = ((0, one.rows),)
        self._ended[epoch] = replace(one, committed=whole, leased={})
        for old in sorted(self._ended)[:-MOST_ENDED]:
            del self._ended[old]


def _read(found: Mapping[str, Any]) -> EpochLeases:
    rows = int(found["rows"])
    return EpochLeases(
        epoch=int(found["epoch"]),
        rows=rows,
        committed=_spans(found["committed"], rows),
        leased={
            int(rank): spans
            for rank, bounds in found["leased"].items()
            if (spans := _spans(bounds, rows))
        },
    )


def _following(one: EpochLeases, before: EpochLeases | None) -> EpochLeases:
    return one if before is None else replace(one, came_back=before.came_back)


def _spans(bounds: Sequence[int], rows: int) -> Spans:
    """Returns ranges of a flat list; what lies outside of the epoch is left out."""
    pairs = zip(bounds[::2], bounds[1::2], strict=False)
    return joined((start, min(stop, rows)) for start, stop in pairs)


def rows_of(spans: Spans) -> int:
    """Returns the samples of ranges."""
    return sum(stop - start for start, stop in spans)


def joined(spans: Iterable[tuple[int, int]]) -> Spans:
    """Returns ranges in order, those that touch as one.

    Example:
        >>> joined([(5, 7), (0, 2), (2, 4), (9, 9)])
        ((0, 4), (5, 7))
    """
    found: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if start >= stop:
            continue
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return tuple(found)


def cut(spans: Spans, taken: Spans) -> Spans:
    """Returns ranges without those that others take.

    Example:
        >>> cut(((0, 10),), ((2, 4), (8, 12)))
        ((0, 2), (4, 8))
    """

    def rests() -> Iterator[tuple[int, int]]:
        for start, stop in spans:
            for first, last in taken:
                if first > start:
                    yield start, min(stop, first)
                start = max(start, last)
            yield start, stop

    return joined(rests())
