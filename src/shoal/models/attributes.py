"""Plain attributes of a model's parts, which a callback may set without a variable.

This file decides which attributes count: numbers, booleans, strings and None, of the
model, its layers, its losses and its optimizer, except for Keras' private ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from shoal.optimizers import counted, optimizers_of

Plain: TypeAlias = bool | int | float | str | None
PLAIN = (bool, int, float, str, type(None))
OF_KERAS = frozenset(
    {
        "stop_training", "stop_evaluating", "stop_predicting",
        "train_function", "test_function", "predict_function",
        "built", "compiled", "steps_per_execution",
    }
)  # fmt: skip
"""Attributes that Keras sets while a model trains, is evaluated or predicts."""

TRAINABLE = "_trainable"


def plain_attributes(model: Any) -> dict[str, Plain]:
    """Returns the plain attributes of a model's parts, by path.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5)])
        >>> plain_attributes(model)["layer 2/rate"]
        0.5
    """
    found: dict[str, Plain] = {}
    for path, part in _parts(model):
        for name, value in list(vars(part).items()):
            if isinstance(value, PLAIN) and _counts(name):
                found[f"{path}/{name}"] = value
    return found


def packed(value: Plain) -> npt.NDArray[np.uint8]:
    """Returns an attribute's value as bytes."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def write_attributes(model: Any, values: Mapping[str, npt.NDArray[Any]]) -> None:
    """Sets attributes to values that `packed` made; missing ones are ignored."""
    parts = dict(_parts(model))
    for path, value in values.items():
        place, _, name = path.rpartition("/")
        if place in parts:
            setattr(parts[place], name, json.loads(value.tobytes()))


def called(model: Any, path: str) -> str:
    """Returns an attribute in the user's notation."""
    place, _, name = path.rpartition("/")
    part = dict(_parts(model)).get(place)
    owner = place
    if place.startswith("layer "):
        owner = f"{type(part).__name__} {getattr(part, 'name', '')!r}"
    elif place != "model":
        owner = f"the {place.partition(' ')[0]}"
    name = "trainable" if name == TRAINABLE else name
    return f"{name!r} of {owner}"


def _counts(name: str) -> bool:
    is_private = name.startswith("_") and name != TRAINABLE
    return not is_private and name not in OF_KERAS


def _parts(model: Any) -> Iterator[tuple[str, Any]]:
    for number, layer in enumerate(model._flatten_layers()):
        yield ("model" if layer is model else f"layer {number}"), layer
    for number, optimizer in enumerate(optimizers_of(model)):
        yield f"optimizer {number}" if number else "optimizer", counted(optimizer)
    loss = getattr(getattr(model, "_compile_loss", None), "_user_loss", None)
    losses = loss if isinstance(loss, (list, tuple)) else [loss]
    for number, one in enumerate(losses):
        if hasattr(one, "__dict__"):
            yield f"loss {number}", one
