"""Samples that count as trained but are skipped, as they did harm. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from shoal.engine.coordination.ledger import Piece


@final
@dataclass(frozen=True)
class Skipped:
    """Samples on which a run that was rolled back does not train again.

    Args:
        ranges: (epoch, start, stop) in the order of an epoch.
        rows: Row numbers of the data, in any epoch.

    Example:
        >>> out = Skipped().also(0, [(8, 16)], rows=[3])
        >>> out.touches([Piece(0, 12, 20)], lambda: [5])
        True
        >>> out.touches([Piece(1, 12, 20)], lambda: [5])
        False
        >>> out.touches([Piece(1, 12, 20)], lambda: [3])
        True
        >>> Skipped.from_json(out.to_json()) == out
        True
    """

    ranges: tuple[tuple[int, int, int], ...] = ()
    rows: tuple[int, ...] = ()

    def also(
        self, epoch: int, ranges: Iterable[Sequence[int]], rows: Iterable[int]
    ) -> Skipped:
        """Returns these samples and more.

        Args:
            epoch: Epoch of the ranges.
            ranges: (start, stop) in the order of that epoch.
            rows: Row numbers of the data, in any epoch.
        """
        found = ((epoch, int(start), int(stop)) for start, stop in ranges)
        return Skipped((*self.ranges, *found), (*self.rows, *map(int, rows)))

    def touches(
        self,
        pieces: Sequence[Piece],
        indices: Callable[[], Iterable[Any]],
    ) -> bool:
        """Whether some samples of the pieces are skipped.

        Args:
            pieces: Ranges in the order of an epoch.
            indices: Returns the row numbers of the pieces.
        """
        if self.rows and not set(self.rows).isdisjoint(map(int, indices())):
            return True
        return any(
            piece.epoch == epoch and piece.start < stop and start < piece.stop
            for epoch, start, stop in self.ranges
            for piece in pieces
        )

    def to_json(self) -> dict[str, Any]:
        """Returns this as JSON values."""
        return {"ranges": [list(r) for r in self.ranges], "rows": list(self.rows)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Skipped:
        """The inverse of `to_json`."""
        ranges = tuple((e, start, stop) for e, start, stop in document["ranges"])
        return cls(ranges, tuple(document["rows"]))
