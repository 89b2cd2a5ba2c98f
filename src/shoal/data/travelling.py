"""Checks that a user's data can be pickled, and names the part that cannot.

Workers read data by themselves, so the object that holds it is pickled. This file
finds faults before anything is started, and names them as the user knows them.
"""

from __future__ import annotations

import io
from typing import Any

import cloudpickle

from shoal.errors import DataError


class _Nowhere(io.RawIOBase):
    """Accepts bytes and keeps none."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        return len(data)


def check_travels(value: Any, kind: str, where: str, advice: str) -> None:
    """Refuses objects that cannot be pickled for a worker.

    Arrays are not copied, so that the check costs little for large data.

    Args:
        value: Object to be sent.
        kind: The user's name for it, for messages: "keras PyDataset".
        where: Its origin, for messages.
        advice: The remedy, a sentence.

    Raises:
        DataError: It cannot be pickled; names the attributes that cannot.

    Example:
        >>> check_travels([1, 2], "list", "data of fit", "Do something else.")
        >>> check_travels((n for n in "ab"), "generator", "data of fit", "Use a list.")
        Traceback (most recent call last):
        shoal.errors.DataError: The generator cannot be sent to workers (data of ...
    """
    error = _obstacle(value)
    if error is None:
        return
    parts = getattr(value, "__dict__", {})
    names = [f".{name}" for name, part in parts.items() if _obstacle(part)]
    owner = f"{type(value).__name__}{' or '.join(names[:3])}"
    raise DataError(
        f"The {kind} cannot be sent to workers ({where}): {owner} cannot be pickled "
        f"({type(error).__name__}: {error}). Expected data that every worker can read "
        f"by itself. {advice}"
    ) from error


def _obstacle(value: Any) -> BaseException | None:
    """Returns the error that pickling a value raises, if any."""
    pickler = cloudpickle.Pickler(
        io.BufferedWriter(_Nowhere()), protocol=5, buffer_callback=lambda _: False
    )
    try:
        pickler.dump(value)
    except Exception as error:  # pickling runs code of any object
        return error
    return None
