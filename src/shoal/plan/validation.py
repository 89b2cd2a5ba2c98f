"""Decides after which epochs a run validates. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from shoal.errors import ConfigError
from shoal.plan.request import plain

Freq: TypeAlias = int | tuple[int, ...]
"""A number of epochs, or the epochs themselves, 1 for the first."""


def read_freq(freq: object) -> Freq:
    """Reads `validation_freq`, with the same meaning as in Keras.

    Raises:
        ConfigError: It is neither a number of epochs nor a list of epochs.

    Example:
        >>> read_freq(2), read_freq([1, 5])
        (2, (1, 5))
    """
    is_list = isinstance(freq, Iterable) and not isinstance(freq, (str, bytes))
    given: Any = freq if is_list else (freq,)
    values: tuple[int, ...] = tuple(map(plain, given))
    if not all(type(value) is int and value >= 1 for value in values):
        raise ConfigError(
            f"validation_freq={freq!r} cannot be used. Expected a number of epochs of "
            "at least 1, or a list of epochs. Leave it out to validate after each."
        )
    return values if is_list else values[0]


def is_validated(freq: Freq, epochs: range) -> bool:
    """Whether a validation follows any of some epochs.

    Example:
        >>> is_validated(3, range(2)), is_validated((2,), range(2))
        (False, True)
    """
    if isinstance(freq, int):
        return epochs.stop // freq > epochs.start // freq
    return any(epoch - 1 in epochs for epoch in freq)
