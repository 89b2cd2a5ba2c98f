"""The work of models, counted from their layers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from shoal.facts import Multiplications
from shoal.models.multiplications import multiplications_of

layers: Any = keras.layers


def sequential(*parts: Any) -> Any:
    return keras.Sequential(list(parts))


def of(model: Any, shape: tuple[int, ...]) -> Multiplications:
    return multiplications_of(model, np.zeros((4, *shape), "f4"))


def test_dense_layers_count_at_each_position():
    model = sequential(keras.Input((7,)), layers.Dense(5), layers.Dense(3))
    assert of(model, (7,)) == Multiplications(dense=7 * 5 + 5 * 3)
    model = sequential(keras.Input((11, 7)), layers.Dense(5))
    assert of(model, (11, 7)) == Multiplications(dense=11 * 7 * 5)


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_convolutions_count_at_each_position_of_their_output(padding: str):
    model = sequential(
        keras.Input((8, 8, 3)),
        layers.Conv2D(4, 3, padding=padding, data_format="channels_last"),
        layers.BatchNormalization(),
    )
    side = {"same": 8, "valid": 6}[padding]
    assert of(model, (8, 8, 3)) == Multiplications(convolved=side**2 * 3 * 3 * 3 * 4)


def test_recurrent_cells_count_at_each_time():
    model = sequential(
        keras.Input((10,)), layers.Embedding(50, 6), layers.LSTM(4), layers.Dense(2)
    )
    cell = 6 * 16 + 4 * 16
    expected = Multiplications(dense=8, recurrent=10 * cell)
    assert multiplications_of(model, np.zeros((4, 10), "i4")) == expected
    both = sequential(keras.Input((10, 6)), layers.Bidirectional(layers.LSTM(4)))
    assert of(both, (10, 6)) == Multiplications(recurrent=2 * 10 * cell)


def test_attention_counts_its_products_at_each_position():
    given = keras.Input((10, 6))
    attention = layers.MultiHeadAttention(num_heads=2, key_dim=3)
    model = keras.Model(given, attention(given, given))
    assert of(model, (10, 6)) == Multiplications(dense=10 * 4 * 6 * 6)


def test_shared_and_nested_layers():
    dense = layers.Dense(7)
    inner = sequential(keras.Input((7,)), dense)
    model = sequential(keras.Input((7,)), inner, layers.Dense(1))
    assert of(model, (7,)) == Multiplications(dense=49 + 7)


def test_a_subclassed_model_has_no_graph():
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = layers.Conv2D(4, 3, data_format="channels_last")
            self.head = layers.Dense(2)

        def call(self, x: Any) -> Any:
            return self.head(keras.ops.mean(self.convolution(x), axis=(1, 2)))

    model = Own()
    model(np.zeros((1, 8, 8, 3), "f4"))
    expected = Multiplications(dense=8, convolved=64 * 3 * 3 * 3 * 4)
    assert of(model, (8, 8, 3)) == expected
    object.__setattr__(model.head, "_layers", [model])  # a layer that knows its model
    assert of(model, (8, 8, 3)) == expected
