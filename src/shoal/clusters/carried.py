"""Variables of this process that workers on other machines get as well."""

from __future__ import annotations

from collections.abc import Mapping

CARRIED = ("JAX_", "KERAS_", "TF_", "TORCH_", "XLA_")
"""Prefixes of variables that workers elsewhere inherit from this process."""


def carried(here: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Returns variables for workers elsewhere.

    Args:
        here: Variables of this process.
        given: Variables that the user names; they win.

    Example:
        >>> carried({"JAX_DEBUG_NANS": "1", "HOME": "/home/a"}, {"A": "b"})
        {'JAX_DEBUG_NANS': '1', 'A': 'b'}
    """
    own = {name: value for name, value in here.items() if name.startswith(CARRIED)}
    return {**own, **given}
