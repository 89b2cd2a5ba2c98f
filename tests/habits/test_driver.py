"""What callbacks see of messages in any order: a driver without a run behind it."""

from __future__ import annotations

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


class Stage:
    """A model, its driver, and messages as a controller would bring them."""

    def __init__(self, callbacks: list[Any], **arguments: Any) -> None:
        x, y = data(ROWS)
        self.model = make_model()
        prepare(self.model, (x[:4], y[:4]))
        self.weights = Layout.of(exchanged_variables(self.model))
        self.center = self.weights.gather(exchanged_variables(self.model))
        self.run = NullRun(name="stage")
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
    pool = Stage([], strategy="aeasgd")
    states = CallbackStates(print, 1 << 20).take([])
    diary = Diary(
        epoch=3, history={"loss": [3.0, 2.0, 1.0], "val_loss": [4.0]}, epochs=[0, 1, 2],
        best=None, learning_rate=None, is_stopped=False, callbacks=states,
        unscored=[1, 2],
    )  # fmt: skip
    arrays = {"vector": pool.center, "statistics": np.zeros(0, np.float32)}
    checkpoint = ServerCheckpoint(
        sequencer={}, arrays=arrays, blob=b"", left_out=Skipped()
    )
    pool.driver._go_on(ResumeState(server=checkpoint, diary=diary))
    found = pool.model.history.history["val_loss"]
    assert found == pytest.approx([4.0, np.nan, np.nan], nan_ok=True)
    assert "epochs 2, 3 were not validated" in capsys.readouterr().out


def test_hooks_count_in_batches_whatever_the_exchanges_cover() -> None:
    recorder = Recorder()
    pool = Stage([recorder], strategy="aeasgd")
    pool.driver.on_epoch_begin(0)
    pool.push(40, 10)
    pool.push(2, 2, 46, first=3)
    steps = [(hook[15:], step) for hook, step, _ in recorder.calls if "batch" in hook]
    assert steps == [
        ("begin", 0), ("end", 1),
        ("begin", 2), ("end", 2),
        ("begin", 3), ("end", 3),
        ("begin", 3), ("end", 3),
        ("begin", 3), ("end", 3),
    ]  # fmt: skip
    assert pool.fetched == 2
    pool.end()
    assert int(pool.model.optimizer.iterations) == 4


def test_without_a_barrier_hooks_of_an_epoch_wait_for_its_turn() -> None:
    recorder = Recorder()
    pool = Stage([recorder], strategy="aeasgd", epoch_barrier=False)
    pool.driver.on_epoch_begin(0)
    pool.push(64)
    pool.push(64, epoch=1, first=2)
    pool.push(36, first=3)
    pool.end()
    pool.driver.on_epoch_begin(1)
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
    pool = Stage([], strategy="aeasgd", epoch_barrier=False)
    pool.driver.on_epoch_begin(0)
    pool.push(64, 36)
    pool.end()
    pool.push(50, epoch=1, first=3)
    pool.driver.end()
    assert "trained on 50 samples of epoch 2" in capsys.readouterr().out
    assert int(pool.model.optimizer.iterations) == 4


def test_stop_in_a_hook_ends_the_hooks() -> None:
    recorder = Recorder()

    def stop(batch: int, logs: Any) -> None:
        pool.model.stop_training = batch == 1

    stopping = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    pool = Stage([stopping, recorder], strategy="aeasgd")
    pool.driver.on_epoch_begin(0)
    pool.push(32, 32, 32)
    ends = [step for hook, step, _ in recorder.calls if hook == "on_train_batch_end"]
    assert ends == [0, 1]
    assert pool.driver.wants_stop


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
    pool = Stage([], monitor=monitor)

    def save(run: Any, model: Any, which: str) -> None:
        found.append(run.summary().epochs - 1)

    monkeypatch.setattr(NullRun, "save_model", save)
    for epoch, value in enumerate(values):
        logs = {(monitor or "loss").partition(":")[0]: value}
        results = lambda *_, logs=logs: dict(logs)  # noqa: E731
        monkeypatch.setattr(MetricStates, "results", results)
        pool.driver.on_epoch_begin(epoch)
        pool.end(epoch)
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

    pool = Stage([Restore()], monitor="accuracy", steps_per_epoch=3)
    assert pool.plan.samples_expected == 96 + 4 + 96
    work = Work(model=pool.model, source=training_data(*data(ROWS))[0])
    plan = begin(pool.driver, pool.plan, work, pool.run)
    assert plan.request.initial_epoch == 2
    assert pool.run.summary().samples_expected == plan.samples_expected == 96
    [started] = [e for e in events if e["kind"] == "run_started"]
    assert (started["monitor"], started["is_higher_better"]) == ("accuracy", True)
    assert "of 96 samples" in pool.driver.interrupt(None)


def test_weights_that_a_callback_sets_are_not_lost_in_silence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def double(epoch: int, logs: Any) -> None:
        pool.model.set_weights([2 * w for w in pool.model.get_weights()])

    pool = Stage([keras.callbacks.LambdaCallback(on_epoch_end=double)])
    pool.driver.on_epoch_begin(0)
    assert not pool.run.summary().warnings
    pool.push(100)
    pool.end()
    pool.driver.on_epoch_begin(1)
    [warning] = pool.run.summary().warnings
    assert "a callback changed the model's weights" in warning
    assert warning in capsys.readouterr().out


@pytest.mark.parametrize("state", [b"", b"\1" * 7, b"\1" * 9999])
def test_optimizer_state_of_a_wrong_length_is_not_taken(state: bytes) -> None:
    """From any sender: the run continues with the model's state."""
    pool = Stage([])
    variables = pool.model.optimizer.variables
    good = [np.full(v.shape, 2, str(v.dtype)) for v in variables]
    pool.driver.on_epoch_begin(0)
    pool.push(100)
    pool.end(state=b"".join(value.tobytes() for value in good))
    assert not pool.run.summary().warnings
    before = [np.array(v) for v in variables]
    assert any((value == 2).all() for value in before)
    pool.driver.on_epoch_begin(1)
    pool.push(100, epoch=1, first=2)
    pool.end(epoch=1, state=state)
    [warning] = pool.run.summary().warnings
    assert f"a worker sent {len(state):,} bytes of optimizer state, not " in warning
    assert "the model keeps an older one" in warning
    for variable, value in zip(variables, before, strict=True):
        if variable is not pool.model.optimizer.iterations:
            np.testing.assert_array_equal(np.array(variable), value)
    pool.driver.end(state)


def test_ctrl_c_leaves_the_center_or_the_initial_model() -> None:
    pool = Stage([])
    pool.driver.on_epoch_begin(0)
    pool.push(64)
    rescue = Rescue(
        vector=pool.center + 1,
        statistics=np.zeros(0, np.float32),
        samples=80,
        clock=3,
    )
    line = pool.driver.interrupt(rescue)
    assert line.startswith("Interrupted: the model holds 80 of 300 samples")
    weights = pool.weights.gather(exchanged_variables(pool.model))
    np.testing.assert_array_equal(weights, pool.center + 1)
    assert int(pool.model.optimizer.iterations) == 3


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
