"""Marks that identify the value of a variable, to find later whether it has changed.

On JAX another value is another array, and torch counts writes to a tensor, so that a
large value need not be copied. This file decides what is copied.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

SMALL_BYTES = 1 << 16
"""Smaller variables are copied for comparison."""


class Mark(NamedTuple):
    """Identifies the value of a variable before the hooks.

    Args:
        token: Differs if it may have changed; None if another method is used.
        value: A copy, None for a large variable.
    """

    token: Any
    value: Any

    @property
    def is_told(self) -> bool:
        """Whether this suffices to find a change."""
        return self.token is not None or self.value is not None


def mark_of(array: Any, *, is_whole: bool = False) -> Mark:
    """Returns a mark of an array of JAX, which identifies its value by itself.

    `evaluate`, `predict` and `fit` of Keras take the memory of the arrays that they are
    given, which are deleted then. NumPy's view of an array on the CPU prevents that;
    from other devices small ones are copied.

    Args:
        array: A value of a variable.
        is_whole: Whether to copy large ones too.
    """
    is_here = all(device.platform == "cpu" for device in array.devices())
    is_wanted = is_here or is_whole or array.nbytes <= SMALL_BYTES
    # Of an array that several hosts share, a host has only a part.
    can_read = is_wanted and array.is_fully_addressable
    return Mark(array, np.asarray(array) if can_read else None)


def marked_value(mark: Mark) -> Any:
    """Returns the value that was marked; None if it is not known any more."""
    is_deleted = getattr(mark.token, "is_deleted", None)
    if mark.value is not None or is_deleted is None:
        return mark.value
    return None if is_deleted() else np.asarray(mark.token)


def differs(array: Any, mark: Mark) -> bool:
    """Whether an array of JAX has another value than the one that was marked.

    A deleted one counts as equal: Keras' `evaluate` and `predict` replace it by its
    copy.
    """
    if array is mark.token:
        return False
    value = marked_value(mark)
    return value is not None and not is_same(np.asarray(array), value)


def is_same(one: Any, other: Any) -> bool:
    """Whether two arrays have the same bytes and dtype."""
    if one is other:
        return True
    return one.dtype == other.dtype and bool(
        np.array_equal(one.view(np.uint8), other.view(np.uint8))
        if one.ndim and one.flags.c_contiguous and other.flags.c_contiguous
        else one.tobytes() == other.tobytes()
    )
