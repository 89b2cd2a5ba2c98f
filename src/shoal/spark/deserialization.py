"""Trainers from the JSON of `serialization`."""

from __future__ import annotations

import json
from typing import Any, cast

import keras

from shoal.errors import ConfigError
from shoal.spark import trainers
from shoal.spark.trainer import Trainer


def trainer_class(name: str) -> type[Trainer] | None:
    """Returns the class of a trainer of this package, None for other names.

    Example:
        >>> trainer_class("ADAG").__name__, trainer_class("Trainer")
        ('ADAG', None)
    """
    found: Any = vars(trainers).get(name)
    if not isinstance(found, type) or found.__module__ != trainers.__name__:
        return None
    return found if issubclass(found, Trainer) else None


def deserialize_trainer(text: str, keras_model: Any) -> Any:
    """Makes a trainer of the JSON that `serialize` has returned.

    Args:
        text: The JSON.
        keras_model: Its model.

    Raises:
        ConfigError: It is none of a trainer of this package.

    Example:
        >>> from shoal.spark.serialization import to_json
        >>> text = to_json("ADAG", {"worker_optimizer": "sgd", "loss": "mse"})
        >>> deserialize_trainer(text, None).communication_window
        12
    """
    fields: dict[str, Any] = json.loads(text)
    name = fields.get("trainer")
    kind = trainer_class(name) if isinstance(name, str) else None
    if kind is None:
        raise ConfigError(
            f"trainer={name!r} is not a trainer. Expected the name of a class of "
            "shoal.spark, such as 'AEASGD'. Pass what `serialize` of a trainer "
            "returned."
        )
    arguments = {n: _read(value) for n, value in fields["arguments"].items()}
    made: Any = kind
    return made(keras_model=keras_model, **arguments)


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if set(fields) == {"keras"}:
            found: Any = keras.saving.deserialize_keras_object(fields["keras"])
            return found
        return {key: _read(item) for key, item in fields.items()}
    return value
