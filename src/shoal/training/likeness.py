"""Compares the data given to `resume` with the data of the run.

This file decides which facts about data are kept if the data itself is not, and how
much of two sources is compared: arrays that were kept completely, other data by its
size, the kind of its columns and some of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shoal.data import ArraySource, Source, trees
from shoal.data.chunks import first_rows
from shoal.data.digests import digest

SOME_BYTES = 16 << 20
"""Bytes of arrays above which rows are sampled."""
FIRST_ROWS = 4
PART_BYTES = 64 << 20
"""Bytes of arrays that are compared at a time."""


@final
@dataclass(frozen=True, kw_only=True)
class Likeness:
    """Facts about data, to recognise it.

    Args:
        rows: Samples.
        columns: Names, shapes and dtypes of a row's columns.
        first_rows: Rows whose digest is `first`.
        first: Digest of the first rows.
        some: Digest of sampled rows, "" if rows cannot be read by number.

    Example:
        >>> one = ArraySource(np.arange(9.0))
        >>> Likeness.of(one) == Likeness.of(ArraySource(np.arange(9.0)))
        True
    """

    rows: int
    columns: str
    first_rows: int
    first: str
    some: str

    @classmethod
    def of(cls, source: Source, sample: Any = None) -> Likeness:
        """Computes the facts about a source.

        Args:
            source: Source of the samples.
            sample: Its first rows; default None means that they are read here.
        """
        count = min(FIRST_ROWS, len(source))
        if sample is None:
            sample = first_rows(source, count)
        # A sample may continue with rows that are repeated.
        sample = trees.map_leaves(lambda leaf: leaf[:count], sample)
        some = ""
        if isinstance(source, ArraySource):
            row_bytes = max(1, source.size_bytes // len(source))
            count = max(16, SOME_BYTES // row_bytes)
            step = -(-len(source) // count)
            some = _digest(source.take(slice(0, len(source), step)))
        return cls(
            rows=len(source),
            columns=_columns(sample),
            first_rows=len(trees.leaves(sample)[0]),
            first=_digest(sample),
            some=some,
        )

    def difference(self, source: Source) -> str:
        """Returns what differs in a source, "" if no difference was found."""
        if len(source) != self.rows:
            return f"it has {len(source):,} samples, and there were {self.rows:,}"
        sample = first_rows(source, self.first_rows)
        other = Likeness.of(source, sample)
        if other.columns != self.columns:
            return f"its columns are {other.columns}, and were {self.columns}"
        if other.first != self.first:
            return "its first samples differ"
        return "" if other.some == self.some else "some of its samples differ"


def difference(kept: Source, given: Source) -> str:
    """Returns the difference between the kept data of a run and given data.

    Args:
        kept: Data as the workers saw it.
        given: Data to compare.

    Returns:
        A clause; "" if no difference was found.

    Example:
        >>> kept = ArraySource(np.zeros((3, 2)))
        >>> difference(kept, ArraySource(np.eye(3, 2)))
        'sample 0 differs'
        >>> difference(kept, ArraySource(np.zeros((3, 2))))
        ''
    """
    if not isinstance(kept, ArraySource) or not isinstance(given, ArraySource):
        return Likeness.of(kept).difference(given)
    found = Likeness.of(kept).difference(given)
    is_other_kind = len(kept) != len(given) or "columns" in found
    if is_other_kind:
        return found
    count = max(1, PART_BYTES // max(1, kept.size_bytes // len(kept)))
    for start in range(0, len(kept), count):
        rows = slice(start, min(len(kept), start + count))
        pairs = zip(
            trees.leaves(kept.take(rows)), trees.leaves(given.take(rows)), strict=True
        )
        unlike = [row for one, other in pairs for row in _unlike(one, other)]
        if unlike:
            return f"sample {start + min(unlike):,} differs"
    return ""


def _unlike(one: Any, other: Any) -> list[int]:
    """Returns the rows in which two arrays differ; NaN equals itself."""
    same = one == other
    if one.dtype.kind in "fc":
        same |= np.isnan(one) & np.isnan(other)
    whole = same.reshape(len(same), -1).all(axis=1)
    return [] if whole.all() else [int(np.argmin(whole))]


def _columns(sample: Any) -> str:
    named = trees.named_leaves(sample, "data")
    return ", ".join(f"{name} {leaf.dtype}{leaf.shape[1:]}" for name, leaf in named)


def _digest(rows: Any) -> str:
    return digest(trees.leaves(rows))
