"""Models that must survive the way to another process, each with one batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

# Keras says None where it means anything.
layers: Any = keras.layers
ops: Any = keras.ops
optimizers: Any = keras.optimizers

Case = tuple[Any, Any, Any]
CASES: dict[str, Callable[[], Case]] = {}
ROWS = 8


def case(build: Callable[[], Case]) -> Callable[[], Case]:
    """Enters a function that builds a model and a batch."""
    CASES[build.__name__] = build
    return build


def batch(inputs: int = 4, outputs: int = 1) -> tuple[Any, Any]:
    """Returns x and y, always the same."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(ROWS, inputs)).astype("float32")
    return x, rng.normal(size=(ROWS, outputs)).astype("float32")


def finish(model: Any, optimizer: Any = "adam", loss: Any = "mse", **more: Any) -> Case:
    """Compiles a model of 4 inputs and 1 output."""
    model.compile(optimizer, loss, **more)
    return (model, *batch())


def small(*between: Any) -> Any:
    """Returns 4 -> 3 -> 1 with something in between."""
    return keras.Sequential(
        [keras.Input((4,)), layers.Dense(3, "tanh"), *between, layers.Dense(1)]
    )


class Plain(keras.layers.Layer):
    """A layer without get_config whose argument is no plain value."""

    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.scale = scale

    def build(self, input_shape: Any) -> None:
        self.gain = self.add_weight(shape=(input_shape[-1],), initializer="ones")

    def call(self, x: Any) -> Any:
        return keras.ops.multiply(x * self.gain, self.scale)


class Told(keras.layers.Layer):
    """A layer with get_config, a regularizer of its own and add_loss."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(
            shape=(input_shape[-1], self.units), regularizer=keras.regularizers.L2(0.01)
        )

    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * ops.mean(ops.square(x)))
        return x @ self.kernel

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


class Stepper(keras.Model):
    """A functional model with its own train_step."""

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        self.touched = True
        return super().train_step(*args, **kwargs)


class Subclass(keras.Model):
    """A subclassed model that keeps parts in lists and dicts."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.blocks = [make(), make()]
        self.heads: dict[str, Any] = {"out": layers.Dense(1), "unused": {1, 2}}
        self.noise = layers.Dropout(0.5)
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, x: Any, training: bool = False) -> Any:
        for block in self.blocks:
            x = self.noise(block(x), training=training)
        self.seen.update_state(x)
        return self.heads["out"](x)


class OwnCompile(keras.Model):
    """A model whose compile takes an argument of its own."""

    def compile(self, *args: Any, weight: float = 1.0, **kwargs: Any) -> None:
        super().compile(*args, **kwargs)
        self.weight = weight

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return self.weight * super().compute_loss(*args, **kwargs)


class OwnMetric(keras.metrics.Metric):
    """A metric of the user's."""

    def __init__(self, name: str = "own") -> None:
        super().__init__(name=name)
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        del y, sample_weight
        self.total.assign_add(ops.sum(p))

    def result(self) -> Any:
        return self.total.value


@case
def mlp() -> Case:
    return finish(small(layers.BatchNormalization()), metrics=["mae"])


@case
def trained_before() -> Case:
    model, x, y = finish(small(layers.Dropout(0.5)))
    for _ in range(3):
        model.train_on_batch(x, y)
    model.optimizer.learning_rate = 0.25
    return model, x, y


@case
def lambda_layer() -> Case:
    factor = np.float32(3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return finish(small(layers.Lambda(lambda x: ops.sin(x) * factor)))


@case
def own_activation() -> Case:
    def act(x: Any) -> Any:
        return ops.tanh(x) + x

    return finish(small(layers.Dense(2, activation=act)))


@case
def layer_without_config() -> Case:
    return finish(small(Plain(np.full(3, 2.0, "float32"))))


@case
def layer_with_config_and_add_loss() -> Case:
    return finish(small(Told(3)))


@case
def subclass_without_config() -> Case:
    model = Subclass(lambda: layers.Dense(3, "relu"))
    x, _ = batch()
    model(x)
    return finish(model)


@case
def own_train_step() -> Case:
    inputs = keras.Input((4,))
    return finish(Stepper(inputs, layers.Dense(1)(inputs)))


@case
def own_compile() -> Case:
    inputs = keras.Input((4,))
    return finish(OwnCompile(inputs, layers.Dense(1)(inputs)), weight=2.5)


@case
def notebook_cell() -> Case:
    cell = """
import keras
BIAS = 2.0
class Cell(keras.layers.Layer):
    def call(self, x):
        return x + BIAS
def cell_loss(y, p):
    return keras.ops.mean(keras.ops.abs(y - p)) * BIAS
"""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(cell, space)
    return finish(small(space["Cell"]()), loss=space["cell_loss"])


@case
def closure_loss_that_holds_a_layer() -> Case:
    model = small()
    first = model.layers[0]

    def loss(y: Any, p: Any) -> Any:
        return ops.mean(ops.square(y - p)) + 0.1 * ops.sum(ops.square(first.kernel))

    return finish(model, loss=loss, metrics=[OwnMetric(), "mae"])


@case
def loss_scale() -> Case:
    inner = optimizers.SGD(0.1, momentum=0.9)
    return finish(small(), optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=2))


@case
def use_ema() -> Case:
    return finish(small(), optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5))


@case
def accumulation() -> Case:
    model, x, y = finish(small(), optimizers.Adam(0.1, gradient_accumulation_steps=2))
    model.train_on_batch(x, y)  # half way through an accumulation
    return model, x, y


@case
def schedule() -> Case:
    rate = optimizers.schedules.CosineDecay(0.1, 10)
    return finish(small(), optimizers.SGD(rate))


@case
def frozen_backbone() -> Case:
    backbone = keras.Sequential(
        [keras.Input((4,)), layers.Dense(3), layers.BatchNormalization()]
    )
    backbone.trainable = False
    model = keras.Sequential([keras.Input((4,)), backbone, layers.Dense(1)])
    return finish(model)


@case
def frozen_by_hand() -> Case:
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    model = keras.Sequential([keras.Input((4,)), inner, layers.Dense(1)])
    inner._trainable = False  # the container only, and one variable
    model.layers[-1].bias.trainable = False
    return finish(model)


@case
def bfloat16() -> Case:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, dtype="bfloat16")])
    return finish(model, "sgd")


@case
def mixed_float16() -> Case:
    inputs = keras.Input((4,))
    outputs = layers.Dense(1, dtype="mixed_float16")(inputs)
    policy = keras.DTypePolicy("mixed_float16")
    return finish(keras.Model(inputs, outputs, dtype=policy))


@case
def regularizers() -> Case:
    return finish(
        small(
            layers.Dense(
                2,
                kernel_regularizer="l2",
                activity_regularizer=keras.regularizers.L1(0.1),
            )
        )
    )


@case
def several_inputs_and_outputs() -> Case:
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    shared = layers.Dense(3, "tanh")
    left: Any = shared(a)
    right: Any = shared(b)
    sum_ = layers.Dense(1, name="sum")(left + right)
    kind = layers.Dense(2, activation="softmax", name="kind")(left * right)
    model = keras.Model({"a": a, "b": b}, {"sum": sum_, "kind": kind})
    model.compile(
        "adam",
        loss={"sum": "mse", "kind": "sparse_categorical_crossentropy"},
        loss_weights={"sum": 0.3, "kind": 0.7},
        metrics={"kind": ["accuracy"], "sum": [keras.metrics.MeanSquaredError("sq")]},
        weighted_metrics={"kind": ["accuracy"]},
    )
    x, y = batch()
    kinds = np.arange(ROWS) % 2
    return model, {"a": x, "b": x[::-1].copy()}, {"sum": y, "kind": kinds}


@case
def normalization_with_moments() -> Case:
    x, _ = batch()
    adapted = layers.Normalization()
    adapted.adapt(x * 3 + 1)
    return finish(keras.Sequential([keras.Input((4,)), adapted, layers.Dense(1)]))


@case
def deep_graph_with_an_unusual_layer() -> Case:
    x = inputs = keras.Input((4,))
    for _ in range(60):
        x = x + layers.Identity()(x) * 0.01
    x = Plain(np.ones(4, "float32"))(x)
    return finish(keras.Model(inputs, layers.Dense(1)(x)))


@case
def recurrent() -> Case:
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Reshape((2, 2)),
            layers.Bidirectional(layers.GRU(2, recurrent_dropout=0.2)),
            layers.Dense(1),
        ]
    )
    return finish(model)


@case
def excluded_from_decay() -> Case:
    model = small()
    optimizer = optimizers.AdamW(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=[model.layers[0].kernel])
    return finish(model, optimizer)


@case
def several_optimizers() -> Case:
    model = small()
    head = model.layers[-1]
    adam, sgd = optimizers.Adam(0.1), optimizers.SGD(0.1)

    def choose(variable: Any) -> Any:
        return adam if variable.path.startswith(head.name) else sgd

    return finish(model, optimizers.MultiOptimizer(choose))


_BASE = keras.optimizers.Optimizer
OPTIMIZERS = sorted(
    name
    for name, cls in vars(optimizers).items()
    if isinstance(cls, type)
    and issubclass(cls, _BASE)
    and cls is not _BASE
    and name not in ("LossScaleOptimizer", "MultiOptimizer")  # have cases above
)
