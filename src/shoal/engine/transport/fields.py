"""Validates single fields of heads, before they are used or passed on. Pure.

Fields of a peer reach the controller and the records of a run. Every field must have
the right type and length, or the connection is closed. At the end are the types by
which messages declare their fields, each with its reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias, TypeVar

T = TypeVar("T")

WRONG = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors raised for an invalid frame."""
MOST = 1 << 62
MOST_PARTS = 1 << 10
MOST_LETTERS = 1 << 12
MOST_NAME = 256
MOST_PATH = 1 << 12
MOST_TEXT = 1 << 18
MOST_ALL = 1 << 20  # more does not fit into a head
MOST_PID = 1 << 32
MAX_HINT = 1 << 16  # highest rank that a process may ask for


def whole(value: Any, most: int = MOST) -> int:
    """Returns a number that counts.

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


def is_measured(value: float) -> bool:
    """Whether a number can be a measured one, which may be a little below 0.

    Sums of such numbers are finite, and each fits into 64 bits.

    Raises:
        TypeError: It is no number.

    Example:
        >>> is_measured(-1e-9), is_measured(1 << 63), is_measured(float("nan"))
        (True, False, False)
    """
    return abs(value) < MOST


def quantity(value: Any) -> float:
    """Returns a measured number.

    Raises:
        ValueError: It is negative, or not finite.
    """
    number = float(value)
    if not 0 <= number < MOST:
        raise ValueError(f"no quantity from 0 to {MOST}")
    return number


def amount(value: Any) -> float | None:
    """Returns a measured number, None if it is unknown.

    Raises:
        ValueError: It is negative, or not finite.

    Example:
        >>> amount(97), amount(None)
        (97.0, None)
    """
    return None if value is None else quantity(value)


def text(value: Any, most: int) -> str:
    """Returns a text of at most `most` letters.

    Raises:
        ValueError: It is not such a text.
    """
    if not isinstance(value, str) or len(value) > most:
        raise ValueError(f"no text of at most {most} letters")
    return value


def some(value: Any, most: int = MOST_PARTS) -> list[Any]:
    """Returns a list of at most `most` parts; a tuple is packed as one.

    Raises:
        ValueError: It is not such a list.
    """
    if not isinstance(value, list | tuple) or len(value) > most:  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(f"no list of at most {most} parts")
    return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def exactly(body: memoryview, size: int, what: str) -> memoryview:
    """Returns a body of the expected length.

    Raises:
        ValueError: It has another length.

    Example:
        >>> exactly(memoryview(b"1234"), 4, "vectors").nbytes
        4
    """
    if len(body) != size:
        raise ValueError(f"{len(body):,} bytes of {what}, where {size:,} belong")
    return body


def mapping(value: Any) -> dict[str, Any]:
    """Returns a JSON object.

    Raises:
        ValueError: It is not an object.
    """
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value  # pyright: ignore[reportUnknownVariableType]


def rate(value: Any) -> float | None:
    """Returns a learning rate, None under a schedule.

    Raises:
        ValueError: It is neither.

    Example:
        >>> rate(1), rate(None)
        (1, None)
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"a learning rate of {value!r:.40}")
    float(value)  # it raises for 400 digits
    return value


def address(value: Any) -> tuple[str, int]:
    """Returns host and port.

    Raises:
        ValueError: It is not an address.
    """
    host, port = value
    return text(host, MOST_NAME), whole(port, 1 << 16)


def each(
    read: Callable[[Any], T], most: int = MOST_ALL
) -> Callable[[Any], tuple[T, ...]]:
    """Returns a reader of lists, given a reader of their parts.

    Example:
        >>> each(whole)([1, "2"])
        (1, 2)
    """
    return lambda value: tuple(map(read, some(value, most)))


def up_to(most: int) -> Callable[[Any], str]:
    """Returns a reader of texts of at most `most` letters."""
    return lambda value: text(value, most)


def pid(value: Any) -> int:
    """Returns the id of a process.

    Raises:
        ValueError: It is negative, or too high.
    """
    return whole(value, MOST_PID)


def hint(value: Any) -> int:
    """Returns the rank that a process asks for, -1 for any.

    Raises:
        ValueError: It is lower, or too high.
    """
    return whole(int(value) + 1, MAX_HINT + 1) - 1


def clipped(value: Any) -> str:
    """Returns any value as a short text.

    Example:
        >>> clipped(None)
        'None'
    """
    return f"{value!s:.300}"


Whole: TypeAlias = Annotated[int, whole]
Wholes: TypeAlias = Annotated[tuple[int, ...], each(whole)]
Pid: TypeAlias = Annotated[int, pid]
Hint: TypeAlias = Annotated[int, hint]
Flag: TypeAlias = Annotated[bool, bool]
Rate: TypeAlias = Annotated[float | None, rate]
Name: TypeAlias = Annotated[str, up_to(MOST_NAME)]
Names: TypeAlias = Annotated[tuple[str, ...], each(up_to(MOST_NAME))]
Letters: TypeAlias = Annotated[str, up_to(MOST_LETTERS)]
Text: TypeAlias = Annotated[str, up_to(MOST_TEXT)]
LongText: TypeAlias = Annotated[str, up_to(MOST_ALL)]
Clipped: TypeAlias = Annotated[str, clipped]
Address: TypeAlias = Annotated[tuple[str, int], address]
Object: TypeAlias = Annotated[dict[str, Any], mapping]
