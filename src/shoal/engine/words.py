"""What a worker says of itself, before it is believed or passed on. Pure.

Its words reach the controller and the records of a run: they are of the right kind and
not too long, or its connection is closed.
"""

from __future__ import annotations

from typing import Any

from shoal.engine.wire import Head

MAX_HINT = 1 << 16  # a rank that a process may wish for
MOST_NAME = 256
MOST_TEXT = 1 << 18


def hint_of(head: Head) -> int:
    """The rank that a process wishes for, -1 for any.

    Example:
        >>> hint_of({"hint": 3}), hint_of({"hint": 10**30})
        (3, -1)
    """
    hint = int(head["hint"])
    return hint if 0 <= hint < MAX_HINT else -1


def _text(head: Head, key: str, most: int) -> str:
    value = head[key]
    if not isinstance(value, str) or len(value) > most:
        raise ValueError(f"{key} is no text of at most {most} letters")
    return value


def names(head: Head) -> dict[str, Any]:
    """Process, machine and token of a process that joins.

    Raises:
        ValueError: They are not what a worker of ours says.
    """
    pid = head["pid"]
    if not isinstance(pid, int) or not 0 <= pid < 1 << 32:
        raise ValueError("pid is no number of a process")
    found = {key: _text(head, key, MOST_NAME) for key in ("node", "token")}
    return {"pid": pid, **found}


def failure(head: Head) -> dict[str, Any]:
    """What a worker says of code that raised.

    Raises:
        ValueError: It is not what a worker of ours says.
    """
    step = int(head["step"])
    if not 0 <= step < 1 << 62:
        raise ValueError("no number of a step")
    texts = {key: _text(head, key, MOST_TEXT) for key in ("error", "traceback")}
    return {"step": step, "is_data": bool(head.get("is_data")), **texts}
