"""Trainers as JSON: the class and its arguments, without the model.

See `deserialization` for the way back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import keras

from shoal.errors import ConfigError

MODEL = "keras_model"


def to_json(name: str, arguments: Mapping[str, Any]) -> str:
    """Returns the JSON of a trainer.

    Args:
        name: Name of its class.
        arguments: Its arguments; the model is left out.

    Raises:
        ConfigError: An argument has no form in JSON.

    Example:
        >>> to_json("ADAG", {"loss": "mse", "num_workers": 2})
        '{"trainer": "ADAG", "arguments": {"loss": "mse", "num_workers": 2}}'
    """
    kept = {n: _plain(n, value) for n, value in arguments.items() if n != MODEL}
    return json.dumps({"trainer": name, "arguments": kept})


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        listed = cast("list[Any]", value)
        return [_plain(name, item) for item in listed]
    if isinstance(value, dict):
        fields = cast("dict[Any, Any]", value)
        return {str(key): _plain(name, item) for key, item in fields.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kinds = (keras.optimizers.Optimizer, keras.losses.Loss, keras.metrics.Metric)
    if isinstance(value, kinds):
        return {"keras": keras.saving.serialize_keras_object(value)}
    raise ConfigError(
        f"{name}={value!r} of a trainer has no form in JSON. Expected text, numbers, "
        "lists, or optimizers, losses and metrics of Keras. Leave it out."
    )
