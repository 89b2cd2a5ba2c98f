"""Bars of leases: what of an epoch is committed, leased by whom, or free. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from shoal.runs.leases import EpochLeases, Spans, rows_of

COLOURS = 10
LEAST_TEXT = 0.03
"""Share of a bar from which its worker's number fits into it."""
MOST_WORKERS = 64
MOST_RANGES = 4
"""Ranges of a worker that are written out."""


@final
@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a bar.

    Args:
        kind: Its class: "done"; "w0" to "w9" for a worker; "back" for what came back.
        x: Its beginning, as a share of the bar.
        width: Its width.
        text: Text in it, "" for none.
    """

    kind: str
    x: float
    width: float
    text: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Bar:
    """The bar of one epoch, and the same in words.

    Args:
        leases: The epoch.
        parts: Parts from left to right; what lies between is free.
        workers: Rank, samples and ranges of each worker that has leases.
        left_out: Workers that are not written out.
    """

    leases: EpochLeases
    parts: Sequence[Part]
    workers: Sequence[tuple[int, int, str]]
    left_out: int


def bars_of(epochs: Sequence[EpochLeases]) -> list[Bar]:
    """Returns the bars of epochs.

    Example:
        >>> leased = {2: ((4, 6),)}
        >>> one = EpochLeases(epoch=0, rows=8, committed=((0, 4),), leased=leased)
        >>> [bar] = bars_of([one])
        >>> [(part.kind, part.x, part.width, part.text) for part in bar.parts]
        [('done', 0.0, 0.5, ''), ('w2', 0.5, 0.25, '2')]
        >>> bar.workers
        [(2, 2, '4 to 6')]
    """
    return [_bar(one) for one in epochs if one.rows]


def _bar(one: EpochLeases) -> Bar:
    parts = _parts(one, "done", one.committed)
    for rank, spans in one.leased.items():
        parts += _parts(one, f"w{rank % COLOURS}", spans, str(rank))
    parts.sort(key=lambda part: part.x)
    # On top: a range that came back may be leased again.
    parts += _parts(one, "back", one.came_back if one.is_complete else one.returned)
    ranks = sorted(one.leased)
    workers = [(r, rows_of(one.leased[r]), _told(one.leased[r])) for r in ranks]
    return Bar(
        leases=one,
        parts=parts,
        workers=workers[:MOST_WORKERS],
        left_out=max(0, len(workers) - MOST_WORKERS),
    )


def _parts(one: EpochLeases, kind: str, spans: Spans, text: str = "") -> list[Part]:
    found: list[Part] = []
    for start, stop in spans:
        width = (stop - start) / one.rows
        shown = text if width >= LEAST_TEXT else ""
        found.append(Part(kind=kind, x=start / one.rows, width=width, text=shown))
    return found


def _told(spans: Spans) -> str:
    told = ", ".join(f"{start:,} to {stop:,}" for start, stop in spans[:MOST_RANGES])
    return told + ", …" * (len(spans) > MOST_RANGES)
