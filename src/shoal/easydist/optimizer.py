"""The optimizer of an `ExecutionEnvironment`, in place of the compiled one."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from shoal.errors import ConfigError


def set_optimizer(model: Any, opt: Any) -> None:
    """Compiles a model again with another optimizer; other settings stay.

    Args:
        model: A compiled model.
        opt: A name, a configuration, or an optimizer of Keras.

    Raises:
        ConfigError: `opt` is none of these.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mae", metrics=["mse"])
        >>> set_optimizer(model, "adam")
        >>> type(model.optimizer).__name__, model.loss
        ('Adam', 'mae')
    """
    keras = import_module("keras")
    try:
        found = keras.optimizers.get(opt)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"opt={opt!r} is not an optimizer of Keras. Expected a name as 'adam', or "
            "an object such as keras.optimizers.Adam(1e-3). Correct it, or leave it "
            "out to keep the one the model was compiled with."
        ) from error
    given = dict(model._compile_config.config)
    given["optimizer"] = found
    # Keras' own compile: a model may override it with other arguments.
    keras.Model.compile(model, **given)
