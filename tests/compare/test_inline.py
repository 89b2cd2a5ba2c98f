"""The inline cluster: the same outcome as processes, or as plain training."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.engine import inline
from shoal.engine.arguments import Arguments, read
from shoal.errors import PlanError
from shoal.runs.null import NullRun
from tests.compare.problem import BATCH_SIZE, ROWS, data, make_model

ALL = [
    name
    for name in shoal.strategies.registry.names()
    if not shoal.strategies.get(name).is_independent
]
ASYNCHRONOUS = [n for n in ALL if shoal.strategies.get(n).is_asynchronous]


def fit(model: Any, strategy: str, *, workers: int, **more: Any) -> Any:
    x, y = data()
    settings = {
        "batch_size": BATCH_SIZE, "epochs": 2, "run": False, "verbose": 0, "seed": 5,
        "cluster": "inline", **more,
    }  # fmt: skip
    return shoal.fit(model, x, y, strategy=strategy, workers=workers, **settings)


def weights_of(model: Any) -> Any:
    return np.concatenate([np.ravel(w) for w in model.get_weights()])


@pytest.mark.parametrize("strategy", ["all_reduce", "local_sgd", "downpour", "dynsgd"])
@pytest.mark.parametrize("period", [None, 3])
def test_one_worker_is_plain_training(strategy: str, period: int | None) -> None:
    if strategy == "all_reduce" and period:
        pytest.skip("gradients are of one step")
    x, y = data()
    plain, ours = make_model(), make_model()
    kept = plain.fit(
        x, y, batch_size=BATCH_SIZE, epochs=2, shuffle=False, verbose=0
    ).history
    text = f"{strategy}:period={period}" if period else strategy
    found = fit(ours, text, workers=1, shuffle=False).history
    np.testing.assert_allclose(weights_of(ours), weights_of(plain), atol=2e-6)
    np.testing.assert_allclose(found["loss"], kept["loss"], atol=1e-5)
    assert ours.optimizer.iterations == plain.optimizer.iterations


@pytest.mark.process
@pytest.mark.parametrize("strategy", ["all_reduce", "local_sgd"])
def test_rounds_are_those_of_processes(strategy: str) -> None:
    here, there = make_model(), make_model()
    inline_ = fit(here, strategy, workers=2)
    processes = fit(there, strategy, workers=2, cluster="local")
    np.testing.assert_allclose(weights_of(here), weights_of(there), atol=1e-6)
    np.testing.assert_allclose(
        inline_.history["loss"], processes.history["loss"], atol=1e-6
    )


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("strategy", [name for name in ALL if name != "single"])
def test_every_sample_is_committed_once(strategy: str, workers: int) -> None:
    history = fit(make_model(dropout=0.2), strategy, workers=workers)
    summary = history.run.summary()
    assert summary.samples_committed == summary.samples_expected == 2 * ROWS
    assert len(history.history["loss"]) == 2


@pytest.mark.parametrize("strategy", ASYNCHRONOUS)
def test_a_seed_repeats_the_interleaving(strategy: str) -> None:
    models = [make_model(dropout=0.2) for _ in range(3)]
    for model, seed in zip(models, (5, 5, 6), strict=True):
        fit(model, strategy, workers=3, seed=seed)
    first, again, other = map(weights_of, models)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_workers_have_optimizers_of_their_own() -> None:
    """Adam's moments differ by worker; one set of programs must not mix them."""
    model = make_model(optimizer=keras.optimizers.Adam(0.01))
    fit(model, "local_sgd:period=2", workers=4)
    assert np.isfinite(weights_of(model)).all()
    assert int(model.optimizer.iterations) == 2 * -(-ROWS // BATCH_SIZE)


def test_a_slow_worker_takes_fewer_samples() -> None:
    x, y = data()
    ready = read(
        Arguments(
            model=make_model(),
            x=x,
            y=y,
            strategy="downpour:period=1",
            workers=2,
            cluster="inline",
            batch_size=4,
            epochs=3,
            verbose=0,
            run=False,
            seed=1,
        )  # fmt: skip
    )
    counts = {0: 0, 1: 0}

    class Counting(NullRun):
        def exchanges(self, records: Any) -> None:
            for record in records:
                counts[record["rank"]] += record["samples"]

    with Counting() as run:
        speeds = {0: 1.0, 1: 4.0}
        inline.train(ready.plan, ready.work, run, ready.habits(), speeds.__getitem__)
    assert sum(counts.values()) == 3 * ROWS
    assert counts[0] > 2.5 * counts[1]


def test_a_schedule_ends_where_keras_would() -> None:
    steps = 2 * -(-ROWS // BATCH_SIZE)
    for strategy in ("all_reduce", "local_sgd", "aeasgd"):
        schedule = keras.optimizers.schedules.PolynomialDecay(0.1, steps, 0.0)
        model = make_model(optimizer=keras.optimizers.SGD(schedule))
        fit(model, strategy, workers=2)
        assert int(model.optimizer.iterations) == steps
        assert float(schedule(model.optimizer.iterations)) == pytest.approx(0, abs=1e-7)


def test_callbacks_stop_and_set_the_rate() -> None:
    rates: list[float] = []

    class Halve(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.1 / 2**epoch

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate))
            self.model.stop_training = epoch == 2

    for strategy in ("all_reduce", "local_sgd", "aeasgd"):
        rates.clear()
        fit(make_model(), strategy, workers=2, epochs=9, callbacks=[Halve()])
        assert rates == pytest.approx([0.1, 0.05, 0.025])


@pytest.mark.parametrize("strategy", ["all_reduce", "local_sgd", "aeasgd"])
def test_a_batch_hook_stops_in_the_middle(strategy: str) -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    history = fit(make_model(), strategy, workers=2, epochs=9, callbacks=[Stop()])
    assert len(history.history["loss"]) == 1


def test_ensembles_are_refused() -> None:
    with pytest.raises(PlanError, match="does not run on cluster='inline'"):
        fit(make_model(), "ensemble", workers=2)


@pytest.mark.parametrize("epoch_barrier", [True, False])
def test_epochs_end_with_and_without_a_barrier(epoch_barrier: bool) -> None:
    history = fit(
        make_model(),
        "aeasgd:period=2",
        workers=3,
        epochs=4,
        epoch_barrier=epoch_barrier,
    )
    assert len(history.history["loss"]) == 4
