"""Helpers of dist-keras that need no Spark."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from shoal.errors import ConfigError
from shoal.spark import (
    deserialize_keras_model,
    serialize_keras_model,
    to_one_hot_encoded_dense,
    uniform_weights,
)
from tests.habits.cases import data, make_model


def test_a_model_goes_through_a_dictionary():
    model = make_model()
    again = deserialize_keras_model(serialize_keras_model(model))
    x, _ = data(5)
    np.testing.assert_array_equal(*(m.predict(x, verbose=0) for m in (again, model)))


def test_weights_are_drawn_anew():
    model = uniform_weights(make_model(), [2.0, 3.0])
    flat = np.concatenate([weight.ravel() for weight in model.get_weights()])
    assert 2 <= flat.min() < flat.max() <= 3
    assert isinstance(model, keras.Model)


@pytest.mark.parametrize("value", [-1, 2, 0.5])
def test_an_index_outside_is_refused(value: float):
    with pytest.raises(ConfigError, match="is no index of a vector of n_dim=2"):
        to_one_hot_encoded_dense(value)
