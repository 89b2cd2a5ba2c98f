"""What a worker says of data and numbers that hurt, before it is passed on. Pure.

As with all that comes from a worker: of the right kind and not too long, or its
connection is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.engine.wire import Head

MOST_PARTS = 1 << 10  # ranges of samples that are named
MOST_LETTERS = 1 << 12
MOST = 1 << 62

SURE, LOSS, NUMBERS, VOID = range(4)
"""What a worker of a gang says of its part of a step: all is well; its loss is not
finite; its gradient or statistics are not; it was told to leave these samples out. The
highest counts for all workers."""


def read_doubt(head: Head) -> int:
    """What a push says of itself, see `SURE`.

    Raises:
        ValueError: It is none of the known.
    """
    doubt = int(head.get("doubt", SURE))
    if not SURE <= doubt <= VOID:
        raise ValueError("no doubt that is known")
    return doubt


def not_finite(head: Head) -> dict[str, Any]:
    """A report of numbers that are not finite, see `finite.report`.

    Raises:
        ValueError: It is not what a worker of ours says.

    Example:
        >>> found = {"reaction": "skip", "what": "loss", "epoch": 0, "step": 3,
        ...     "last_step": 3, "bad_rows": 1, "rows": [5], "ranges": [[0, 8]]}
        >>> not_finite({"kind": "not_finite", **found}) == found
        True
    """
    names = ("epoch", "step", "last_step", "bad_rows")
    numbers = {name: _whole(head[name]) for name in names}
    texts = {name: _text(head[name]) for name in ("reaction", "what")}
    rows, ranges = _some(head["rows"]), _some(head["ranges"])
    pairs = [(_whole(start), _whole(stop)) for start, stop in ranges]
    return {
        **texts,
        **numbers,
        "rows": [_whole(row) for row in rows],
        "ranges": [list(pair) for pair in pairs],
    }


def data_retry(head: Head) -> dict[str, Any]:
    """A report of data that could not be read and is asked for again.

    Raises:
        ValueError: It is not what a worker of ours says.
    """
    return {"text": _text(head["text"]), "attempt": _whole(head["attempt"])}


COMPLAINTS: dict[str, Callable[[Head], dict[str, Any]]] = {
    "not_finite": not_finite,
    "data_retry": data_retry,
}
"""Kinds of messages, and who reads them."""


def _whole(value: Any) -> int:
    number = int(value)
    if not 0 <= number < MOST:
        raise ValueError("no number of a worker of ours")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MOST_LETTERS:
        raise ValueError(f"no text of at most {MOST_LETTERS} letters")
    return value


def _some(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > MOST_PARTS:  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(f"no list of at most {MOST_PARTS} parts")
    return value  # pyright: ignore[reportUnknownVariableType]
