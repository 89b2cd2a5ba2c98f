"""What a worker says of itself, before it is believed or passed on. Pure.

Its words reach the controller and the records of a run: they are of the right kind and
not too long, or its connection is closed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from shoal.engine.complaints import COMPLAINTS, read_doubt
from shoal.engine.fields import text, whole
from shoal.engine.ledger import Piece
from shoal.engine.wire import Head

MAX_HINT = 1 << 16  # a rank that a process may wish for
MOST_NAME = 256
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
