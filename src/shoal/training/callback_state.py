"""What callbacks remember: kept with a checkpoint, given back when a run goes on.

This file decides what of a callback is state: all its attributes but the model. What
cannot be pickled, such as an open file, is made again by its `on_train_begin`.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import cloudpickle

OF_THE_RUN = frozenset({"_model", "model", "params"})
"""Attributes that Keras sets when training begins."""

States: TypeAlias = list[dict[str, bytes]]
"""For each callback its attributes, pickled one by one."""


def states_of(callbacks: Sequence[Any]) -> bytes:
    """Returns what callbacks remember at this moment."""
    return pickle.dumps([_state(callback) for callback in callbacks])


def give_back(callbacks: Sequence[Any], blob: bytes) -> None:
    """Lets callbacks remember what those of an earlier process did.

    Args:
        callbacks: As many as there were, in their order; others stay as they are.
        blob: What `states_of` returned.
    """
    states: list[tuple[str, dict[str, bytes]]] = pickle.loads(blob)
    for callback, (name, state) in zip(callbacks, states, strict=False):
        if type(callback).__qualname__ != name:
            continue
        for key, value in state.items():
            setattr(callback, key, pickle.loads(value))


def pack_callbacks(callbacks: Sequence[Any]) -> bytes | None:
    """Pickles callbacks without their model, None where one cannot be pickled."""
    try:
        return cloudpickle.dumps([_without_model(callback) for callback in callbacks])
    except Exception:  # whatever they hold
        return None


def unpack_callbacks(blob: bytes) -> list[Any]:
    """The inverse of `pack_callbacks`."""
    return pickle.loads(blob)


def _state(callback: Any) -> tuple[str, dict[str, bytes]]:
    found: dict[str, bytes] = {}
    attributes: Mapping[str, Any] = vars(callback)
    for key, value in attributes.items():
        if key in OF_THE_RUN:
            continue
        try:
            found[key] = cloudpickle.dumps(value)
        except Exception:  # an open file, a lock, a thread
            continue
    return type(callback).__qualname__, found


def _without_model(callback: Any) -> Any:
    stripped = copy.copy(callback)
    for key in OF_THE_RUN & set(vars(stripped)):
        vars(stripped)[key] = None
    return stripped
