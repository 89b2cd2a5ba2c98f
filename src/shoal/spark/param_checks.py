"""Checks of params: what each takes, and the form in which it is kept and saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from shoal import strategies
from shoal.errors import ConfigError
from shoal.plan.request import require_whole

Check = Callable[[str, Any], Any]
"""Returns the value to keep, of a name and a value."""
TASKS = ("auto", "classification", "regression")


def _refuse(name: str, value: Any, expected: str) -> ConfigError:
    return ConfigError(
        f"{name}={value!r} cannot be used. Expected {expected}. Correct it, or leave "
        f"{name} out."
    )


def text(name: str, value: Any) -> str:
    """Returns a name.

    Example:
        >>> text("labelCol", "y")
        'y'
        >>> text("labelCol", ["y"])
        Traceback (most recent call last):
        shoal.errors.ConfigError: labelCol=['y'] cannot be used. Expected text. ...
    """
    if not isinstance(value, str) or not value:
        raise _refuse(name, value, "text")
    return str(value)


def anything(name: str, value: Any) -> Any:
    """Returns the value."""
    del name
    return value


def whole(lowest: int) -> Check:
    """Checks whole numbers of at least `lowest`."""

    def check(name: str, value: Any) -> int:
        return require_whole(name, value, lowest)

    return check


def number(name: str, value: Any) -> float:
    """Returns a number of at least 0."""
    found = _real(value)
    if found is None or not found >= 0:
        raise _refuse(name, value, "a number of at least 0")
    return found


def share(name: str, value: Any) -> float:
    """Returns a share of the rows."""
    found = _real(value)
    if found is None or not 0 <= found < 1:
        raise _refuse(name, value, "a share of the rows, from 0 to below 1")
    return found


def _real(value: Any) -> float | None:
    is_number = isinstance(value, int | float | np.number)
    return float(value) if is_number and not isinstance(value, bool) else None


def names(name: str, value: Any) -> list[str]:
    """Returns names of columns.

    Example:
        >>> names("featuresCols", ("a", "b"))
        ['a', 'b']
    """
    listed: list[Any] = list(value) if isinstance(value, list | tuple) else []
    if not listed or not all(isinstance(one, str) and one for one in listed):
        raise _refuse(name, value, "a list of names of columns")
    return listed


def by_name(name: str, value: Any) -> dict[str, str | list[str]]:
    """Returns a name, or several, for each name."""
    if not isinstance(value, Mapping) or not value:
        raise _refuse(name, value, "a mapping to names of columns")
    given = cast("Mapping[Any, Any]", value)
    return {
        text(name, key): one if isinstance(one, str) else names(name, one)
        for key, one in given.items()
    }


def names_or_by_name(name: str, value: Any) -> list[str] | dict[str, str | list[str]]:
    """Returns names of columns, or some for each output."""
    is_mapping = isinstance(value, Mapping)
    return by_name(name, value) if is_mapping else names(name, value)


def workers(name: str, value: Any) -> str | int | list[int]:
    """Returns a number of workers, or their limits.

    Example:
        >>> [workers("numWorkers", value) for value in ("auto", 2, (1, 4))]
        ['auto', 2, [1, 4]]
    """
    if isinstance(value, str) and value == "auto":
        return value
    if isinstance(value, list | tuple):
        limits = cast("list[Any]", value)
        if len(limits) != 2:
            raise _refuse(name, value, 'a number, [least, most] or "auto"')
        return [require_whole(name, one, 1) for one in limits]
    return require_whole(name, value, 1)


def strategy(name: str, value: Any) -> Any:
    """Returns a strategy as text, which can be saved, where there is one for it.

    Example:
        >>> strategy("strategy", strategies.Downpour(period=3))
        'downpour:period=3'
    """
    del name
    found = strategies.get(value)
    if isinstance(value, str):
        return value
    spelled = strategies.spell(found)
    try:
        return spelled if strategies.get(spelled) == found else found
    except ConfigError:  # of a class that is registered nowhere
        return found


def mapping(name: str, value: Any) -> dict[str, Any]:
    """Returns arguments by name."""
    if not isinstance(value, Mapping):
        raise _refuse(name, value, "a mapping from names of arguments to values")
    return dict(cast("Mapping[str, Any]", value))


def task(name: str, value: Any) -> str:
    """Returns the kind of a prediction."""
    if value not in TASKS:
        raise _refuse(name, value, f"one of {', '.join(map(repr, TASKS))}")
    return value
