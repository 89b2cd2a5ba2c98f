"""What a server tells a worker, before it is believed. Pure.

The counterpart of `messages.py`. A server of this run is trusted, but it may be of
another version, or wrong: a worker says then what it cannot read, instead of failing
anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from shoal.engine.coordination.instructions import Group
from shoal.engine.coordination.ledger import Piece
from shoal.engine.transport.messages import WRONG, some, text, whole
from shoal.wire.frames import BadFrame, Head

MOST_PATH = 1 << 12
MOST_PARTS = 1 << 20  # a head has no room for more


@contextmanager
def reading(head: Head) -> Generator[None]:
    """Says what cannot be read of an answer.

    Raises:
        BadFrame: Something cannot.
    """
    try:
        yield
    except WRONG as error:
        raise BadFrame(
            f"the server's answer {head['kind']!r:.40} cannot be read: "
            f"{type(error).__name__}: {error!s:.200}. Expected what the server of this "
            "version says. See whether all machines have the same version of Shoal."
        ) from error


@final
@dataclass(frozen=True, kw_only=True)
class Told:
    """What every answer tells; see `Progress`, which keeps it."""

    version: int
    lineage: int
    clock: int
    workers: int
    learning_rate: float | None
    nan_status: int
    group: Group | None
    sums: tuple[float, ...]
    pieces: tuple[Piece, ...]


def told(head: Head) -> Told:
    """Reads what every answer tells.

    Raises:
        ValueError: It is not what a server of ours says; or another of `WRONG`.

    Example:
        >>> state = {"version": 3, "lineage": 0, "clock": 4, "workers": 2, "lr": None}
        >>> told({"kind": "grant", "pieces": [[0, 0, 8, 0]], **state}).pieces
        (Piece(epoch=0, start=0, stop=8, gang=0),)
    """
    rate, group = head["lr"], head.get("group")
    pieces = [Piece(*map(whole, piece)) for piece in _list(head.get("pieces"))]
    if any(piece.stop < piece.start for piece in pieces):
        raise ValueError("pieces that end before they begin")
    if rate is not None and (
        isinstance(rate, bool) or not isinstance(rate, int | float)
    ):
        raise ValueError(f"a learning rate of {rate!r:.40}")
    sums = tuple(float(value) for value in _list(head.get("sums")))
    if not all(map(math.isfinite, sums)):
        raise ValueError(f"sums of {sums!r:.80}")
    return Told(
        version=whole(head["version"]),
        lineage=whole(head["lineage"]),
        clock=whole(head["clock"]),
        workers=whole(head["workers"]),
        learning_rate=rate if rate is None else float(rate),
        nan_status=whole(head.get("doubt", 0)),
        group=None if group is None else _group(group),
        sums=sums,
        pieces=tuple(pieces),
    )


def _list(found: Any) -> list[Any]:
    return [] if found is None else some(found, MOST_PARTS)


def _group(found: Any) -> Group:
    generation, ranks = found
    return Group(whole(generation), tuple(map(whole, _list(ranks))))


def place(head: Head) -> tuple[int, int, dict[str, str] | None]:
    """Rank, incarnation and slot of a worker that has joined.

    Raises:
        ValueError: It is not what a server of ours says; or another of `WRONG`.
    """
    return whole(head["rank"]), whole(head["incarnation"]), slot(head)


def slot(head: Head) -> dict[str, str] | None:
    """The shared memory that a server offers, None for none.

    Raises:
        ValueError: It is not what a server of ours says; or another of `WRONG`.
    """
    offer = head["slot"]
    if offer is None:
        return None
    return {name: text(offer[name], MOST_PATH) for name in ("path", "mark")}
