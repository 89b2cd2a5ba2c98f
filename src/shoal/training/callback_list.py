"""Keras' list of callbacks, whose hooks may be interrupted and are safe points.

Keras calls hooks where nothing of its own is half done: under JAX the variables of a
model are empty between two batches of `evaluate`, and only there they can be put back.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from shoal.interruption import check, interruptible


def open_list(callbacks: Any, **arguments: Any) -> Any:
    """Returns a Keras `CallbackList` whose callbacks may be interrupted anywhere.

    Args:
        callbacks: As Keras takes them.
        **arguments: Others of `CallbackList`.
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
    """Callbacks for `evaluate` and `predict` that raise what is pending."""
    keras: Any = import_module("keras")

    class Safe(keras.callbacks.Callback):
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            check()

        def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
            check()

    return [Safe()]


def whole(model: Any, verb: str, *arguments: Any, **named: Any) -> Any:
    """Calls `evaluate` or `predict` of a model, which has all variables afterwards.

    Args:
        model: Of Keras.
        verb: Name of the method.
        *arguments: Of it.
        **named: Of it.
    """
    try:
        return getattr(model, verb)(*arguments, **named)
    except BaseException:
        put_back = getattr(model, "jax_state_sync", None)
        if put_back is not None:
            put_back()
        raise
