"""Values of wrong kinds: each argument of `fit` refuses them with a sentence."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.errors import ShoalError

DATA = {"model", "x", "y", "callbacks", "custom_objects", "run"}
"""These take many kinds of values."""
NAMES = [name for name in inspect.signature(shoal.fit).parameters if name not in DATA]
WRONG = [
    "3", "nonsense", -1, 1.5, None, [], {}, object(), float("nan"), np.array([1, 2]),
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_an_argument_of_a_wrong_kind_is_refused_or_read(name: str) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.zeros((64, 4), "f4"), np.zeros((64, 1), "f4")
    refused = 0
    for value in WRONG:
        given: dict[str, Any] = {"cluster": "inline", name: value}
        try:
            shoal.plan(model, x, y, **given)
        except ShoalError:
            refused += 1
    assert refused


@pytest.mark.parametrize("name", ["epochs", "initial_epoch", "max_restarts", "standby"])
@pytest.mark.parametrize("value", [None, "3", 1.5, [2], True, -1])
def test_numbers_that_must_be_given_are_whole(name: str, value: Any) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.zeros((64, 4), "f4"), np.zeros((64, 1), "f4")
    given: dict[str, Any] = {name: value}
    with pytest.raises(shoal.errors.ConfigError, match=f"{name}=.*whole number"):
        shoal.plan(model, x, y, **given)


def test_an_array_in_the_place_of_an_option() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.zeros((64, 4), "f4"), np.zeros((64, 1), "f4")
    given: dict[str, Any] = {"validation_split": (x, y)[0]}
    with pytest.raises(shoal.errors.ConfigError, match="validation_split is an array"):
        shoal.fit(model, x, y, **given)
