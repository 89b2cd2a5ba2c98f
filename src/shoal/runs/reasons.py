"""Reads the recorded reason of a run's end. Pure."""

from __future__ import annotations

import re

_TRACEBACK = "Traceback (most recent call last):"
_OF_WORKER = re.compile(r"\w+: worker (\d{1,9})\b")


def split_reason(reason: str) -> tuple[str, str]:
    r"""Returns the message of an error, of one or several lines, and its traceback.

    Args:
        reason: `reason` of the report of a run that failed.

    Example:
        >>> first, last = "Traceback (most recent call last):", "ValueError: bad"
        >>> split_reason(f"WorkerFailed: worker 1 failed\n\n{first}\n{last}")
        ('WorkerFailed: worker 1 failed', 'Traceback (most recent call last):...bad')
        >>> split_reason("no room")
        ('no room', '')
    """
    message, found, rest = reason.partition(_TRACEBACK)
    return message.strip(), f"{found}{rest}".strip()


def failed_rank(reason: str) -> int | None:
    """Returns the rank of the worker whose error ended a run, None if it was no worker.

    Example:
        >>> failed_rank("DataError: worker 1 at step 0: bad cell")
        1
    """
    found = _OF_WORKER.match(reason)
    return int(found[1]) if found else None
