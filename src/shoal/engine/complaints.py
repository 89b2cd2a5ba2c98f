"""What a worker says of data and numbers that hurt, and of its machine. Pure.

As with all that comes from a worker: of the right kind and not too long, or its
connection is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.engine.fields import amount, some, text, whole
from shoal.engine.wire import Head
from shoal.facts import GpuUse

MOST_LETTERS = 1 << 12
MOST_NAME = 256
MOST_GPUS = 256

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
    numbers = {name: whole(head[name]) for name in names}
    texts = {name: text(head[name], MOST_LETTERS) for name in ("reaction", "what")}
    rows, ranges = some(head["rows"]), some(head["ranges"])
    pairs = [(whole(start), whole(stop)) for start, stop in ranges]
    return {
        **texts,
        **numbers,
        "rows": [whole(row) for row in rows],
        "ranges": [list(pair) for pair in pairs],
    }


def data_retry(head: Head) -> dict[str, Any]:
    """A report of data that could not be read and is asked for again.

    Raises:
        ValueError: It is not what a worker of ours says.
    """
    return {"text": text(head["text"], MOST_LETTERS), "attempt": whole(head["attempt"])}


def data_state(head: Head) -> dict[str, Any]:
    """What a user's code made of a worker's copy of the data, see `ChunkedSource`.

    Raises:
        ValueError: It is not what a worker of ours says.

    Example:
        >>> said = {"epoch": 1, "names": ["order"], "digests": ["a"]}
        >>> data_state({"kind": "data_state", **said})
        {'epoch': 1, 'digests': {'order': 'a'}}
    """
    names = [text(name, MOST_LETTERS) for name in some(head["names"])]
    digests = [text(digest, MOST_NAME) for digest in some(head["digests"])]
    pairs = zip(names, digests, strict=True)
    return {"epoch": whole(head["epoch"]), "digests": dict(pairs)}


def node_used(head: Head) -> dict[str, Any]:
    """What a machine is busy with, see `NodeUse`.

    Raises:
        ValueError: It is not what a worker of ours says.

    Example:
        >>> said = {"kind": "node_used", "node": "10.0.0.7", "percent": 93.5,
        ...     "memory_mib": 512.0, "total_mib": 1024.0, "gpus": []}
        >>> node_used(said) == {k: said[k] for k in said if k != "kind"}
        True
    """
    names = ("percent", "memory_mib", "total_mib")
    gpus = [
        {
            "number": whole(gpu["number"]),
            "name": text(gpu["name"], MOST_NAME),
            **{name: amount(gpu[name]) for name in GpuUse._fields[2:]},
        }
        for gpu in some(head["gpus"], MOST_GPUS)
    ]
    return {
        "node": text(head["node"], MOST_NAME),
        **{name: amount(head[name]) for name in names},
        "gpus": gpus,
    }


COMPLAINTS: dict[str, Callable[[Head], dict[str, Any]]] = {
    "not_finite": not_finite,
    "data_retry": data_retry,
    "data_state": data_state,
    "node_used": node_used,
}
"""Kinds of messages, and who reads them."""
