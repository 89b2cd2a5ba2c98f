"""Processes that stay for the next fit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import pytest

import shoal
from shoal.errors import ConfigError, WorkerFailed
from shoal.runs.events import read_events
from shoal.runs.folder import Folder

ROWS = 400


@pytest.fixture(autouse=True)
def _runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_RUNS", str(tmp_path))


def data(columns: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((ROWS, columns)).astype("float32")
    return x, x.sum(1, keepdims=True)


def model(columns: int) -> Any:
    keras.utils.set_random_seed(1)
    net = keras.Sequential([keras.Input((columns,)), keras.layers.Dense(1)])
    net.compile(keras.optimizers.Adam(0.05), "mse")
    return net


def fit(session: shoal.Session, columns: int = 4, **fields: Any) -> Any:
    given = {"workers": 2, "epochs": 2, "verbose": 0, **fields}
    return session.fit(model(columns), *data(columns), **given)


def pids(history: Any) -> set[int]:
    events = read_events(Folder.at(history.run.url))
    return {event["pid"] for event in events if event["kind"] == "worker_started"}


class Explode(keras.layers.Layer):
    """Works in one process only."""

    def __init__(self, home: int, **others: Any) -> None:
        super().__init__(**others)
        self.home = home

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "home": self.home}

    def call(self, inputs: Any) -> Any:
        if os.getpid() != self.home:
            raise RuntimeError("boom")
        return inputs


@pytest.mark.process
def test_kept_workers_give_the_results_of_new_ones() -> None:
    """Another model, another strategy, other data: the same processes, the same end."""
    with shoal.Session() as session:
        first = fit(session, strategy="all_reduce")
        second = fit(session, columns=7, strategy="aeasgd", standby=1)
        third = fit(session, strategy="all_reduce", epochs=3)
        fourth = fit(session, strategy="all_reduce", epochs=3)  # by the same programs
        assert pids(first) == pids(second) == pids(third) == pids(fourth)
        assert len(pids(first)) == 2
        for history, epochs in ((first, 2), (second, 2), (third, 3)):
            assert history.run.summary().samples_committed == ROWS * epochs
    alone = shoal.fit(model(4), *data(4), workers=2, epochs=3, verbose=0)
    for one in (third, fourth):
        assert alone.history["loss"] == pytest.approx(one.history["loss"], rel=1e-5)
    assert psutil.Process().children() == []


@pytest.mark.process
def test_a_fit_that_fails_costs_the_processes_and_not_the_session() -> None:
    with shoal.Session() as session:
        first = fit(session)
        net = keras.Sequential(
            [keras.Input((4,)), Explode(os.getpid()), keras.layers.Dense(1)]
        )
        net.compile("sgd", "mse")
        with pytest.raises(WorkerFailed, match="boom"):
            session.fit(net, *data(4), workers=2, verbose=0)
        assert psutil.Process().children() == []
        again = fit(session)
        assert not pids(first) & pids(again)
        fewer = fit(session, workers=1)
        assert len(pids(fewer)) == 1
    assert psutil.Process().children() == []


@pytest.mark.process
@pytest.mark.parametrize("who", ["a worker", "the server"])
def test_a_worker_that_dies_between_two_fits_is_no_loss(who: str) -> None:
    with shoal.Session() as session:
        workers = pids(fit(session))
        others = {child.pid for child in psutil.Process().children()} - workers
        gone = psutil.Process(min(workers if who == "a worker" else others))
        gone.kill()
        assert session._pool is not None
        while gone.is_running() and gone.status() != psutil.STATUS_ZOMBIE:
            pass
        again = fit(session, max_restarts=0)
        assert len(pids(again) & workers) == (1 if who == "a worker" else 2)
        assert again.run.summary().samples_committed == 2 * ROWS


@pytest.mark.process
def test_a_fit_with_nothing_to_train_does_not_break_a_session() -> None:
    with shoal.Session() as session:
        with pytest.warns(match="leaves nothing to train"):
            fit(session, epochs=1, initial_epoch=1)
        assert fit(session).run.summary().samples_committed == 2 * ROWS


class Say(keras.layers.Layer):
    """Prints on workers."""

    def call(self, inputs: Any) -> Any:
        print("hello", flush=True)
        return inputs


@pytest.mark.process
def test_output_of_workers_belongs_to_one_fit(capsys: pytest.CaptureFixture) -> None:
    net = keras.Sequential([keras.Input((4,)), Say(), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    with shoal.Session() as session:
        session.fit(net, *data(4), workers=1, echo=True, verbose=0)
        assert "[worker-0] hello" in capsys.readouterr().out
        for echo in (False, True):
            again = fit(session, workers=1, echo=echo)
            assert "hello" not in capsys.readouterr().out
            assert "hello" not in again.run.log_path(0).read_text()
        session.fit(net, *data(4), workers=1, verbose=0, run=False)
        assert "hello" not in again.run.log_path(0).read_text()


@pytest.mark.process
def test_one_fit_at_a_time(kept: shoal.Session) -> None:
    class Nested(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            with pytest.raises(ConfigError, match="trains a model already"):
                fit(kept)

    assert len(fit(kept, callbacks=[Nested()]).history["loss"]) == 2
    assert len(fit(kept).history["loss"]) == 2


def test_a_closed_session_trains_nothing() -> None:
    session = shoal.Session()
    session.close()
    session.close()
    with pytest.raises(ConfigError, match="this session is closed"):
        fit(session)
    with pytest.raises(ConfigError, match=r"'epoch'. Did you mean 'epochs'"):
        shoal.Session().fit(model(4), *data(4), epoch=1)
