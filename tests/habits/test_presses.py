"""Ctrl-C anywhere in a fit: the model is intact, and signal handlers are restored."""

# What is not to happen after a press stands in the block that raises.

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import pytest

import shoal
from shoal.interruption import undisturbed
from shoal.launchers.base import Role
from shoal.launchers.process import ProcessLauncher

X = np.random.default_rng(0).normal(size=(96, 3)).astype("f4")
Y = X.sum(axis=1, keepdims=True)
HERE = str(Path(shoal.__file__).parent)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def new_model() -> Any:
    layers = [
        keras.Input((3,)),
        keras.layers.Dense(4),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.5), "mse")
    return model


def fit(model: Any, **given: Any) -> Any:
    arguments: dict[str, Any] = {
        "batch_size": 16, "epochs": 2, "workers": 2, "verbose": 0, "run": False,
        "cluster": "inline", "validation_data": (X, Y), "strategy": "aeasgd",
    }  # fmt: skip
    return shoal.fit(model, X, Y, **{**arguments, **given})


def check(model: Any) -> None:
    """Every variable is there and finite, the model works, Ctrl-C is Python's."""
    for variable in (*model.variables, *model.optimizer.variables):
        assert np.isfinite(np.asarray(variable)).all(), variable.path
    assert np.isfinite(model.predict(X, verbose=0)).all()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def hooked(hook: str, act: Callable[[], None]) -> keras.callbacks.Callback:
    """A callback that does something in one of its hooks."""
    callback = keras.callbacks.Callback()
    setattr(callback, hook, lambda *_, **__: act())
    return callback


@pytest.mark.parametrize(
    "hook",
    ["on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_test_begin",
     "on_test_batch_begin", "on_test_batch_end", "on_epoch_end", "on_train_end"],
)  # fmt: skip
def test_a_press_within_a_hook_is_raised_there(hook: str) -> None:
    """On JAX the variables of a model are away between the batches of `evaluate`."""
    done: list[str] = []

    def act() -> None:
        press()
        done.append("went on")

    model = new_model()
    with pytest.raises(KeyboardInterrupt):
        fit(model, callbacks=[hooked(hook, act)])
    assert not done
    check(model)


def test_a_callback_may_take_it_and_stop_the_training() -> None:
    model = new_model()

    def act() -> None:
        try:
            press()
        except KeyboardInterrupt:
            model.stop_training = True

    history = fit(model, epochs=5, callbacks=[hooked("on_epoch_end", act)])
    assert history.epoch == [0]
    check(model)


def _presses(model: Any, wanted: int) -> int:
    """Trains, with a press before one of Shoal's lines; returns how many there were."""
    counted = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal counted
        if not frame.f_code.co_filename.startswith(HERE):
            return None
        if event == "line":
            counted += 1
            if counted == wanted:
                press()
        return trace

    sys.settrace(trace)
    try:
        fit(model)
    finally:
        sys.settrace(None)
    return counted


def test_a_press_at_any_line_leaves_a_whole_model() -> None:
    fit(new_model())  # a process does some things once
    count = _presses(new_model(), 0)
    assert count > 5000
    model = new_model()
    for wanted in np.linspace(1, 0.95 * count, 12).astype(int):
        with pytest.raises(KeyboardInterrupt):
            _presses(model, int(wanted))
        check(model)
    fit(model)


@pytest.mark.parametrize("verb", ["evaluate", "predict"])
def test_scores_are_interrupted_between_batches(verb: str) -> None:
    model = new_model()
    fit(model)
    hook = "on_test_batch_end" if verb == "evaluate" else "on_predict_batch_end"
    given = (X, Y) if verb == "evaluate" else (X,)
    with pytest.MonkeyPatch.context() as patch:
        plain = getattr(keras.callbacks.CallbackList, hook)

        def pressed(self: Any, *arguments: Any, **named: Any) -> None:
            press()
            plain(self, *arguments, **named)

        patch.setattr(keras.callbacks.CallbackList, hook, pressed)
        with pytest.raises(KeyboardInterrupt):
            getattr(shoal, verb)(model, *given, batch_size=16, workers=1, verbose=0)
    check(model)


FORKED = """
import os, sys
import keras, numpy as np, shoal

class Fork(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            child = os.fork()
            if not child:
                raise SystemExit(7)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            print("child", code, flush=True)

x = np.zeros((256, 1), "f4")
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
try:
    history = shoal.fit(model, x, x, batch_size=8, workers=2, epochs=3, verbose=0,
                        callbacks=[Fork()], run=sys.argv[1])
except SystemExit as error:
    os._exit(error.code)  # libraries of a fork do not always end well
found = history.run.summary()
print(found.status, found.samples_committed, found.workers_lost)
"""


@pytest.mark.process
@pytest.mark.timeout(120)
def test_a_fork_that_leaves_a_run_by_an_exception_does_it_no_harm(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["child 7", "finished 768 0"], done.stderr


@pytest.mark.parametrize("grace_s", [0.0, 30.0])
def test_no_killed_process_is_left_after_a_second_press(grace_s: float) -> None:
    """Remaining waits are short then, but not the wait for what SIGKILL ends."""
    launcher = ProcessLauncher()
    tokens = [launcher.start(Role(target="time:sleep", name="w")) for _ in range(3)]
    processes = [psutil.Process(launcher.pid(token)) for token in tokens]
    for process in processes:
        process.suspend()

    def end() -> None:
        with undisturbed():
            press()
            press()
            launcher.close(grace_s)

    with pytest.raises(KeyboardInterrupt):
        end()
    assert not [process for process in processes if process.is_running()]


@pytest.mark.process
@pytest.mark.timeout(120)
def test_a_press_ends_an_ensemble_whose_processes_are_stopped() -> None:
    """Its members are trained in threads, which no press reaches."""
    children: list[psutil.Process] = []
    main = threading.main_thread().ident
    lock = threading.Lock()  # members share the callback
    assert main is not None

    class Once(keras.callbacks.Callback):
        def __deepcopy__(self, _memo: object) -> Once:
            return self

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            with lock:
                if children:
                    return
                children.extend(psutil.Process().children(recursive=True))
                for child in children:
                    child.suspend()
                signal.pthread_kill(main, signal.SIGINT)

    model = new_model()
    with pytest.raises(KeyboardInterrupt):
        fit(
            model, cluster="local", strategy="ensemble", workers=2, epochs=1000,
            validation_data=None, callbacks=[Once()],
        )  # fmt: skip
    assert len(children) >= 2
    assert not any(child.is_running() for child in children)
    check(model)
