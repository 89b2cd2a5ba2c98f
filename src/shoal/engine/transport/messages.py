"""What workers say, before it is believed or passed on. Pure.

Their messages reach the controller and the records of a run. Every field is of the
right kind and not too long, or the connection is closed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from shoal.engine.coordination.ledger import Piece
from shoal.facts import GpuUse
from shoal.wire.frames import Head

WRONG = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What is raised where a frame is not what it should be."""
MOST = 1 << 62
MOST_PARTS = 1 << 10


def whole(value: Any, most: int = MOST) -> int:
    """A number that counts something.

    Raises:
        ValueError: It is negative, or `most` or more.

    Example:
        >>> whole(3.0), whole("7")
        (3, 7)
    """
    number = int(value)
    if not 0 <= number < most:
        raise ValueError(f"no number from 0 to {most}")
    return number


def amount(value: Any) -> float | None:
    """What was measured, None where nobody knows.

    Raises:
        ValueError: It is negative, or not finite.

    Example:
        >>> amount(97), amount(None)
        (97.0, None)
    """
    if value is None:
        return None
    number = float(value)
    if not 0 <= number < MOST:
        raise ValueError(f"no quantity from 0 to {MOST}")
    return number


def text(value: Any, most: int) -> str:
    """A text of at most `most` letters.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(value, str) or len(value) > most:
        raise ValueError(f"no text of at most {most} letters")
    return value


def some(value: Any, most: int = MOST_PARTS) -> list[Any]:
    """A list of at most `most` parts.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(value, list) or len(value) > most:  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(f"no list of at most {most} parts")
    return value  # pyright: ignore[reportUnknownVariableType]


def exactly(body: memoryview, size: int, what: str) -> memoryview:
    """A body, which has to be so long.

    Raises:
        ValueError: It is not.

    Example:
        >>> exactly(memoryview(b"1234"), 4, "vectors").nbytes
        4
    """
    if len(body) != size:
        raise ValueError(f"{len(body):,} bytes of {what}, where {size:,} belong")
    return body


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


MAX_HINT = 1 << 16  # a rank that a process may wish for
MOST_PID = 1 << 32
MOST_TEXT = 1 << 18
MOST_SUMS = 64  # that the losses of one model are scaled by


def hint_of(head: Head) -> int:
    """The rank that a process wishes for, -1 for any.

    Example:
        >>> hint_of({"hint": 3}), hint_of({"hint": 10**30})
        (3, -1)
    """
    hint = int(head["hint"])
    return hint if 0 <= hint < MAX_HINT else -1


def names(head: Head) -> dict[str, Any]:
    """Process, machine and token of a process that joins.

    Raises:
        ValueError: They are not what a worker of ours says.
    """
    found = {key: text(head[key], MOST_NAME) for key in ("node", "token")}
    return {"pid": whole(head["pid"], MOST_PID), **found}


def failure(head: Head) -> dict[str, Any]:
    """What a worker says of code that raised.

    Raises:
        ValueError: It is not what a worker of ours says.
    """
    texts = {key: text(head[key], MOST_TEXT) for key in ("error", "traceback")}
    return {
        "step": whole(head["step"]), "is_data": bool(head.get("is_data")), **texts
    }  # fmt: skip


def push(head: Head) -> dict[str, Any]:
    """What a worker says of what it did.

    Raises:
        ValueError: It is not what a worker of ours says.
    """
    compute_s, data_s, wait_s, exchange_s = map(float, head["times"])
    samples, steps = float(head["samples"]), whole(head["steps"])
    group = whole(head.get("group", 0))
    if steps < 1 or not (math.isfinite(samples) and samples >= 0):
        raise ValueError(f"{steps} steps of {samples} samples")
    times = compute_s, data_s, wait_s, exchange_s
    if not all(map(math.isfinite, times)):  # they are recorded, and added up
        raise ValueError(f"times of {times} s")
    return {
        "lineage": whole(head["lineage"]),
        "sequence": whole(head["sequence"]),
        "pieces": [[*Piece(*map(whole, piece))] for piece in head["pieces"]],
        "steps": steps,
        "samples": samples,
        "group": group,
        **_sums(head),
        "doubt": read_doubt(head),
        "times": [*times],
    }


def _sums(head: Head) -> dict[str, Any]:
    """What a message weighs beside `samples`; see `Push`.

    Raises:
        ValueError: It is not what a worker of ours says.
    """
    rows = head.get("rows")
    own, assumed = (
        [float(value) for value in head.get(name, ())] for name in ("own", "assumed")
    )
    numbers = [*own, *assumed, *([] if rows is None else [float(rows)])]
    is_sound = all(math.isfinite(number) and number >= 0 for number in numbers)
    if not is_sound or len(own) != len(assumed) or len(own) > MOST_SUMS:
        raise ValueError(f"a message of {rows} rows, with {own} of {assumed}")
    return {"rows": None if rows is None else float(rows), "own": own,
            "assumed": assumed}  # fmt: skip


def _nothing(_head: Head) -> dict[str, Any]:
    return {}


def _failed(head: Head) -> dict[str, Any]:
    return {"said": {"kind": "failed", **failure(head)}}


def _complaint(head: Head) -> dict[str, Any]:
    kind = head["kind"]
    return {"event": "complaint", "said": {"kind": kind, **COMPLAINTS[kind](head)}}


WORDS: dict[str, Callable[[Head], dict[str, Any]]] = {
    "push": push,
    "need": _nothing,
    "ready": _nothing,
    "snapshot": _nothing,
    "compiling": _nothing,
    "reading": _nothing,
    "busy": _nothing,
    "failed": _failed,
    **dict.fromkeys(COMPLAINTS, _complaint),
}
"""What a worker may say once it is seated, and who reads it."""
