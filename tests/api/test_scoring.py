"""`evaluate` and `predict` on processes give what Keras gives."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import keras
import numpy as np
import pytest

import shoal
from shoal.data import ArraySource, ChunkedSource
from shoal.errors import ConfigError, DataError, WorkerFailed, WorkerLost
from shoal.facts import Gpu, MachineFacts
from shoal.training import scoring, scoring_processes
from shoal.training.scoring import Asked, worker_count
from tests.api.problems import line, linear, two_headed, two_targets

DRIVER = os.getpid()


class Large(ChunkedSource):
    """Ten million rows, none of which is read."""

    @property
    def chunk_rows(self) -> Sequence[int]:
        return (10**7,)

    @property
    def size_bytes(self) -> int:
        return 200 << 30

    def read(self, chunk: int, epoch: int) -> Any:
        raise AssertionError("nobody reads it")


@pytest.mark.process
def test_evaluate_equals_keras_over_uneven_chunks() -> None:
    model = two_headed()
    x, y = two_targets(203)
    weights = np.random.default_rng(2).random(203)
    given: dict[str, Any] = {
        "sample_weight": weights, "batch_size": 16, "return_dict": True,
    }  # fmt: skip
    found = shoal.evaluate(model, x, y, workers=2, **given)
    expected = model.evaluate(
        x,
        y,
        verbose=0,
        **{**given, "sample_weight": {"sign": weights, "kind": weights}},
    )
    assert found == pytest.approx(expected, rel=1e-5)
    assert list(found) == sorted(expected)


@pytest.mark.process
def test_predictions_keep_order_and_nesting() -> None:
    model = two_headed()
    x, _ = line(103)
    found = shoal.predict(model, x, workers=3, batch_size=8)
    expected = model.predict(x, batch_size=8, verbose=0)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6)
        found[name][:] = 0.0  # the caller's own memory


def test_parts_and_open_files_are_bounded_however_large_the_data() -> None:
    job: Any = SimpleNamespace(source=Large(), rows=10**7, batch_size=100, workers=2)
    bounds = scoring._bounds(job)
    assert len(bounds) == scoring.MOST_CHUNKS
    assert (bounds[0][0], bounds[-1][1]) == (0, 10**7)
    assert scoring._part_rows(job) == 700  # 15 MB of rows of 21 KB


def test_return_forms_are_those_of_keras() -> None:
    x, y = line(40)
    model = linear(metrics=["mae"])
    assert shoal.evaluate(model, x, y, workers=1) == pytest.approx(
        model.evaluate(x, y, verbose=0)
    )
    assert isinstance(shoal.evaluate(linear(), x, y), float)


def test_steps_limit_the_rows() -> None:
    x, _ = line(100)
    assert shoal.predict(linear(), x, steps=2, batch_size=10).shape == (20, 1)


def test_an_unbuilt_model_and_a_callable_predict() -> None:
    x, _ = line(5)
    model = keras.Sequential([keras.layers.Dense(3)])
    assert shoal.predict(model, x).shape == (5, 3)
    assert shoal.predict(linear, x).shape == (5, 1)


def test_little_work_starts_no_process() -> None:
    machine = MachineFacts(cores=8)
    assert worker_count("auto", machine, batches=100, work=1e9) == 1
    assert worker_count("auto", machine, batches=100, work=1e12) == 4
    assert worker_count((1, 3), machine, batches=100, work=0) == 3
    assert worker_count(8, machine, batches=2, work=0) == 2
    with_gpu = replace(machine, gpus=(Gpu(number=0, name="0"),))
    assert worker_count("auto", with_gpu, batches=100, work=1e12) == 1


@pytest.mark.parametrize("workers", [0, True, "two", (1, 0), (4, 2, 1), (), None])
def test_wrong_workers_are_refused(workers: Any) -> None:
    with pytest.raises(ConfigError, match="workers="):
        shoal.predict(linear(), line(4)[0], workers=workers)


def test_a_callable_is_sent_in_place_of_its_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its model may be one that nothing else can carry."""
    given: list[Any] = []

    def pack(model: Any, **how: Any) -> bytes:
        given.append(how["factory"])
        raise InterruptedError

    monkeypatch.setattr(scoring, "pack", pack)
    x, y = line(64)
    for score in (
        lambda: shoal.predict(linear, x, workers=2),
        lambda: shoal.evaluate(linear, x, y, workers=2),
    ):
        with pytest.raises(InterruptedError):
            score()
    assert given == [linear, linear]


def test_numpy_numbers_are_accepted_as_arguments() -> None:
    x, _ = line(40)
    counts: dict[str, Any] = {"steps": 2, "batch_size": 8, "workers": 1, "threads": 1}
    wide: dict[str, Any] = {name: np.int64(count) for name, count in counts.items()}
    found = shoal.predict(linear(), x, **wide)
    assert found.shape == (16, 1)


def test_wrong_data_is_refused() -> None:
    with pytest.raises(DataError, match=r"\(data of evaluate\)"):
        shoal.evaluate(linear(), line(4)[0], np.ones(3))
    with pytest.raises(DataError, match=r"\(data of predict\)"):
        shoal.predict(linear(), None)
    with pytest.raises(ConfigError, match="Expected a dict"):
        shoal.predict(linear(), line(4)[0], custom_objects=[1])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="steps=0"):
        shoal.predict(linear(), line(4)[0], steps=0)
    with pytest.raises(DataError, match=r"model\.predict would take"):
        shoal.predict(
            keras.Sequential([keras.layers.LSTM(2)]), np.ones((4, 2), "float32")
        )


class Worst(keras.metrics.Metric):
    """The largest error: a maximum does not add up."""

    def __init__(self) -> None:
        super().__init__(name="worst")
        self.most = self.add_variable((), "zeros", name="most")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        error = keras.ops.max(keras.ops.abs(keras.ops.subtract(y, y_pred)))
        self.most.assign(keras.ops.maximum(self.most, error))

    def result(self) -> Any:
        return self.most.value


def test_metrics_that_do_not_add_up_are_computed_in_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scoring, "_scored", None)
    x, y = line(100)
    model = linear(metrics=[Worst()])
    found = shoal.evaluate(model, x, y, workers=2, return_dict=True)
    assert found["worst"] == pytest.approx(np.abs(y).max())


def die_once(flag: str) -> None:
    if os.getpid() != DRIVER and not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)


@keras.saving.register_keras_serializable("tests")
class Fragile(keras.layers.Layer):
    """Kills the first process that computes it."""

    def __init__(self, flag: str, **given: Any) -> None:
        super().__init__(**given)
        self.flag = flag

    def call(self, inputs: Any) -> Any:
        jax.debug.callback(lambda: die_once(self.flag))
        return inputs * 2

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "flag": self.flag}


@pytest.mark.process
def test_the_chunk_of_a_lost_process_is_computed_again(tmp_path: Path) -> None:
    flag = tmp_path / "died"
    model = keras.Sequential([keras.Input((2,)), Fragile(str(flag))])
    x, _ = line(64)
    found = shoal.predict(model, x, workers=2, batch_size=8)
    np.testing.assert_array_equal(found, x * 2)
    assert flag.exists()


@pytest.mark.process
def test_processes_that_keep_dying_end_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring_processes, "MOST_LOSSES", 0)
    model = keras.Sequential([keras.Input((2,)), Fragile(str(tmp_path / "no" / "w"))])
    x, _ = line(64)
    with pytest.raises((WorkerLost, WorkerFailed)) as caught:
        scoring.predict(model, ArraySource(x), Asked(workers=2, batch_size=8))
    assert caught.value.rank in (0, 1)
    assert "die_once" in caught.value.traceback


@keras.saving.register_keras_serializable()
class Leaving(keras.layers.Layer):
    """Ends any process but the driver, as if all were well."""

    def call(self, x: Any) -> Any:
        if os.getpid() != DRIVER and not isinstance(x, keras.KerasTensor):
            os._exit(0)
        return x


@pytest.mark.process
def test_processes_that_end_themselves_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scoring_processes, "MOST_LOSSES", 0)
    model = keras.Sequential([keras.Input((2,)), Leaving()])
    x, _ = line(64)
    with pytest.raises(WorkerLost, match="exited with status 0; 0 of 0 replacements"):
        scoring.predict(model, ArraySource(x), Asked(workers=2, batch_size=8))


@pytest.mark.parametrize("workers", [1, 2])
def test_predict_refuses_rows_of_another_width(workers: int) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    with pytest.raises(DataError, match=r"(?s)cannot take x.*Received x of"):
        shoal.predict(model, np.zeros((640, 2)), workers=workers)
    assert shoal.predict(model, np.zeros((4, 3))).shape == (4, 1)
