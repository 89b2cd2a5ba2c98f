"""What a train_step of the user's logs beyond metrics, from the trace to history."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import pytest

import shoal
from shoal.models.inspection import prepare
from shoal.models.step_logs import StepLogs
from shoal.models.trial import try_step

ROWS = 100
rng = np.random.default_rng(0)
X = rng.standard_normal((ROWS, 4)).astype("f4")
Y = rng.random((ROWS, 1)).astype("f4")


class Logging(keras.Model):
    """Logs twice its loss, the rows of a step, and an array."""

    def train_step(self, state: Any, data: Any) -> Any:  # pyright: ignore
        logs, state = super().train_step(state, data)  # pyright: ignore
        x, y = data
        loss = keras.ops.mean((y - self.stateless_call(*state[:2], x)[0]) ** 2)
        return {**logs, "twice": 2 * loss, "rows": len(x), "all": x[0]}, state


class OwnLoss(keras.Model):
    """As in Keras' guide: the loss is logged, and no metric knows of it."""

    def train_step(self, state: Any, data: Any) -> Any:  # pyright: ignore
        trainable, others, slots, metrics = state
        x, y = data

        def loss_of(trainable: Any) -> Any:
            found, after = self.stateless_call(trainable, others, x, training=True)
            return 3 * keras.ops.mean((found - y) ** 2), after

        compute = jax.value_and_grad(loss_of, has_aux=True)
        (loss, others), gradients = compute(trainable)
        optimizer: Any = self.optimizer
        trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
        return {"loss": loss}, (trainable, others, slots, metrics)


class Broken(keras.Model):
    def train_step(self, state: Any, data: Any) -> Any:  # pyright: ignore
        raise RuntimeError


def make(kind: Any = Logging, rate: float = 0.0) -> Any:
    keras.utils.set_random_seed(2)
    inputs = keras.Input((4,))
    model = kind(inputs, keras.layers.Dense(1)(inputs))
    model.compile(keras.optimizers.SGD(rate), "mse", metrics=["mae"])
    return model


def test_logs_beyond_metrics_are_found_without_computing() -> None:
    for kind, names in (
        (Logging, StepLogs(("rows", "twice"), ("all",))),
        (keras.Model, StepLogs()),
        (OwnLoss, StepLogs(("loss",))),
        (Broken, StepLogs()),
    ):
        model = make(kind)
        prepare(model, (X[:4], Y[:4]))
        before = jax.tree.map(np.asarray, [v.value for v in model.variables])
        assert try_step(model, (X[:4], Y[:4])).logs == names
        for old, variable in zip(before, model.variables, strict=True):
            np.testing.assert_array_equal(old, variable.numpy())


def test_plan_names_them() -> None:
    plan = shoal.plan(make(), X, Y, workers=2)
    assert "rows, twice, which train_step logs" in plan.explain()
    assert any(w.startswith("all, which train_step") for w in plan.warnings)


@pytest.mark.parametrize(
    ("strategy", "workers"),
    [("local_sgd", 1), ("local_sgd", 2), ("aeasgd", 2), ("all_reduce", 3)],
)
def test_history_has_their_mean_over_samples(strategy: str, workers: int) -> None:
    """Weights stand still, so that the mean is known; the last batch is short."""
    history = shoal.fit(
        make(), X, Y, batch_size=16, epochs=2, strategy=strategy, workers=workers,
        cluster="inline", run=False, verbose=0,
    ).history  # fmt: skip
    assert sorted(history) == ["loss", "mae", "rows", "twice"]
    for loss, twice in zip(history["loss"], history["twice"], strict=True):
        assert twice == pytest.approx(2 * loss, rel=1e-5)
    if strategy == "local_sgd" and workers == 1:
        assert history["rows"][0] == pytest.approx((96 * 16 + 4 * 4) / 100)


@pytest.mark.parametrize("strategy", ["all_reduce", "aeasgd"])
def test_a_loss_outside_of_all_metrics_is_shown(strategy: str) -> None:
    """It was always 0 before: no code updates the state of that metric."""
    history = shoal.fit(
        make(OwnLoss), X, Y, batch_size=16, epochs=2, strategy=strategy, workers=2,
        cluster="inline", run=False, verbose=0,
    ).history  # fmt: skip
    model = make()
    expected = 3 * model.evaluate(X, Y, verbose=0, return_dict=True)["loss"]
    assert history["loss"] == pytest.approx([expected, expected], rel=1e-5)


@pytest.mark.process
def test_a_callback_and_the_best_model_go_by_them(kept: shoal.Session) -> None:
    # Weights stand still, and a mean over workers differs in its last digit.
    stop = keras.callbacks.EarlyStopping(
        monitor="twice", mode="min", baseline=0.0, min_delta=0.01
    )
    history = kept.fit(
        make(), X, Y, batch_size=16, epochs=5, strategy="local_sgd", workers=2,
        callbacks=[stop], monitor="twice:min", run=False, verbose=0,
    )  # fmt: skip
    assert len(history.history["twice"]) == 2  # Keras looks from the second on
