"""The kind of a loss, found by a trial; training equals that of Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import shoal
from shoal.errors import PlanError
from shoal.models.inspection import prepare
from shoal.models.loss_kinds import LossKinds, read_losses

NAME = keras.backend.backend()
layers: Any = keras.layers
L: Any = keras.losses
ROWS, BATCH = 27, 8  # shares of 4 and 4, of 3, 3 and 2; a last batch of 3
rng = np.random.default_rng(4)
X = rng.standard_normal((ROWS, 4)).astype("f4")
Y = (X.sum(1, keepdims=True) > 0).astype("f4")


def summed(t: Any, p: Any) -> Any:
    return ops.sum(ops.square(t - p))


def averaged(t: Any, p: Any) -> Any:
    return ops.mean(ops.square(t - p))


def rooted(t: Any, p: Any) -> Any:
    return ops.sqrt(ops.mean(ops.square(t - p)))


def dice(t: Any, p: Any) -> Any:
    return 1 - (2 * ops.sum(t * p) + 1) / (ops.sum(t) + ops.sum(p) + 1)


def by_row(t: Any, p: Any) -> Any:
    return ops.sum(ops.square(t - p), axis=-1)


class Adding(layers.Layer):
    """Adds a loss of what passes through it."""

    def __init__(self, reduce: Callable[[Any], Any], **named: Any) -> None:
        super().__init__(**named)
        self.reduce, self.supports_masking = reduce, True

    def call(self, x: Any) -> Any:
        self.add_loss(1e-2 * self.reduce(ops.square(x)))
        return x


def net(loss: Any, *middle: Any, **named: Any) -> Any:
    keras.utils.set_random_seed(3)
    hidden = layers.Dense(
        6, "tanh", kernel_regularizer=keras.regularizers.L2(0.03), **named
    )
    model: Any = keras.Sequential(
        [keras.Input((4,)), hidden, *middle, layers.Dense(1, "sigmoid")]
    )
    model.compile(keras.optimizers.SGD(0.05), loss)
    return model


def kinds(model: Any, x: Any = X, y: Any = Y) -> LossKinds:
    sample = x[:4], y[:4]
    prepare(model, sample)
    before = [v.numpy() for v in model.variables]
    found = read_losses(model, sample)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    return found


SUM, MEAN = ("sum",), ("sum_over_batch_size",)


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [
        ("mse", LossKinds(MEAN)),
        (by_row, LossKinds(MEAN)),
        (summed, LossKinds(SUM)),
        (averaged, LossKinds(MEAN)),
        (rooted, LossKinds(MEAN, odd=("of rooted",))),
        (dice, LossKinds(MEAN, odd=("of dice",))),
        (L.Dice(), LossKinds(MEAN, odd=("of dice",))),
        (L.MeanSquaredError(reduction="sum"), LossKinds(SUM)),
    ],
)
def test_the_kind_of_each_loss_is_found(loss: Any, wanted: LossKinds) -> None:
    assert kinds(net(loss)) == wanted


@pytest.mark.parametrize(
    ("reduce", "wanted"),
    [
        (ops.sum, LossKinds(MEAN, (0,))),
        (ops.mean, LossKinds(MEAN)),
        (lambda x: ops.sqrt(ops.sum(x)), LossKinds(MEAN, (), ("that layers add",))),
    ],
)
def test_the_kind_of_added_losses_is_found(reduce: Any, wanted: LossKinds) -> None:
    assert kinds(net("mse", Adding(reduce))) == wanted


def test_an_activity_regularizer_adds_a_mean() -> None:
    named = {"activity_regularizer": keras.regularizers.L1(0.1)}
    assert kinds(net("mse", Adding(ops.sum), **named)) == LossKinds(MEAN, (1,))


# -------------------------------------------------------------- as plain Keras


def judged(make: Callable[[], Any], workers: int, *data: Any, **given: Any) -> Any:
    """Trains as Keras does, and on workers; compares weights, and what is shown."""
    given = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0, **given}
    plain, ours = make(), make()
    wanted = plain.fit(*data, **given)
    found = shoal.fit(
        ours, *data, workers=workers, cluster="inline", run=False, **given
    )
    for mine, theirs in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
    for name in wanted.history:
        # In graphs of TensorFlow, Keras' loss of each output weighs batches as equals.
        if name == "loss" or (name.endswith("loss") and NAME != "tensorflow"):
            shown, value = found.history[name], wanted.history[name]
            np.testing.assert_allclose(shown, value, rtol=1e-4)


@pytest.mark.parametrize(
    ("loss", "workers"), [(summed, 3), (L.MeanSquaredError(reduction="sum"), 2)]
)
def test_a_sum_over_the_batch(loss: Any, workers: int) -> None:
    named = {"activity_regularizer": keras.regularizers.L1(0.01)}
    judged(lambda: net(loss, **named), workers, X, Y)


@pytest.mark.parametrize(("loss", "workers"), [("mse", 3), (summed, 2)])
def test_a_sum_that_a_layer_adds(loss: Any, workers: int) -> None:
    named = {"activity_regularizer": keras.regularizers.L1(0.01)}
    judged(lambda: net(loss, Adding(ops.mean), Adding(ops.sum), **named), workers, X, Y)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_loss_of_added_losses_alone() -> None:
    judged(lambda: net(None, Adding(ops.sum)), 2, X)


def two_heads(a: Any, b: Any) -> Any:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((4,))
    outputs = {n: layers.Dense(1, name=n)(inputs) for n in "ab"}
    model: Any = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.SGD(0.02), {"a": a, "b": b}, loss_weights={"a": 2.0, "b": 0.5}
    )
    return model


def test_sums_of_two_outputs_and_what_is_shown_of_each() -> None:
    loss = L.MeanAbsoluteError(reduction="sum")
    judged(lambda: two_heads(summed, loss), 3, X, {"a": Y, "b": 2 * Y})


def test_a_sum_beside_a_mean_is_refused() -> None:
    with pytest.raises(PlanError, match="reduced in different ways: sum, sum_over"):
        shoal.plan(two_heads(summed, "mse"), X, {"a": Y, "b": Y}, workers=2)


@pytest.mark.parametrize("loss", [dice, rooted])
def test_a_loss_that_is_neither_sum_nor_mean_is_reported(loss: Any) -> None:
    def said(**given: Any) -> str:
        return " ".join(shoal.plan(net(loss), X, Y, **given).warnings)

    assert "one number for a whole batch" in said(workers=2)
    assert "one number for a whole batch" not in said(workers=1)
    assert "one number" not in said(workers=2, strategy="local_sgd")
    with pytest.warns(shoal.errors.ShoalWarning, match="one number for a whole"):
        shoal.fit(net(loss), X, Y, workers=2, cluster="inline", run=False, verbose=0)


class Own(keras.Model):
    """Has a loss of its own."""

    def compute_loss(self, *given: Any, **named: Any) -> Any:
        loss: Any = super().compute_loss(*given, **named)
        return ops.sqrt(loss)


def test_a_compute_loss_that_is_neither_sum_nor_mean_is_reported() -> None:
    inputs = keras.Input((4,))
    model: Any = Own(inputs, layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    assert "of compute_loss" in " ".join(shoal.plan(model, X, Y, workers=2).warnings)


# ----------------------------------------------------------------------- masks

STEPS = 6
LENGTHS = np.where(np.arange(ROWS) % BATCH < 4, 1, STEPS)
WORDS = rng.integers(1, 20, (ROWS, STEPS))
WORDS[np.arange(STEPS)[None] >= LENGTHS[:, None]] = 0
TAGS = (WORDS % 3).astype("i4")
OF_STEPS = rng.random((ROWS, STEPS)).astype("f4")
OF_ROWS = rng.random((ROWS, 1)).astype("f4")


def tagger(reduction: str = "sum_over_batch_size", *extra: Any, heads: int = 1) -> Any:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((STEPS,), dtype="int32")
    x = layers.Embedding(20, 4, mask_zero=True)(inputs)
    x = layers.GRU(5, return_sequences=True)(x)
    for layer in extra:
        x = layer(x)
    outputs = [layers.Dense(3, "softmax", name=n)(x) for n in "ab"[:heads]]
    model: Any = keras.Model(inputs, outputs if heads > 1 else outputs[0])
    loss = [L.SparseCategoricalCrossentropy(reduction=reduction) for _ in outputs]
    model.compile(
        keras.optimizers.SGD(0.5 if reduction != "sum" else 0.02),
        loss if heads > 1 else loss[0],
    )
    return model


@pytest.mark.parametrize(
    ("reduction", "weights", "workers"),
    [
        ("sum_over_batch_size", None, 2),
        ("sum_over_batch_size", OF_STEPS, 3),
        ("mean_with_sample_weight", OF_STEPS, 2),
        pytest.param("mean_with_sample_weight", OF_ROWS, 3, marks=pytest.mark.slow),
        pytest.param("mean_with_sample_weight", None, 3, marks=pytest.mark.slow),
        pytest.param("sum", OF_ROWS, 2, marks=pytest.mark.slow),
    ],
)
def test_masks_weigh_by_the_steps_they_keep(
    reduction: str, weights: Any, workers: int
) -> None:
    """Halves of a batch hold one and six steps a row."""
    if NAME == "torch" and weights is OF_ROWS:
        pytest.skip("Keras itself cannot multiply such weights by a mask, in place")
    judged(lambda: tagger(reduction), workers, WORDS, TAGS, sample_weight=weights)


def test_two_outputs_with_one_mask() -> None:
    model = tagger(heads=2)
    assert kinds(model, WORDS, [TAGS[:4], TAGS[:4]]).masks == 1
    judged(lambda: tagger(heads=2), 2, WORDS, [TAGS, TAGS[:, ::-1]])


def test_a_mask_of_the_inputs_themselves() -> None:
    """No layer makes it with weights: `Masking` looks at the numbers."""

    def make() -> Any:
        keras.utils.set_random_seed(3)
        model: Any = keras.Sequential(
            [
                keras.Input((STEPS, 2)), layers.Masking(),
                layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
                layers.Dropout(0.0), layers.Dense(1),
            ]
        )  # fmt: skip
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    x = np.stack([WORDS, 2 * WORDS], axis=-1).astype("f4") / 20
    judged(make, 2, x, TAGS[..., None].astype("f4"))


def test_masks_that_differ_are_refused_with_the_way_out() -> None:
    inputs = keras.Input((STEPS,), dtype="int32")
    x = layers.Embedding(20, 4, mask_zero=True)(inputs)
    whole = layers.Dense(1, name="whole")(layers.GlobalAveragePooling1D()(x))
    model: Any = keras.Model(
        inputs, [layers.Dense(3, "softmax", name="each")(x), whole]
    )
    model.compile("sgd", ["sparse_categorical_crossentropy", "mse"])
    with pytest.raises(PlanError, match="2 different masks") as caught:
        shoal.plan(model, WORDS, [TAGS, Y], workers=2)
    assert "local_sgd" in str(caught.value)
    for fine in ({"workers": 1}, {"workers": 2, "strategy": "local_sgd"}):
        assert shoal.plan(model, WORDS, [TAGS, Y], **fine).workers


def test_a_sum_that_a_layer_adds_beside_masks_is_refused() -> None:
    model = tagger(*MEAN, Adding(ops.sum))
    with pytest.raises(PlanError, match="adds a loss that is a sum"):
        shoal.plan(model, WORDS, TAGS, workers=2)
    judged(lambda: tagger("sum", Adding(ops.sum)), 2, WORDS, TAGS)
