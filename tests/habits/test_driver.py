"""What callbacks see of messages in any order: a driver without a run behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.data import training_data
from shoal.engine.coordination.skipped import Skipped
from shoal.engine.server.checkpoint import ServerCheckpoint
from shoal.engine.server.records import EpochEnd, Record, Rescue
from shoal.models.inspection import prepare
from shoal.models.metrics import MetricStates
from shoal.runs.store import NullRun
from shoal.training.callback_state import CallbackStates
from shoal.training.driver import Driver
from shoal.training.driver_options import DriverOptions
from shoal.training.hooks import BatchHooks
from shoal.training.resume_state import Diary, ResumeState
from shoal.training.start_run import Work, begin
from shoal.vectors import Layout, exchanged_variables
from tests.habits.cases import Recorder, data, make_model

ROWS, BATCH = 100, 32


class DriverCase:
    """A model, its driver, and messages as a controller would bring them."""

    def __init__(self, callbacks: list[Any], **arguments: Any) -> None:
        x, y = data(ROWS)
        self.model = make_model()
        prepare(self.model, (x[:4], y[:4]))
        self.weights = Layout.of(exchanged_variables(self.model))
        self.center = self.weights.gather(exchanged_variables(self.model))
        self.run = NullRun(name="case")
        self.plan = shoal.plan(
            self.model, x, y, batch_size=BATCH, epochs=3, workers=2, **arguments
        )
        options = DriverOptions(callbacks=callbacks, verbose=2)
        self.driver = Driver(self.model, self.plan, self.run, options)
        self.driver.fetch_by(self.fetch)
        self.fetched = 0
        self.driver.begin()

    def fetch(self) -> Any:
        self.fetched += 1
        return self.center, np.zeros(0, np.float32)

    def push(self, *samples: int, epoch: int = 0, first: int = 1) -> None:
        """Messages of one flush, each a version of its own."""
        size = MetricStates.of(self.model).size
        records = [
            Record(
                t=float(version), rank=0, epoch=epoch, samples=count, steps=1,
                version=version, staleness=1, compute_s=0.1, data_s=0.0,
                wait_s=0.0, exchange_s=0.1, sums=[1.0] * size,
            )
            for version, count in enumerate(samples, first)
        ]  # fmt: skip
        self.driver.on_records(records, {})

    def end(self, epoch: int = 0, state: bytes | None = None) -> None:
        size = MetricStates.of(self.model).size
        self.driver.on_epoch(
            EpochEnd(
                epoch=epoch,
                rows=ROWS,
                metrics=np.ones(size),
                vector=self.center,
                statistics=np.zeros(0, np.float32),
                optimizer_state=state,
            )
        )


def test_scores_missing_after_an_interruption_are_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = DriverCase([], strategy="aeasgd")
    states = CallbackStates(print, 1 << 20).take([])
    diary = Diary(
        epoch=3, history={"loss": [3.0, 2.0, 1.0], "val_loss": [4.0]}, epochs=[0, 1, 2],
        best=None, learning_rate=None, is_stopped=False, callbacks=states,
        unscored=[1, 2],
    )  # fmt: skip
    arrays = {"vector": case.center, "statistics": np.zeros(0, np.float32)}
    checkpoint = ServerCheckpoint(
        sequencer={}, arrays=arrays, blob=b"", left_out=Skipped()
    )
    case.driver._go_on(ResumeState(server=checkpoint, diary=diary))
    found = case.model.history.history["val_loss"]
    assert found == pytest.approx([4.0, np.nan, np.nan], nan_ok=True)
    assert "epochs 2, 3 were not validated" in capsys.readouterr().out


def test_hooks_count_in_batches_whatever_the_exchanges_cover() -> None:
    recorder = Recorder()
    case = DriverCase([recorder], strategy="aeasgd")
    case.driver.on_epoch_begin(0)
    case.push(40, 10)
    case.push(2, 2, 46, first=3)
    steps = [(hook[15:], step) for hook, step, _ in recorder.calls if "batch" in hook]
    assert steps == [
        ("begin", 0), ("end", 1),
        ("begin", 2), ("end", 2),
        ("begin", 3), ("end", 3),
        ("begin", 3), ("end", 3),
        ("begin", 3), ("end", 3),
    ]  # fmt: skip
    assert case.fetched == 2
    case.end()
    assert int(case.model.optimizer.iterations) == 4


def test_without_a_barrier_hooks_of_an_epoch_wait_for_its_turn() -> None:
    recorder = Recorder()
    case = DriverCase([recorder], strategy="aeasgd", epoch_barrier=False)
    case.driver.on_epoch_begin(0)
    case.push(64)
    case.push(64, epoch=1, first=2)
    case.push(36, first=3)
    case.end()
    case.driver.on_epoch_begin(1)
    found = [
        (hook, step) for hook, step, _ in recorder.calls if "batch_begin" not in hook
    ]
    assert found == [
        ("on_train_begin", None),
        ("on_epoch_begin", 0),
        ("on_train_batch_end", 1),
        ("on_train_batch_end", 3),
        ("on_epoch_end", 0),
        ("on_epoch_begin", 1),
        ("on_train_batch_end", 1),
    ]


def test_overrun_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    case = DriverCase([], strategy="aeasgd", epoch_barrier=False)
    case.driver.on_epoch_begin(0)
    case.push(64, 36)
    case.end()
    case.push(50, epoch=1, first=3)
    case.driver.end()
    assert "trained on 50 samples of epoch 2" in capsys.readouterr().out
    assert int(case.model.optimizer.iterations) == 4


def test_stop_in_a_hook_ends_the_hooks() -> None:
    recorder = Recorder()

    def stop(batch: int, logs: Any) -> None:
        case.model.stop_training = batch == 1

    stopping = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    case = DriverCase([stopping, recorder], strategy="aeasgd")
    case.driver.on_epoch_begin(0)
    case.push(32, 32, 32)
    ends = [step for hook, step, _ in recorder.calls if hook == "on_train_batch_end"]
    assert ends == [0, 1]
    assert case.driver.wants_stop


@pytest.mark.parametrize(
    ("monitor", "values", "saved"),
    [
        (None, [3.0, 1.0, 2.0], [0, 1]),
        ("loss", [np.nan, 3.0, np.nan, 2.0], [0, 1, 3]),
        ("accuracy", [0.5, np.nan, 0.7], [0, 2]),
        ("accuracy:min", [0.5, 0.4, 0.7], [0, 1]),
    ],
)
def test_the_best_model_is_the_best_by_the_monitor(
    monkeypatch: pytest.MonkeyPatch,
    monitor: str | None,
    values: list[float],
    saved: list[int],
) -> None:
    found: list[int] = []
    case = DriverCase([], monitor=monitor)

    def save(run: Any, model: Any, which: str) -> None:
        found.append(run.summary().epochs - 1)

    monkeypatch.setattr(NullRun, "save_model", save)
    for epoch, value in enumerate(values):
        logs = {(monitor or "loss").partition(":")[0]: value}
        results = lambda *_, logs=logs: dict(logs)  # noqa: E731
        monkeypatch.setattr(MetricStates, "results", results)
        case.driver.on_epoch_begin(epoch)
        case.end(epoch)
    assert found == saved


def test_a_plan_that_a_callback_changed_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As BackupAndRestore does: it sets the epoch when training begins."""
    events: list[Any] = []
    monkeypatch.setattr(NullRun, "_keep", lambda *kept: events.append(kept[-1]))

    class Restore(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.model._initial_epoch = 2

    case = DriverCase([Restore()], monitor="accuracy", steps_per_epoch=3)
    assert case.plan.samples_expected == 96 + 4 + 96
    work = Work(model=case.model, source=training_data(*data(ROWS))[0])
    plan = begin(case.driver, case.plan, work, case.run)
    assert plan.request.initial_epoch == 2
    assert case.run.summary().samples_expected == plan.samples_expected == 96
    [started] = [e for e in events if e["kind"] == "run_started"]
    assert (started["monitor"], started["is_higher_better"]) == ("accuracy", True)
    assert "of 96 samples" in case.driver.interrupt(None)


class Looks(keras.callbacks.Callback):
    """Evaluates the model and predicts, which Keras does with memory of its own."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.evaluate(*data(8), verbose=0)
        self.model.predict(data(8)[0], verbose=0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.on_epoch_end(0)


@pytest.mark.parametrize("strategy", ["local_sgd:period=1", "all_reduce"])
def test_a_callback_that_evaluates_and_predicts_changes_nothing(strategy: str) -> None:
    def trained(*callbacks: Any) -> tuple[Any, Any]:
        keras.utils.set_random_seed(3)
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(8),
                layers.BatchNormalization(),
                layers.Dropout(0.3, seed=1),
                layers.Dense(2, activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy")
        history = shoal.fit(
            model, *data(ROWS), strategy=strategy, workers=2, batch_size=25, epochs=3,
            cluster="inline", shuffle=False, seed=1, callbacks=[*callbacks], verbose=0,
        )  # fmt: skip
        return history, model.get_weights()

    history, weights = trained(Looks())
    assert not history.run.summary().warnings
    plain, expected = trained()
    np.testing.assert_allclose(history.history["loss"], plain.history["loss"], 1e-5)
    for mine, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)


def double(model: Any) -> None:
    model.set_weights([2 * w for w in model.get_weights()])


def train_on(model: Any) -> None:
    """Keras' own training may use the memory of the weights for new ones."""
    model.fit(*data(32), verbose=0)


def set_again(model: Any) -> None:
    model.set_weights(model.get_weights())


@pytest.mark.parametrize("change", [double, train_on, set_again])
def test_weights_that_a_callback_sets_are_not_lost_in_silence(
    change: Callable[[Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    hook = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: change(case.model)
    )
    case = DriverCase([hook])
    case.driver.on_epoch_begin(0)
    assert not case.run.summary().warnings
    case.push(100)
    case.end()
    case.driver.on_epoch_begin(1)
    told = case.run.summary().warnings
    if change is set_again:
        assert not told
        return
    [warning] = [text for text in told if "changed the model's weights" in text]
    assert warning in capsys.readouterr().out


@pytest.mark.parametrize("state", [b"", b"\1" * 7, b"\1" * 9999])
def test_optimizer_state_of_a_wrong_length_is_not_taken(state: bytes) -> None:
    """From any sender: the run continues with the model's state."""
    case = DriverCase([])
    variables = case.model.optimizer.variables
    good = [np.full(v.shape, 2, str(v.dtype)) for v in variables]
    case.driver.on_epoch_begin(0)
    case.push(100)
    case.end(state=b"".join(value.tobytes() for value in good))
    assert not case.run.summary().warnings
    before = [np.array(v) for v in variables]
    assert any((value == 2).all() for value in before)
    case.driver.on_epoch_begin(1)
    case.push(100, epoch=1, first=2)
    case.end(epoch=1, state=state)
    [warning] = case.run.summary().warnings
    assert f"a worker sent {len(state):,} bytes of optimizer state, not " in warning
    assert "the model keeps an older one" in warning
    for variable, value in zip(variables, before, strict=True):
        if variable is not case.model.optimizer.iterations:
            np.testing.assert_array_equal(np.array(variable), value)
    case.driver.end(state)


def test_ctrl_c_leaves_the_center_or_the_initial_model() -> None:
    case = DriverCase([])
    case.driver.on_epoch_begin(0)
    case.push(64)
    rescue = Rescue(
        vector=case.center + 1,
        statistics=np.zeros(0, np.float32),
        samples=80,
        clock=3,
    )
    line = case.driver.interrupt(rescue)
    assert line.startswith("Interrupted: the model holds 80 of 300 samples")
    weights = case.weights.gather(exchanged_variables(case.model))
    np.testing.assert_array_equal(weights, case.center + 1)
    assert int(case.model.optimizer.iterations) == 3


@pytest.mark.parametrize(
    ("callback", "are_wanted", "read_weights"),
    [
        (keras.callbacks.History(), False, False),
        (keras.callbacks.EarlyStopping(), False, False),
        (keras.callbacks.TerminateOnNaN(), True, False),
        (keras.callbacks.ModelCheckpoint("m.keras"), True, False),
        (keras.callbacks.ModelCheckpoint("m.keras", save_freq=5), True, True),
        (keras.callbacks.LambdaCallback(), False, False),
        (keras.callbacks.LambdaCallback(on_train_batch_end=print), True, True),
        (Recorder(), True, True),
    ],
)
def test_the_center_is_fetched_only_for_callbacks_that_read_it(
    callback: Any, are_wanted: bool, read_weights: bool
) -> None:
    hooks = BatchHooks(keras.callbacks.CallbackList([callback]), BATCH)
    assert (hooks.are_wanted, hooks.read_weights) == (are_wanted, read_weights)
