"""Keras' limits of every `fit`, for debugging, applied here as well.

`keras.config.set_max_epochs`, `keras.config.set_max_steps_per_epoch` and the variables
`KERAS_MAX_EPOCHS` and `KERAS_MAX_STEPS_PER_EPOCH` cut a long script short.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

from shoal.plan.request import plain


def capped_epochs(epochs: Any) -> Any:
    """Returns the epoch to end before, at most the limit.

    Args:
        epochs: The argument of `fit`; a value that is not a whole number stays
            unchanged.
    """
    limit, asked = _limit("max_epochs"), plain(epochs)
    if limit is None or not isinstance(asked, int) or asked <= limit:
        return epochs
    _warn(f"Limiting epochs to {limit}")
    return limit


def capped_steps(name: str, steps: Any) -> Any:
    """Returns a number of steps, at most the limit.

    Args:
        name: Name of the argument: "steps_per_epoch", "validation_steps" or "steps".
        steps: The argument, None for all data.
    """
    limit, asked = _limit("max_steps_per_epoch"), plain(steps)
    if limit is None or (asked is not None and not isinstance(asked, int)):
        return steps
    if asked is not None and asked <= limit:
        return steps
    _warn(f"Limiting {name} to {limit}")
    return limit


def _limit(name: str) -> int | None:
    """Reads a limit of Keras' configuration; None without one."""
    return getattr(import_module("keras").config, name)() or None


def _warn(text: str) -> None:
    # Keras' own words and class: users' filters for them still work.
    warnings.warn(text, UserWarning, stacklevel=4)
