"""A `train_step` of the user's that takes the gradient of a sum over the batch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.errors import PlanError

BACKEND = keras.backend.backend()


class Own(keras.Model):
    """A loss that is made by hand, of all rows by `reduce`."""

    reduce: Any = staticmethod(keras.ops.mean)

    def train_step(self, *given: Any) -> Any:  # pyright: ignore
        x, y = given[-1]
        if BACKEND == "jax":
            return self._stateless(*given[0], x, y)
        weights = self.trainable_weights
        if BACKEND == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = self.reduce((self(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, weights)
            self.optimizer.apply(gradients, weights)
            return {"loss": loss}
        import torch

        self.zero_grad()
        loss = self.reduce((self(x, training=True) - y) ** 2)
        loss.backward()
        gradients = [v.value.grad for v in weights]
        with torch.no_grad():
            self.optimizer.apply(gradients, weights)
        return {"loss": loss}

    def _stateless(self, weights: Any, others: Any, slots: Any, kept: Any, *data: Any):
        import jax

        def loss_of(weights: Any) -> Any:
            found, after = self.stateless_call(weights, others, data[0], training=True)
            return self.reduce((found - data[1]) ** 2), after

        compute = jax.value_and_grad(loss_of, has_aux=True)
        (loss, others), gradients = compute(weights)
        weights, slots = self.optimizer.stateless_apply(slots, gradients, weights)
        return {"loss": loss}, (weights, others, slots, kept)


class Summed(Own):
    reduce = staticmethod(keras.ops.sum)


class Compiled(Own):
    """The loss of `compile`, whatever its reduction."""

    def train_step(self, *given: Any) -> Any:  # pyright: ignore
        return super(Own, self).train_step(*given)


def make(kind: Any, *between: Any, loss: Any = "mse") -> Any:
    keras.utils.set_random_seed(2)
    inputs = keras.Input((4,))
    x = keras.layers.Dense(3)(inputs)
    for layer in between:
        x = layer(x)
    model = kind(inputs, keras.layers.Dense(1)(x))
    model.compile(keras.optimizers.SGD(0.01), loss)
    return model


def plan(model: Any, **given: Any) -> Any:
    x = np.random.default_rng(1).normal(size=(64, 4)).astype("f4")
    told: dict[str, Any] = {"batch_size": 16, "workers": 2, **given}
    return shoal.plan(model, x, x.sum(1, keepdims=True), **told)


def test_a_sum_is_refused_where_gradients_are_averaged() -> None:
    model = make(Summed)
    before = model.get_weights()
    with pytest.raises(PlanError, match=r"gradient of a sum.*Divide the loss by the"):
        plan(model)
    for ours, theirs in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    plan(model, workers=1)
    plan(model, strategy="local_sgd:period=1")


@pytest.mark.parametrize("layer", ["Dropout", "BatchNormalization", "Dense"])
def test_a_mean_is_not_refused(layer: str) -> None:
    kinds: dict[str, Any] = {"Dropout": 0.5, "BatchNormalization": -1, "Dense": 3}
    plan(make(Own, getattr(keras.layers, layer)(kinds[layer])))


@pytest.mark.parametrize("kind", [Own, Summed])
def test_a_loss_that_cannot_be_seen_is_warned_of(kind: Any) -> None:
    dropout = keras.layers.Dropout(0.5)
    text = "whether that is a mean or a sum over the batch could not be seen"
    model = make(kind, dropout)
    assert [one for one in plan(model).warnings if text in one]
    assert not [one for one in plan(model, workers=1).warnings if text in one]
    for seen in (make(Own), make(Compiled, dropout)):
        assert not [one for one in plan(seen).warnings if text in one]
    assert "compute_loss" not in model.__dict__


def test_sums_of_compile_are_weighed_as_such() -> None:
    plan(make(Compiled, loss=keras.losses.MeanSquaredError(reduction="sum")))
