"""What a simulated run raises when a promise of the engine is broken."""

from __future__ import annotations


class Violation(AssertionError):
    """A promise of the engine was broken."""


def require(is_kept: bool, promise: str, *found: object) -> None:
    """Raises `Violation` with the promise and what was found, unless it is kept."""
    if not is_kept:
        raise Violation(": ".join([promise, *map(str, found)]))
