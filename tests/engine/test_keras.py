"""Keras models on the real engine, workers in threads, against plain Keras."""

from __future__ import annotations

import threading
from typing import Any

import keras
import numpy as np
import pytest

from shoal.backends.torch_group import open_group
from shoal.data import ArraySource
from shoal.data.order import Order, shares
from shoal.engine.worker.factories import OpenBackend
from shoal.engine.worker.native_allreduce import NativeAllReduceSpec
from shoal.engine.worker.shared_memory_allreduce import SharedMemoryAllReduceSpec
from shoal.models.inspection import prepare
from shoal.models.metrics import MetricStates
from shoal.models.travel import pack
from shoal.strategies import get
from shoal.vectors import Layout, exchanged_variables, statistic_variables
from tests.support.inline import Outcome, Setup, train

ROWS, BATCH, EPOCHS = 330, 101, 2  # shares of 51 and 50; a short last batch


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.standard_normal((ROWS, 5)).astype("float32")
    y = (x[:, :1] + random.standard_normal((ROWS, 1)) > 0).astype("float32")
    return x, y, random.uniform(0.5, 2.0, ROWS).astype("float32")


def make(*layers: Any, optimizer: str = "adam", metrics: Any = ("accuracy",)) -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(8, activation="tanh"),
            *layers,
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    rate = 0.02
    chosen = keras.optimizers.get({"class_name": optimizer, "config": {}})
    chosen.learning_rate = rate
    model.compile(chosen, "binary_crossentropy", metrics=list(metrics))
    return model


def engine(
    model: Any, strategy: Any, workers: int, arrays: Any = None, **fields: Any
) -> Outcome:
    """Trains a copy of the model on the engine."""
    x, y, weights = arrays or data()
    source = ArraySource(x, y, weights)
    sample = source.take(np.arange(4))
    prepare(model, sample)
    variables, statistics = exchanged_variables(model), statistic_variables(model)
    layout, beside = Layout.of(variables), Layout.of(statistics)
    exchanges_gradients = strategy.exchanges == "gradients"
    packed = pack(model)
    lock = threading.Lock()

    def open_backend(compute: Any, rows: Any) -> Any:
        with lock:  # Keras loads one model at a time in a process
            opening = OpenBackend(name=keras.backend.backend(), model=packed)
            return opening(compute, rows)

    given: dict[str, Any] = {
        "batch_size": BATCH,
        "worker_batch_size": shares(BATCH, workers)[0]
        if exchanges_gradients
        else BATCH,
        "epochs": EPOCHS,
    }
    return train(
        Setup(
            strategy=strategy,
            source=source,
            order=Order(rows=len(x), shuffle=False),
            open_backend=open_backend,
            vector=layout.gather(variables),
            statistics=beside.gather(statistics),
            metrics=MetricStates.of(model).size,
            workers=workers,
            **{**given, **fields},
        )
    )


def plain(model: Any, arrays: Any = None) -> dict[str, list[float]]:
    x, y, weights = arrays or data()
    history = model.fit(
        x, y, sample_weight=weights, batch_size=BATCH, epochs=EPOCHS,
        shuffle=False, verbose=0,
    )  # fmt: skip
    return history.history


def check_same(
    outcome: Outcome, model: Any, expected: dict[str, list[float]], rows: int = ROWS
) -> None:
    """Weights, statistics and every metric of every epoch are those of Keras."""
    assert [end.rows for end in outcome.epochs] == [rows] * EPOCHS
    weights = Layout.of(exchanged_variables(model)).gather(exchanged_variables(model))
    np.testing.assert_allclose(outcome.vector, weights, rtol=1e-3, atol=1e-5)
    states = MetricStates.of(model)
    found = [states.results(model, end.metrics) for end in outcome.epochs]
    for name, values in expected.items():
        assert [logs[name] for logs in found] == pytest.approx(values, rel=1e-4)


METRICS: tuple[Any, ...] = ("accuracy", "AUC", "Precision", "Recall", "mae")


def test_gradient_exchange_is_plain_keras() -> None:
    outcome = engine(make(metrics=METRICS), get("all_reduce"), 2)
    model = make(metrics=METRICS)
    check_same(outcome, model, plain(model))


def test_ranks_without_rows_take_the_step_with_the_others() -> None:
    """The last batch has one row for three workers; the rate changes each step."""
    x, y, weights = (column[: 2 * BATCH + 1].copy() for column in data())
    for start in (0, BATCH):  # equal rows in a batch: equal moments in each share
        x[start : start + BATCH] = x[start]
    arrays = (x, y, weights)

    def model() -> Any:
        found = make(keras.layers.BatchNormalization(), metrics=())
        decay = keras.optimizers.schedules.ExponentialDecay(0.05, 1, 0.7)
        found.compile(keras.optimizers.SGD(decay), "binary_crossentropy")
        return found

    outcome = engine(model(), get("all_reduce"), 3, arrays)
    kept = model()
    check_same(outcome, kept, plain(kept, arrays), rows=len(x))
    moments = statistic_variables(kept)
    np.testing.assert_allclose(
        outcome.epochs[-1].statistics, Layout.of(moments).gather(moments), rtol=1e-4
    )


@pytest.mark.parametrize("name", ["local_sgd", "downpour"])
def test_one_worker_is_plain_keras_dropout_included(name: str) -> None:
    # Rank 0 keeps Keras' seeds; windows of three steps end where the epoch does.
    dropout = keras.layers.Dropout(0.3, seed=5)
    outcome = engine(make(dropout), get(name, period=3), 1)
    model = make(keras.layers.Dropout(0.3, seed=5))
    check_same(outcome, model, plain(model))


def test_one_worker_keeps_the_statistics_of_batch_norm() -> None:
    outcome = engine(make(keras.layers.BatchNormalization()), get("local_sgd"), 1)
    model = make(keras.layers.BatchNormalization())
    check_same(outcome, model, plain(model))
    moments = statistic_variables(model)
    np.testing.assert_allclose(
        outcome.epochs[-1].statistics, Layout.of(moments).gather(moments), rtol=1e-4
    )


def test_a_late_worker_of_all_reduce_has_the_optimizers_state() -> None:
    outcome = engine(make(), get("all_reduce"), 1, late=(BATCH,), epochs=EPOCHS)
    model = make()
    check_same(outcome, model, plain(model))


def test_statistics_weigh_by_rows_where_gradients_weigh_by_sample_weights() -> None:
    """The statistics of a batch do not depend on the sample weights of the loss."""

    def model() -> Any:
        keras.utils.set_random_seed(1)
        net = keras.Sequential(
            [
                keras.Input((5,)),
                keras.layers.BatchNormalization(momentum=0.5),
                keras.layers.Dense(1),
            ]
        )
        loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        net.compile("sgd", loss)
        return net

    x, y, weights = data()
    weights[::2] *= 100
    order = np.argsort(np.arange(ROWS) % BATCH % 2, kind="stable")
    arrays = x[order], y[order], weights[order]
    outcome = engine(model(), get("all_reduce"), 2, arrays, compute={"mass": "weights"})
    judge = model()
    plain(judge, arrays)
    mean = judge.layers[0].moving_mean.numpy()
    np.testing.assert_allclose(outcome.epochs[-1].statistics[:5], mean, atol=1e-6)


@pytest.mark.parametrize("collective", ["server", "shared", "native", "two servers"])
def test_masked_losses_weigh_by_unmasked_values_with_every_collective(
    collective: str, tmp_path: Any
) -> None:
    """The halves of a batch have one and five unmasked steps a row."""
    words = np.random.default_rng(2).integers(1, 9, (ROWS, 5))
    lengths = np.where(np.arange(ROWS) % BATCH < BATCH // 2, 1, 5)
    words[np.arange(5) >= lengths[:, None]] = 0
    arrays = words.astype("i4"), (words % 2).astype("f4")[..., None], None

    def reader() -> Any:
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                keras.layers.Embedding(9, 3, mask_zero=True),
                keras.layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile(keras.optimizers.SGD(1.0), "binary_crossentropy")
        return model

    collectives: dict[str, Any] = {
        "shared": {"collective": SharedMemoryAllReduceSpec(folder=tmp_path)},
        "native": {
            "collective": NativeAllReduceSpec(
                open_group=open_group, folder=tmp_path, library="gloo"
            )
        },
        "two servers": {"servers": 2},
    }
    given = {"compute": {"mass": "entries"}, **collectives.get(collective, {})}
    outcome = engine(reader(), get("all_reduce"), 2, arrays, **given)
    judge = reader()
    plain(judge, arrays)
    weights = Layout.of(exchanged_variables(judge)).gather(exchanged_variables(judge))
    np.testing.assert_allclose(outcome.vector, weights, rtol=1e-3, atol=1e-5)
