"""What is read of losses, masks and weights before a run, and refused or said."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.errors import PlanError
from shoal.models.inspection import prepare
from shoal.models.losses import has_masks

layers: Any = keras.layers

ROWS = 64
rng = np.random.default_rng(0)
X = rng.standard_normal((ROWS, 4)).astype("f4")
Y = rng.random((ROWS, 1)).astype("f4")
WEIGHTS = [rng.random(ROWS).astype("f4") ** 3 for _ in range(2)]
WORDS = rng.integers(0, 20, (ROWS, 6))


def one_output(reduction: Any) -> Any:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    model.compile("sgd", keras.losses.MeanSquaredError(reduction=reduction))
    return model


def two_outputs(reduction: str) -> Any:
    inputs = keras.Input((4,))
    outputs = [layers.Dense(1, name=name)(inputs) for name in "ab"]
    model: Any = keras.Model(inputs, outputs)
    model.compile(
        "sgd", [keras.losses.MeanSquaredError(reduction=reduction) for _ in "ab"]
    )
    return model


def reader(*, mask_zero: bool, reduction: str = "sum_over_batch_size") -> Any:
    model = keras.Sequential(
        [keras.Input((6,)), layers.Embedding(20, 3, mask_zero=mask_zero)]
    )
    model.compile("sgd", keras.losses.MeanSquaredError(reduction=reduction))
    return model


@pytest.mark.parametrize("reduction", [None, "none"])
def test_a_loss_that_is_not_reduced_is_refused(
    reduction: Any,
) -> None:
    # TensorFlow takes the gradient of the sum, which grows with the batch.
    if keras.backend.backend() != "tensorflow":
        with pytest.raises((TypeError, RuntimeError), match="scalar"):
            one_output(reduction).fit(X, Y, verbose=0)
    with pytest.raises(PlanError, match="a number for each sample"):
        shoal.plan(one_output(reduction), X, Y)


class Reducing(keras.Model):
    """Reduces its loss itself, which Keras trains."""

    def compute_loss(self, *arguments: Any, **named: Any) -> Any:
        loss: Any = super().compute_loss(*arguments, **named)
        return keras.ops.mean(loss)


def test_a_loss_that_the_model_reduces_itself_trains_as_in_keras() -> None:
    def make() -> Any:
        keras.utils.set_random_seed(1)
        inputs = keras.Input((4,))
        model: Any = Reducing(inputs, layers.Dense(1)(inputs))
        model.compile("sgd", keras.losses.MeanSquaredError(reduction="none"))
        return model

    plain, ours = make(), make()
    plain.fit(X, Y, batch_size=16, shuffle=False, verbose=0)
    shoal.fit(
        ours, X, Y, batch_size=16, shuffle=False, verbose=0, workers=2,
        cluster="inline", run=False,
    )  # fmt: skip
    for mine, theirs in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_weights_of_each_output_cannot_share_one_divisor() -> None:
    own: dict[str, Any] = {"sample_weight": WEIGHTS}
    kind = "mean_with_sample_weight"
    with pytest.raises(PlanError, match="sample weights of their own"):
        shoal.plan(two_outputs(kind), X, [Y, Y], workers=2, **own)
    shared = shoal.plan(
        two_outputs(kind), X, [Y, Y], workers=2, sample_weight=WEIGHTS[0]
    )
    assert "loss shown" not in " ".join(shared.warnings)
    for fine in ({"workers": 1}, {"workers": 2, "strategy": "local_sgd"}):
        assert shoal.plan(two_outputs(kind), X, [Y, Y], **own, **fine).workers
    shoal.plan(two_outputs("sum_over_batch_size"), X, [Y, Y], workers=2, **own)


def test_one_array_of_weights_for_two_outputs_is_plain_keras() -> None:
    def make() -> Any:
        keras.utils.set_random_seed(1)
        return two_outputs("mean_with_sample_weight")

    given: dict[str, Any] = {"batch_size": 16, "shuffle": False, "verbose": 0}
    plain, ours = make(), make()
    wanted = plain.fit(X, [Y, 2 * Y], sample_weight=WEIGHTS[0], **given)
    found = shoal.fit(
        ours, X, [Y, 2 * Y], sample_weight=WEIGHTS[0], workers=3, cluster="inline",
        run=False, **given,
    )  # fmt: skip
    for mine, theirs in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
    for name, values in wanted.history.items():
        np.testing.assert_allclose(found.history[name], values, rtol=1e-4)


class Masked(keras.Model):
    """Reduces its loss itself, by an unknown divisor."""

    def compute_loss(self, *arguments: Any, **named: Any) -> Any:
        return super().compute_loss(*arguments, **named)


def test_masks_are_warned_of_where_the_divisor_of_a_loss_is_unknown() -> None:
    y = rng.random((ROWS, 6, 3)).astype("f4")

    def warnings(model: Any, **arguments: Any) -> str:
        return " ".join(shoal.plan(model, WORDS, y, **arguments).warnings)

    def own(reduction: str = "sum_over_batch_size") -> Any:
        inner = reader(mask_zero=True)
        model: Any = Masked(inner.inputs, inner.outputs)
        model.compile("sgd", keras.losses.MeanSquaredError(reduction=reduction))
        return model

    assert "masks entries" in warnings(own(), workers=2)
    assert "masks entries" not in warnings(own(), workers=1)
    assert "masks entries" not in warnings(own("sum"), workers=2)
    assert "masks entries" not in warnings(own(), workers=2, strategy="local_sgd")
    assert "masks entries" not in warnings(reader(mask_zero=True), workers=2)


def test_a_mask_that_a_layer_uses_up_does_not_reach_the_loss() -> None:
    model: Any = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Embedding(20, 3, mask_zero=True),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    prepare(model, (WORDS[:4], Y[:4]))
    assert not has_masks(model, WORDS[:4])
