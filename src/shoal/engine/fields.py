"""Numbers, texts, lists and bytes of a peer's words, before they are believed. Pure."""

from __future__ import annotations

from typing import Any

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
