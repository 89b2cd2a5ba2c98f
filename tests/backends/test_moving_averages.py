"""Moving averages that are estimated anew, with NumPy and Keras as the judges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as draw

import shoal
from shoal.data import ArraySource, open_files
from shoal.runs.events import read_events
from shoal.runs.folder import Folder
from shoal.training import moving_averages
from shoal.training.moving_averages import MovingAverages, read_batches
from tests.habits.cases import assert_close

ROWS, BATCH = 96, 16
layers = keras.layers


def rows(count: int = ROWS) -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(3, 2, (count, 4)).astype("float32")
    return x, (x.sum(axis=1, keepdims=True) > 12).astype("float32")


def normed(**options: Any) -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(6, "relu"),
            layers.BatchNormalization(momentum=0.9, **options),
            layers.Dropout(0.5, seed=3),
            layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)
    return model


def averages_of(model: Any) -> list[Any]:
    norm = model.layers[1]
    return [np.array(v.numpy()) for v in (norm.moving_mean, norm.moving_variance)]


def seen_by(model: Any, batches: Sequence[Any]) -> list[Any]:
    """Returns the means of what the layer sees in batches: by NumPy."""
    kernel, bias = (np.array(v.numpy(), np.float64) for v in model.layers[0].weights)
    seen = [np.maximum(np.asarray(b, np.float64) @ kernel + bias, 0) for b in batches]
    means = np.mean([s.mean(axis=0) for s in seen], axis=0)
    return [means, np.mean([s.var(axis=0) for s in seen], axis=0)]


def test_averages_are_those_of_the_rows_and_nothing_else_changes() -> None:
    model, (x, y) = normed(), rows()
    source = ArraySource(x, y)
    kept = {
        id(v) for v in (model.layers[1].moving_mean, model.layers[1].moving_variance)
    }
    others = [
        v for v in (*model.variables, *model.optimizer.variables) if id(v) not in kept
    ]
    before = [np.array(v.numpy()) for v in others]
    averages = MovingAverages(model, source, BATCH)
    for _ in range(2):
        averages.estimate()
        wanted = seen_by(model, read_batches(source, BATCH))
        for found, value in zip(averages_of(model), wanted, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)
        assert_close([np.array(v.numpy()) for v in others], before)
        # The second time with other weights.
        kernel = model.layers[0].kernel
        kernel.assign(-kernel.numpy())
        before = [np.array(v.numpy()) for v in others]


def test_frozen_layers_keep_their_averages() -> None:
    model, (x, y) = normed(), rows()
    model.layers[1].trainable = False
    before = averages_of(model)
    MovingAverages(model, ArraySource(x, y), BATCH).estimate()
    assert_close(averages_of(model), before)


def shared() -> Any:
    inputs, norm = keras.Input((4,)), layers.BatchNormalization(momentum=0.9)
    return keras.Model(inputs, norm(2 * norm(inputs) + 1))


def in_time() -> Any:
    norm = layers.BatchNormalization(momentum=0.9)
    together = layers.TimeDistributed(norm)
    return keras.Sequential([keras.Input((4,)), layers.Reshape((2, 2)), together])


class Still(keras.Model):
    """Calls one layer as in inference, and another one never."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = layers.BatchNormalization()
        self.unused = layers.BatchNormalization()
        self.last = layers.BatchNormalization(momentum=0.5)

    def build(self, input_shape: Any) -> None:
        self.inner.build(input_shape)
        self.last.build(input_shape)

    def call(self, inputs: Any) -> Any:
        return self.last(self.inner(inputs, training=False))


def slow() -> Any:
    return keras.Sequential(
        [keras.Input((4,)), layers.BatchNormalization(momentum=0.999999)]
    )


def never() -> Any:
    return keras.Sequential(
        [keras.Input((4,)), layers.BatchNormalization(momentum=1.0)]
    )


@pytest.mark.parametrize("make", [shared, in_time, Still, never])
def test_averages_are_those_that_keras_tends_to(make: Any) -> None:
    x, _ = rows(BATCH)
    model = make()
    model(x)
    judge = make()
    judge(x)
    for _ in range(200):
        judge(x, training=True)
    MovingAverages(model, ArraySource(x), BATCH).estimate()
    found = [np.array(v.numpy()) for v in model.non_trainable_variables]
    wanted = [np.array(v.numpy()) for v in judge.non_trainable_variables]
    for mine, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4)


def test_averages_of_a_momentum_near_one() -> None:
    x, _ = rows(BATCH)
    model = slow()
    MovingAverages(model, ArraySource(x), BATCH).estimate()
    mean, variance = (np.array(v.numpy()) for v in model.non_trainable_variables)
    np.testing.assert_allclose(mean, x.mean(axis=0), rtol=0.03)
    np.testing.assert_allclose(variance, x.var(axis=0), rtol=0.03)


def test_noise_does_not_count_as_a_call() -> None:
    """What a batch replaces is seen on the same draws, however large they are."""
    x, _ = rows()
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Rescaling(0.0),
            layers.GaussianNoise(1.0, seed=1),
            layers.Rescaling(3000.0, offset=5000.0),
            layers.BatchNormalization(momentum=0.9),
        ]
    )
    MovingAverages(model, ArraySource(x), BATCH).estimate()
    mean, variance = (np.array(v.numpy()) for v in model.layers[-1].weights[2:])
    np.testing.assert_allclose(mean, 5000, rtol=0.25)
    np.testing.assert_allclose(variance, 3000**2, rtol=0.5)


class OwnNorm(layers.BatchNormalization):
    def call(self, inputs: Any, training: bool = False, mask: Any = None) -> Any:
        return super().call(inputs / 2, training=training, mask=mask)


class OwnLoss(keras.Model):
    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None,
        sample_weight: Any = None, training: bool = True,
    ) -> Any:  # fmt: skip
        return super().compute_loss(x, y, y_pred, sample_weight, training)


def test_what_is_not_keras_own_is_not_estimated() -> None:
    def facts(model: Any) -> Any:
        model.compile("sgd", "mse")
        x = np.zeros((64, 4), "float32")
        found = shoal.plan(model, x, x, strategy="diloco", workers=2)
        assert found.model.has_moving_averages
        return found.estimates_averages

    inputs = keras.Input((4,))
    outputs = layers.Dense(4)(layers.BatchNormalization()(inputs))
    assert facts(keras.Model(inputs, outputs))
    assert not facts(OwnLoss(inputs, outputs))
    assert not facts(keras.Model(inputs, layers.Dense(4)(OwnNorm()(inputs))))
    renormed = layers.BatchNormalization(renorm=True)
    assert not facts(keras.Model(inputs, layers.Dense(4)(renormed(inputs))))


def test_layers_that_write_their_weights_have_them_back() -> None:
    x, y = rows()
    inner = layers.SpectralNormalization(layers.Dense(5))
    model = keras.Sequential([keras.Input((4,)), inner, layers.BatchNormalization()])
    before = [np.array(v.numpy()) for v in inner.variables]
    MovingAverages(model, ArraySource(x, y), BATCH).estimate()
    assert_close([np.array(v.numpy()) for v in inner.variables], before)


class Drawn(layers.Layer):
    """Draws without a seed, as code of users does."""

    def call(self, inputs: Any) -> Any:
        return inputs + keras.random.normal(keras.ops.shape(inputs))


@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="JAX compiles no draw without a seed"
)
def test_draws_without_a_seed_go_on_as_before() -> None:
    def drawn(is_estimated: bool) -> list[Any]:
        keras.utils.set_random_seed(5)
        model = keras.Sequential(
            [keras.Input((4,)), Drawn(), layers.BatchNormalization()]
        )
        x, _ = rows()
        if is_estimated:
            MovingAverages(model, ArraySource(x), BATCH).estimate()
        return [
            np.random.rand(3),
            np.array(keras.ops.convert_to_numpy(keras.random.normal((3,)))),
        ]

    assert_close(drawn(True), drawn(False))


def test_inputs_are_not_cast() -> None:
    """A global policy of half precision is not one of the model's own inputs."""
    x = np.full((BATCH, 4), 3e5, "float32")
    first = layers.Rescaling(1e-5, dtype="float32")
    last = layers.BatchNormalization(dtype="float32")
    model = keras.Sequential([keras.Input((4,)), first, last])
    keras.config.set_dtype_policy("mixed_float16")
    try:
        MovingAverages(model, ArraySource(x), BATCH).estimate()
    finally:
        keras.config.set_dtype_policy("float32")
    np.testing.assert_allclose(last.moving_mean.numpy(), 3.0, rtol=1e-3)


def test_an_interruption_changes_nothing(monkeypatch: Any) -> None:
    model, (x, y) = normed(), rows()
    before = averages_of(model)

    def pressed() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(moving_averages, "check", pressed)
    with pytest.raises(KeyboardInterrupt):
        MovingAverages(model, ArraySource(x, y), BATCH).estimate()
    assert_close(averages_of(model), before)


def test_averages_belong_to_the_weights_of_an_optimizers_ema() -> None:
    model, (x, y) = normed(), rows()
    ema = keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.5)
    model.compile(ema, "binary_crossentropy")
    shoal.fit(
        model, x, y, strategy="local_sgd:period=2", workers=2, batch_size=BATCH,
        cluster="inline", epochs=2, verbose=0, run=False,
    )  # fmt: skip
    wanted = seen_by(model, read_batches(ArraySource(x, y), BATCH))
    for found, value in zip(averages_of(model), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)


def test_frozen_weights_are_not_copied() -> None:
    """They may be far larger than all that is trained."""
    model, (x, y) = normed(), rows()
    model.layers[0].trainable = False
    states = {v.path for v in moving_averages._states(model)}
    kept = {v.path for v in model.layers[1].non_trainable_variables}
    assert kept <= states
    assert not states & {v.path for v in model.layers[0].weights}
    assert any("seed" in path for path in states)
    before = model.layers[0].get_weights()
    MovingAverages(model, ArraySource(x, y), BATCH).estimate()
    assert_close(model.layers[0].get_weights(), before)


def test_a_model_that_fails_keeps_its_averages() -> None:
    model, (x, y) = normed(), rows()
    before = averages_of(model)
    with pytest.raises(ValueError, match="shape"):
        MovingAverages(model, ArraySource(x[:, :3], y), BATCH).estimate()
    assert_close(averages_of(model), before)


CASES = [(False, "inline")]
if keras.backend.backend() == "jax":  # processes start fast there
    CASES.append((True, "local"))


@pytest.mark.parametrize(("late", "cluster"), CASES)
def test_a_run_is_validated_and_ends_with_averages_of_its_weights(
    late: bool, cluster: str
) -> None:
    model, (x, y) = normed(), rows()
    seen: list[Any] = []
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(averages_of(model))
    )
    history = shoal.fit(
        model, x, y, strategy="diloco:period=2", workers=2, epochs=3, batch_size=BATCH,
        validation_data=(x, y), validation="async" if late else "blocking",
        cluster=cluster, callbacks=[look], verbose=0, run=False,
    )  # fmt: skip
    wanted = seen_by(model, read_batches(ArraySource(x, y), BATCH))
    for found, value in zip(averages_of(model), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)
    assert_close(seen[-1], averages_of(model))
    scores = model.evaluate(x, y, verbose=0, return_dict=True)
    assert history.history["val_loss"][-1] == pytest.approx(scores["loss"], rel=1e-4)


def test_one_worker_keeps_averages_as_keras_does() -> None:
    (x, y), model = rows(), normed()
    shoal.fit(
        model, x, y, strategy="local_sgd", workers=1, batch_size=BATCH,
        cluster="inline", shuffle=False, verbose=0, run=False,
    )  # fmt: skip
    plain = normed()
    plain.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    assert_close(averages_of(model), averages_of(plain))


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="no part of a backend")
def test_a_run_goes_on_where_averages_cannot_be_estimated(
    monkeypatch: Any, tmp_path: Path
) -> None:
    def fail(model: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(moving_averages, "in_training", fail)
    (x, y), model = rows(), normed()
    history = shoal.fit(
        model, x, y, strategy="async_diloco:period=2", workers=2, batch_size=BATCH,
        epochs=2, cluster="inline", verbose=0, run=tmp_path,
    )  # fmt: skip
    events = read_events(Folder.at(history.run.url))
    told = [e["text"] for e in events if e["kind"] == "warning"]
    assert len([t for t in told if "MemoryError: no room" in t]) == 1
    assert history.run.summary().samples_committed == 2 * ROWS


@given(
    count=draw.integers(1, 300), size=draw.integers(1, 40), most=draw.integers(1, 200)
)
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="no part of a backend")
def test_batches_lie_evenly_in_the_data(count: int, size: int, most: int) -> None:
    """Sorted rows are in each batch from all parts of the data."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(moving_averages, "MOST_ROWS", most)
        x = np.arange(count, dtype="float32")[:, None]
        batches = read_batches(ArraySource(x, x), size)
    assert {len(b) for b in batches} == {min(size, count)}
    together = np.concatenate(batches)[:, 0]
    assert len(together) <= max(most, min(size, count))
    assert len(set(together)) == len(together)
    steps = np.diff(np.sort(together))
    assert not len(steps) or steps.max() <= -(-count // len(together))
    for batch in batches:
        steps = np.diff(batch[:, 0])
        assert not len(steps) or steps.max() <= -(-count // len(batch)) + 1


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="no part of a backend")
def test_few_of_many_files_are_read(monkeypatch: Any, tmp_path: Path) -> None:
    for number in range(40):
        values = np.full((50, 2), number, "float32")
        np.savez(tmp_path / f"{number:02}.npz", x=values, y=values[:, :1])
    source = open_files(str(tmp_path / "*.npz"))
    monkeypatch.setattr(moving_averages, "MOST_ROWS", 160)
    found = np.concatenate(read_batches(source, 8))[:, 0]
    assert len(found) == 160
    files = sorted(set(found))
    assert len(files) == moving_averages.FEW_CHUNKS
    assert np.diff([0, *files, 39]).max() <= 3
    # Where files are small, more of them are read.
    monkeypatch.setattr(moving_averages, "MOST_ROWS", 1200)
    found = np.concatenate(read_batches(source, 8))[:, 0]
    assert len(found) == 1200
    assert len(set(found)) == 24
