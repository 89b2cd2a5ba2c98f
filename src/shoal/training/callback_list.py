"""Keras' list of callbacks, whose hooks may be interrupted and are safe points.

Keras calls hooks only between its own operations: under JAX the variables of a
model are empty between two batches of `evaluate`, and only there they can be restored.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from shoal.interruption import check, interruptible


def open_list(callbacks: Any, **arguments: Any) -> Any:
    """Returns a Keras `CallbackList` whose callbacks may be interrupted anywhere.

    Args:
        callbacks: Callbacks in a form that Keras accepts.
        **arguments: Other arguments of `CallbackList`.
    """
    return _kind()(callbacks, **arguments)


@cache
def _kind() -> type:
    plain = import_module("keras").callbacks.CallbackList

    def opened(name: str) -> Any:
        hook = getattr(plain, name)

        def call(self: Any, *arguments: Any, **named: Any) -> None:
            with interruptible():
                hook(self, *arguments, **named)

        return call

    hooks = [name for name in dir(plain) if name.startswith("on_")]
    return type("OpenCallbackList", (plain,), {name: opened(name) for name in hooks})


def safe_points() -> list[Any]:
    """Returns callbacks for `evaluate` and `predict` that raise pending signals."""
    keras: Any = import_module("keras")

    class Safe(keras.callbacks.Callback):
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            check()

        def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
            check()

    return [Safe()]


def whole(model: Any, verb: str, *arguments: Any, **named: Any) -> Any:
    """Calls `evaluate` or `predict` of a model; its variables are complete afterwards.

    Args:
        model: Keras model.
        verb: Name of the method.
        *arguments: Its arguments.
        **named: Its named arguments.
    """
    try:
        return getattr(model, verb)(*arguments, **named)
    except BaseException:
        put_back = getattr(model, "jax_state_sync", None)
        if put_back is not None:
            put_back()
        raise
