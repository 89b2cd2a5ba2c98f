"""Every optimizer of Keras, and what wraps or changes them, on each backend.

With one worker and with `all_reduce` plain Keras is the judge: weights, and the
state that comes back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import shoal

ROWS, BATCH_SIZE = 80, 16
optimizers = keras.optimizers


class Wrapping(optimizers.Optimizer):
    """An optimizer of a user's own that hands over to another one."""

    def __init__(self, inner: Any) -> None:
        super().__init__(learning_rate=0.0)
        self.inner = inner

    def build(self, variables: Any) -> None:
        self.inner.build(variables)
        super().build(variables)

    @property
    def variables(self) -> Any:
        return [*self._variables, *self.inner.variables]

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        self.inner.apply(grads, trainable_variables)
        self._iterations.assign_add(1)


def schedule() -> Any:
    return optimizers.schedules.PolynomialDecay(0.05, 12, 0.001)


def multi(first: Any = None) -> Any:
    table = optimizers.OptimizerMap(optimizers.SGD(0.05, momentum=0.9))
    table[".*deep.*"] = first or optimizers.Adam(schedule())
    return optimizers.MultiOptimizer(table)


def chosen() -> Any:
    """The map is a function, and one optimizer is given nothing."""
    adam, sgd = optimizers.AdamW(0.02), optimizers.SGD(0.05)
    return optimizers.MultiOptimizer(lambda v: adam if "deep" in v.path else sgd)


def named(name: str) -> Callable[[], Any]:
    return lambda: getattr(optimizers, name)(0.02)


WRAPPERS = ("Optimizer", "LossScaleOptimizer", "MultiOptimizer", "OptimizerMap")
KINDS: dict[str, Callable[[], Any]] = {
    name: named(name)
    for name, kind in sorted(vars(optimizers).items())
    if isinstance(kind, type)
    and issubclass(kind, optimizers.Optimizer)
    and name not in WRAPPERS
}
SGD, Adam = optimizers.SGD, optimizers.Adam
KINDS |= {
    "momentum": lambda: SGD(0.05, momentum=0.9, nesterov=True),
    "amsgrad": lambda: Adam(0.02, amsgrad=True),
    "centered": lambda: optimizers.RMSprop(0.01, centered=True, momentum=0.5),
    "ema": lambda: SGD(0.05, use_ema=True, ema_momentum=0.8),
    "ema overwrites": lambda: Adam(
        0.02, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
    ),
    "accumulation": lambda: Adam(0.02, gradient_accumulation_steps=2),
    "accumulation and schedule": lambda: SGD(
        schedule(), momentum=0.9, gradient_accumulation_steps=2
    ),
    "clipnorm": lambda: SGD(0.1, clipnorm=0.1),
    "global_clipnorm": lambda: SGD(0.1, global_clipnorm=0.1),
    "clipvalue": lambda: SGD(0.1, clipvalue=0.05),
    "weight_decay": lambda: SGD(0.05, weight_decay=0.1),
    "rate is a function": lambda: SGD(lambda: 0.05),
    "schedule": lambda: Adam(schedule()),
    "loss scale": lambda: optimizers.LossScaleOptimizer(
        SGD(schedule(), momentum=0.9), dynamic_growth_steps=2
    ),
    "wrapped": lambda: Wrapping(SGD(schedule(), momentum=0.9)),
    "multi": multi,
    "multi by function": chosen,
    "multi with ema": lambda: multi(SGD(0.05, use_ema=True, ema_momentum=0.8)),
    "multi of several accumulations": lambda: multi(
        Adam(0.02, gradient_accumulation_steps=2)
    ),
    "loss scale of multi": lambda: optimizers.LossScaleOptimizer(
        multi(), dynamic_growth_steps=2
    ),
}
OFTEN = ("Adam", "rate is a function", "loss scale", "wrapped", "multi", "ema")
"""Kinds that stand for the others where time is short."""
ALL = [
    pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.slow])
    for name in KINDS
]


def make(name: str) -> Any:
    keras.utils.set_random_seed(3)
    layers = keras.layers
    deep = layers.Dense(6, "tanh", name="deep")
    model = keras.Sequential([keras.Input((4,)), deep, layers.Dense(1, name="head")])
    model.compile(KINDS[name](), "mse")
    return model


def fit(model: Any, **given: Any) -> Any:
    x = np.random.default_rng(1).standard_normal((ROWS, 4)).astype("f4")
    usual: dict[str, Any] = {
        "batch_size": BATCH_SIZE, "epochs": 2, "shuffle": False, "verbose": 0
    }  # fmt: skip
    y = x.sum(1, keepdims=True)
    if "strategy" not in given:
        # Built within TensorFlow's compiled step, ScheduleFreeAdamW starts from zeros.
        model.optimizer.build(model.trainable_variables)
        return model.fit(x, y, **usual)
    usual |= {"cluster": "inline", "run": False, "seed": 1}
    return shoal.fit(model, x, y, **{**usual, **given})


def values(variables: Any) -> list[Any]:
    return [np.array(keras.ops.convert_to_numpy(v.value)) for v in variables]


@pytest.mark.parametrize("name", ALL)
def test_one_worker_and_all_reduce_are_plain_keras(name: str) -> None:
    plain = make(name)
    kept = fit(plain)
    for given in (
        {"strategy": "single", "workers": 1},
        {"strategy": "all_reduce", "workers": 2},
    ):
        ours = make(name)
        found = fit(ours, **given)
        pairs = zip(
            values([*ours.variables, *ours.optimizer.variables]),
            values([*plain.variables, *plain.optimizer.variables]),
            strict=True,
        )
        for mine, theirs in pairs:
            np.testing.assert_allclose(
                mine, theirs, rtol=2e-3, atol=2e-5, err_msg=str(given)
            )
        loss, wanted = found.history["loss"], kept.history["loss"]
        np.testing.assert_allclose(loss, wanted, rtol=1e-3)


@pytest.mark.parametrize("name", ALL)
def test_exchanged_weights_are_trained(name: str) -> None:
    plain, ours = make(name), make(name)
    fit(plain)
    history = fit(ours, strategy="aeasgd:period=2", workers=2).history
    assert np.isfinite(history["loss"]).all()
    pairs = zip(ours.optimizer.variables, plain.optimizer.variables, strict=True)
    for mine, theirs in pairs:
        found, wanted = values([mine, theirs])
        if mine.path.endswith("iteration"):
            assert found == wanted  # steps of the run, as plain Keras counts them
        elif wanted.any():
            assert found.any(), mine.path
