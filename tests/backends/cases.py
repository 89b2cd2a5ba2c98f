"""Models that every backend must train, each with its data: what `make matrix` runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

ROWS, BATCH_SIZE = 110, 20  # a short last batch; shares of 20 over 3 are uneven
BACKEND = keras.backend.backend()


class Case(NamedTuple):
    """A compiled model and what `fit` gets beside it."""

    model: Any
    data: dict[str, Any]


def inputs() -> Any:
    return np.random.default_rng(5).standard_normal((ROWS, 6)).astype("f4")


def targets() -> Any:
    x = inputs()
    return (x[:, :1] - x[:, 1:2] * 0.5 + 0.1).astype("f4")


def finish(model: Any, rate: float = 0.02, **compiled: Any) -> Any:
    given = {"loss": "mse", "metrics": ["mae"], **compiled}
    model.compile(keras.optimizers.Adam(rate), **given)
    return model


def perceptron(*middle: Any, kind: Any = keras.Model, **compiled: Any) -> Any:
    x = start = keras.Input((6,))
    for layer in (keras.layers.Dense(8, activation="tanh"), *middle):
        x = layer(x)
    return finish(kind(start, keras.layers.Dense(1)(x)), **compiled)


def arrays() -> Case:
    return Case(perceptron(), {"x": inputs(), "y": targets()})


def sample_weights() -> Case:
    weights = np.random.default_rng(6).uniform(0.2, 3.0, ROWS).astype("f4")
    model = perceptron(weighted_metrics=["mae"])
    return Case(model, {"x": inputs(), "y": targets(), "sample_weight": weights})


def two_and_two() -> Case:
    one, other = keras.Input((3,), name="one"), keras.Input((3,), name="other")
    both = keras.layers.Concatenate()([one, other])
    both = keras.layers.Dense(8, activation="tanh")(both)
    outputs = {
        "level": keras.layers.Dense(1, name="level")(both),
        "sign": keras.layers.Dense(1, activation="sigmoid", name="sign")(both),
    }
    model = finish(
        keras.Model({"one": one, "other": other}, outputs),
        loss={"level": "mse", "sign": "binary_crossentropy"},
        loss_weights={"level": 1.0, "sign": 0.5},
        metrics={"level": ["mae"], "sign": ["accuracy"]},
    )
    x, y = inputs(), targets()
    data = {
        "x": {"one": x[:, :3], "other": x[:, 3:]},
        "y": {"level": y, "sign": (y > 0).astype("f4")},
    }
    return Case(model, data)


def batch_norm() -> Case:
    model = perceptron(keras.layers.BatchNormalization(momentum=0.8))
    return Case(model, {"x": inputs(), "y": targets()})


def own_train_step() -> Case:
    # TensorFlow's fit asks metrics for results that the step has not built.
    model = perceptron(kind=OWN_STEP[BACKEND](), metrics=None)
    return Case(model, {"x": inputs(), "y": targets()})


def mixed_precision() -> Case:
    policy = "mixed_bfloat16"
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        return Case(perceptron(), {"x": inputs(), "y": targets()})
    finally:
        keras.config.set_dtype_policy(before)


class Scaled(keras.layers.Layer):
    """A custom layer with a weight, and a loss of its own."""

    def build(self, input_shape: Any) -> None:
        self.gain = self.add_weight(shape=(input_shape[-1],), initializer="ones")

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(self.gain)))
        return x * self.gain


def custom_layer() -> Case:
    return Case(perceptron(Scaled()), {"x": inputs(), "y": targets()})


def _of_jax() -> Any:
    import jax

    class Halved(keras.Model):
        """Learns from half its loss."""

        def train_step(self, state: Any, data: Any) -> Any:  # pyright: ignore
            trainable, others, slots, metrics = state
            x, y = data

            def loss_of(trainable: Any) -> Any:
                found, after = self.stateless_call(trainable, others, x, training=True)
                return 0.5 * keras.ops.mean((found - y) ** 2), after

            compute = jax.value_and_grad(loss_of, has_aux=True)
            (loss, others), gradients = compute(trainable)
            optimizer: Any = self.optimizer
            trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
            return {"loss": loss}, (trainable, others, slots, metrics)

    return Halved


def _of_tensorflow() -> Any:
    import tensorflow as tf

    class Halved(keras.Model):
        """Learns from half its loss."""

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = 0.5 * keras.ops.mean((self(x, training=True) - y) ** 2)
            weights = self.trainable_variables
            gradients = tape.gradient(loss, [w.value for w in weights])
            self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
            return {"loss": loss}

    return Halved


def _of_torch() -> Any:
    import torch

    class Halved(keras.Model):
        """Learns from half its loss."""

        def train_step(self, data: Any) -> Any:
            x, y = data
            self.zero_grad()
            loss = 0.5 * keras.ops.mean((self(x, training=True) - y) ** 2)
            loss.backward()
            weights = list(self.trainable_variables)
            with torch.no_grad():
                self.optimizer.apply([w.value.grad for w in weights], weights)
            return {"loss": loss}

    return Halved


OWN_STEP: dict[str, Callable[[], Any]] = {
    "jax": _of_jax,
    "tensorflow": _of_tensorflow,
    "torch": _of_torch,
}
CASES: dict[str, Callable[[], Case]] = {
    made.__name__: made
    for made in (
        arrays,
        sample_weights,
        two_and_two,
        batch_norm,
        own_train_step,
        mixed_precision,
        custom_layer,
    )
}


def make(name: str) -> Case:
    """The case, always with the same weights."""
    keras.utils.set_random_seed(4)
    return CASES[name]()
