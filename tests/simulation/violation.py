"""The error of a simulated run when an invariant of the engine is broken."""

from __future__ import annotations


class Violation(AssertionError):
    """An invariant of the engine was broken."""


def require(is_kept: bool, promise: str, *found: object) -> None:
    """Raises `Violation` with the invariant and what was found, unless it holds."""
    if not is_kept:
        raise Violation(": ".join([promise, *map(str, found)]))
