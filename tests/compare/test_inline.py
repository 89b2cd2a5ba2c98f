"""The inline cluster: the same outcome as processes, or as plain training."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.engine.controller.observer import Observer
from shoal.engine.server.checkpoint import ServerCheckpoint
from shoal.engine.server.records import EpochEnd, Record
from shoal.errors import ConfigError, PlanError
from shoal.testing import Conditions
from shoal.training.fit_call import FitCall
from shoal.training.inline import InlineCluster
from shoal.training.read_fit import read
from shoal.vectors import Sums
from tests.compare.problem import BATCH_SIZE, ROWS, data, make_model


class Watch(Observer):
    """Counts the samples of each worker."""

    def on_checkpoint(self, found: ServerCheckpoint) -> None:
        """Keeps none."""

    def on_turn(self) -> None:
        """Nothing is missed in here."""

    def __init__(self) -> None:
        self.samples: Counter[int] = Counter()

    def on_event(self, kind: str, **fields: Any) -> None:
        pass

    def on_records(self, records: list[Record], sums: dict[int, Sums]) -> None:
        for record in records:
            self.samples[record.rank] += record.samples

    def on_epoch_begin(self, epoch: int) -> None:
        pass

    def on_epoch(self, end: EpochEnd) -> None:
        assert end.rows == ROWS

    @property
    def wants_stop(self) -> bool:
        return False

    @property
    def learning_rate(self) -> float | None:
        return None


def fit(
    model: Any, strategy: str, *, workers: int, by: Any = shoal.fit, **more: Any
) -> Any:
    x, y = data()
    asked: dict[str, Any] = {
        "batch_size": BATCH_SIZE, "epochs": 2, "run": False, "verbose": 0, "seed": 5,
        "cluster": "inline", **more,
    }  # fmt: skip
    return by(model, x, y, strategy=strategy, workers=workers, **asked)


def weights_of(model: Any) -> Any:
    return np.concatenate([np.ravel(w) for w in model.get_weights()])


@pytest.mark.parametrize(
    "strategy", ["all_reduce", "local_sgd:period=3", "downpour", "single"]
)
def test_one_worker_is_plain_training(strategy: str) -> None:
    x, y = data()
    plain, ours = make_model(), make_model()
    kept = plain.fit(
        x, y, batch_size=BATCH_SIZE, epochs=2, shuffle=False, verbose=0
    ).history
    found = fit(ours, strategy, workers=1, shuffle=False).history
    np.testing.assert_allclose(weights_of(ours), weights_of(plain), atol=2e-6)
    np.testing.assert_allclose(found["loss"], kept["loss"], atol=1e-5)
    assert ours.optimizer.iterations == plain.optimizer.iterations


@pytest.mark.process
@pytest.mark.parametrize(
    "strategy", ["all_reduce", pytest.param("local_sgd", marks=pytest.mark.slow)]
)
def test_rounds_are_those_of_processes(strategy: str, kept: shoal.Session) -> None:
    here, there = make_model(), make_model()
    inline_ = fit(here, strategy, workers=2)
    processes = fit(there, strategy, workers=2, by=kept.fit, cluster="local")
    np.testing.assert_allclose(weights_of(here), weights_of(there), atol=1e-6)
    np.testing.assert_allclose(
        inline_.history["loss"], processes.history["loss"], atol=1e-6
    )


@pytest.mark.parametrize("strategy", ["all_reduce", "easgd", "eamsgd", "averaging"])
def test_every_sample_is_committed_once(strategy: str) -> None:
    history = fit(make_model(dropout=0.2), strategy, workers=5)
    summary = history.run.summary()
    assert summary.samples_committed == summary.samples_expected == 2 * ROWS
    assert len(history.history["loss"]) == 2


@pytest.mark.parametrize("strategy", ["aeasgd", "async_diloco:period=4"])
def test_a_seed_repeats_the_interleaving(strategy: str) -> None:
    models = [make_model(dropout=0.2) for _ in range(2)]
    for model in models:
        fit(model, strategy, workers=3)
    first, again = map(weights_of, models)
    np.testing.assert_array_equal(first, again)


def test_workers_have_optimizers_of_their_own() -> None:
    """Adam's moments differ by worker; one set of programs must not mix them."""
    model = make_model(optimizer=keras.optimizers.Adam(0.01))
    fit(model, "local_sgd:period=2", workers=4)
    assert np.isfinite(weights_of(model)).all()
    assert int(model.optimizer.iterations) == 2 * -(-ROWS // BATCH_SIZE)


def test_a_slow_worker_takes_fewer_samples() -> None:
    x, y = data()
    call = FitCall.of(
        model=make_model(), x=x, y=y, strategy="downpour:period=1", workers=2,
        cluster="inline", batch_size=4, epochs=3, verbose=0, run=False, seed=1,
    )  # fmt: skip
    ready, watch = read(call), Watch()
    work = ready.work.with_packed()
    InlineCluster(ready.plan, work, watch, Conditions().slow(rank=1, times=4)).run()
    assert watch.samples.total() == 3 * ROWS
    assert watch.samples[0] > 2.5 * watch.samples[1]


@pytest.mark.parametrize("strategy", ["aeasgd", "diloco", "downpour:period=2"])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=6, deadline=None)
def test_samples_count_once_while_workers_leave_and_join(
    strategy: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    conditions, step = Conditions(), 0.0
    for _ in range(random.integers(1, 5)):
        rank, step = int(random.integers(3)), step + random.uniform(0, 6)
        conditions = conditions.leave(rank=rank, step=step)
        step += random.uniform(0, 6)
        conditions = conditions.join(rank=rank, step=step)
    with conditions:
        history = fit(make_model(), strategy, workers=3, epochs=3)
    summary = history.run.summary()
    assert summary.samples_committed == summary.samples_expected == 3 * ROWS
    assert len(history.history["loss"]) == 3


def test_who_has_left_takes_no_samples_and_who_joins_does() -> None:
    x, y = data()
    call = FitCall.of(
        model=make_model(), x=x, y=y, strategy="downpour:period=1", workers=2,
        cluster="inline", batch_size=2, epochs=4, verbose=0, run=False, seed=1,
    )  # fmt: skip
    # An epoch is 125 steps: about 63 of each, and 125 of one alone.
    taken: list[Any] = []
    for conditions in (
        Conditions().leave(rank=1, step=0),
        Conditions().leave(rank=1, step=0).join(rank=1, step=250),
    ):
        ready, watch = read(call), Watch()
        InlineCluster(ready.plan, ready.work.with_packed(), watch, conditions).run()
        assert watch.samples.total() == 4 * ROWS
        taken.append(watch.samples)
    assert taken[0][1] == 0
    assert 0.2 < taken[1][1] / taken[1].total() < 0.3


def test_error_of_conditions_on_processes() -> None:
    with (
        Conditions().slow(rank=0, times=2),
        pytest.raises(PlanError, match="Pass cluster='inline'"),
    ):
        fit(make_model(), "aeasgd", workers=2, cluster="local")


def test_error_of_common_steps_with_workers_that_leave() -> None:
    with (
        Conditions().leave(rank=0, step=2),
        pytest.raises(PlanError, match="Expected a strategy that exchanges weights"),
    ):
        fit(make_model(), "all_reduce", workers=2)


def test_error_of_a_worker_that_the_run_does_not_have(tmp_path: Path) -> None:
    with (
        Conditions().slow(rank=2, times=2),
        pytest.raises(ConfigError, match="Expected ranks from 0 to 1"),
    ):
        fit(make_model(), "aeasgd", workers=2, run=tmp_path / "run")
    assert not [*tmp_path.iterdir()]  # no run has begun


def test_error_of_a_run_without_workers() -> None:
    both = Conditions().leave(rank=0, step=2).leave(rank=1, step=9)
    with both, pytest.raises(ConfigError, match="all 2 workers have left at step 9"):
        fit(make_model(), "aeasgd", workers=2)


def test_error_of_a_worker_that_leaves_twice() -> None:
    with pytest.raises(ConfigError, match="Expected leave and join in turns"):
        Conditions().leave(rank=0, step=2).leave(rank=0, step=9)
    with pytest.raises(ConfigError, match="Expected a number above 0"):
        Conditions().slow(rank=0, times=0)


def test_a_schedule_ends_where_keras_would() -> None:
    steps = 2 * -(-ROWS // BATCH_SIZE)
    for strategy in ("all_reduce", "aeasgd"):
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

    for strategy in ("all_reduce", "aeasgd"):
        rates.clear()
        fit(make_model(), strategy, workers=2, epochs=9, callbacks=[Halve()])
        assert rates == pytest.approx([0.1, 0.05, 0.025])


@pytest.mark.parametrize("strategy", ["all_reduce", "aeasgd"])
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
