"""Metrics that keep their state from epoch to epoch, with plain Keras as the judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.models.metrics_probe import is_additive
from tests.habits.cases import assert_close, data, make_model, weights_of

ROWS, BATCH = 200, 32  # seven steps, the last one short
metrics: Any = keras.metrics


@keras.saving.register_keras_serializable("kept")
class Kept(metrics.SparseCategoricalCrossentropy):
    """Never forgets."""

    def reset_state(self) -> None:
        """Does nothing."""


@keras.saving.register_keras_serializable("kept")
class HalfKept(metrics.SparseCategoricalCrossentropy):
    """Forgets its sum, and counts all samples that it has ever seen."""

    def reset_state(self) -> None:
        """Resets one of two variables."""
        self.total.assign(0.0)


def compiled() -> Any:
    model = make_model()
    model.compile(
        "sgd",
        "sparse_categorical_crossentropy",
        metrics=["accuracy", Kept(name="kept"), HalfKept(name="half")],
    )
    return model


def fit(model: Any, strategy: str | None, **arguments: Any) -> Any:
    x, y = data(ROWS)
    common: dict[str, Any] = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    if strategy is None:
        return model.fit(x, y, **common, **arguments)
    workers = 1 if strategy == "single" else 2
    ours: dict[str, Any] = {"cluster": "inline", "run": False, **common, **arguments}
    return shoal.fit(
        model, x, y, strategy=strategy, workers=workers, **ours
    )  # fmt: skip


def states_of(model: Any) -> list[Any]:
    found = [m for m in model.metrics[1].metrics if m.name == "kept"]
    return [np.asarray(v.numpy()) for m in found for v in m.variables]


@pytest.mark.parametrize("strategy", ["single", "all_reduce"])
@pytest.mark.parametrize("is_validated", [False, True])
def test_sums_go_on_over_epochs_validations_and_calls(
    strategy: str, is_validated: bool
) -> None:
    plain, ours = compiled(), compiled()
    given = {"validation_split": 0.2} if is_validated else {}
    for _ in range(2):
        expected = fit(plain, None, epochs=2, **given).history
        found = fit(ours, strategy, epochs=2, **given).history
        assert list(found) == list(expected)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=2e-5, err_msg=name)
    for one, other in zip(states_of(ours), states_of(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5)
    assert_close(weights_of(ours), weights_of(plain))


def test_logs_of_batches_count_on() -> None:
    found: dict[bool, list[Any]] = {}
    for is_shoal in (False, True):
        seen = found.setdefault(is_shoal, [])
        hook = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda _, logs, seen=seen: seen.append(logs["kept"])
        )
        strategy = "all_reduce" if is_shoal else None
        fit(compiled(), strategy, epochs=2, callbacks=[hook])
    np.testing.assert_allclose(found[True], found[False], rtol=2e-5)


@pytest.mark.process
def test_processes_add_up_what_they_count() -> None:
    plain, ours = compiled(), compiled()
    expected = fit(plain, None, epochs=2).history
    found = fit(ours, "all_reduce", epochs=2, cluster="local").history
    np.testing.assert_allclose(found["kept"], expected["kept"], rtol=2e-5)


def test_several_processes_score_as_keras_does() -> None:
    x, y = data(ROWS)
    plain, ours = compiled(), compiled()
    for _ in range(2):
        common: Any = {"batch_size": BATCH, "verbose": 0, "return_dict": True}
        expected = plain.evaluate(x, y, **common)
        found = shoal.evaluate(ours, x, y, workers=2, **common)
        np.testing.assert_allclose(found["kept"], expected["kept"], rtol=2e-5)


class Breaks(keras.callbacks.Callback):
    """Breaks a run off in its third epoch, as long as a file is there.

    The file outlives the run. What an object or its class holds does not: a run
    that goes on gets both as they were when the run began.
    """

    def __init__(self, armed: Path) -> None:
        super().__init__()
        self.armed = armed

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Raises the first time."""
        if epoch == 2 and self.armed.exists():
            self.armed.unlink()
            raise RuntimeError("broken off")


@pytest.mark.process
def test_a_resumed_run_continues_its_counts(tmp_path: Path) -> None:
    x, y = data(ROWS)
    given: dict[str, Any] = {"epochs": 4, "validation_data": (x[:50], y[:50])}
    expected = fit(compiled(), None, **given).history["kept"]
    armed, runs = tmp_path / "armed", tmp_path / "runs"
    armed.touch()
    with pytest.raises(RuntimeError, match="broken off"):
        fit(
            compiled(), "all_reduce", cluster="local", run=str(runs),
            callbacks=[Breaks(armed)], checkpoint_every="100 samples", **given,
        )  # fmt: skip
    [folder] = runs.iterdir()
    found = shoal.resume(folder).history["kept"]
    np.testing.assert_allclose(found, expected, rtol=2e-5)


class KeptMaximum(metrics.Metric):
    """Neither forgets nor adds up."""

    def __init__(self) -> None:
        super().__init__(name="maximum")
        self.top = self.add_variable((), "zeros", name="top")

    def update_state(self, values: Any) -> None:
        """Takes the largest value."""
        self.top.assign(keras.ops.maximum(self.top, keras.ops.max(values)))

    def result(self) -> Any:
        """Returns the largest value."""
        return self.top.value

    def reset_state(self) -> None:
        """Does nothing."""


@pytest.mark.parametrize("values", [[3.0, 1.0, 2.0], [1.0, 2.0, 3.0]])
def test_a_maximum_that_is_kept_is_no_sum(values: list[float]) -> None:
    assert not is_additive(KeptMaximum(), np.array(values, "f4"))


def test_a_sum_that_is_kept_is_a_sum() -> None:
    assert is_additive(Kept(), np.array([0, 1, 1]), np.full((3, 2), 0.5, "f4"))
