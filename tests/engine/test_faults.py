"""Killed processes: no sample is lost or counted twice, and nothing is left."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import pytest

import shoal
from shoal.engine.transport import heartbeat
from shoal.engine.worker.spec import WATCH, Moment
from shoal.errors import ClusterError, WorkerFailed, WorkerLost
from shoal.runs.events import read_events, unpack_exchanges
from shoal.runs.folder import Folder
from shoal.runs.store import open_run
from shoal.testing import faults
from tests.ray_nodes import EVERYWHERE, EVERYWHERE_LONG, Place, listens
from tests.support.watch import Watch

# Threads have shown them (`test_standby.py`, `test_training.py`); `make matrix` starts
# processes for these as well.
ALSO_ROUNDS = pytest.param("local_sgd", marks=pytest.mark.slow)
ALSO_GRADIENTS = pytest.param("all_reduce", marks=pytest.mark.slow)

ROWS, EPOCHS, BATCH = 1000, 3, 32


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((ROWS, 4)).astype("float32")
    return x, (x[:, :1] - x[:, 1:2] > 0).astype("float32")


def model() -> Any:
    keras.utils.set_random_seed(1)
    net = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    net.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["AUC"])
    return net


@pytest.fixture(autouse=True)
def _runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_RUNS", str(tmp_path))


def fit(strategy: str, place: Place, **fields: Any) -> Any:
    given: dict[str, Any] = {
        "workers": 2, "epochs": EPOCHS, "batch_size": BATCH, "verbose": 0,
        "shuffle": False, "strategy": strategy, "run": "faults", "threads": 1,
        "cluster": place.cluster, **fields,
    }  # fmt: skip
    return shoal.fit(model(), *data(), **given)


def summary(history: Any) -> Any:
    return open_run(history.run.id, Path(history.run.url).parent).summary()


def kinds(history: Any) -> list[str]:
    return [event["kind"] for event in read_events(Folder.at(history.run.url))]


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes servers silent for long: only killed ones are lost."""
    monkeypatch.setattr(heartbeat, "FLOOR_S", 120.0)
    monkeypatch.setattr(heartbeat, "STANDBY_FLOOR_S", 120.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


class EndsAfter(Watch):
    """Ends a run after an event: how many epochs that takes, its workers decide.

    Args:
        kind: Kind of the event.
        least: Epochs that it has in any case.
    """

    def __init__(self, kind: str, least: int) -> None:
        super().__init__(Path(os.environ["SHOAL_RUNS"]))
        self.kind, self.least = kind, least

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch + 1 >= self.least:
            super().on_epoch_end(epoch, logs)

    def is_over(self, kinds: Counter[str]) -> bool:
        return kinds[self.kind] > 0


@pytest.mark.process
@EVERYWHERE
@pytest.mark.parametrize("strategy", ["aeasgd", ALSO_ROUNDS, "all_reduce"])
def test_a_killed_worker_is_replaced(place: Place, strategy: str) -> None:
    until = EndsAfter("worker_replaced", least=10)
    with faults.kill(rank=1, step=12):
        history = fit(strategy, place, epochs=9999, callbacks=[until])
    found, losses = summary(history), history.history["loss"]
    assert found.samples_committed == ROWS * len(losses)
    assert found.workers_lost == 1
    assert losses[-1] < losses[0]


@pytest.mark.process
@EVERYWHERE_LONG
def test_a_worker_that_hangs_is_found_and_replaced(place: Place) -> None:
    """The lost worker is never reported again: no error, no end of its connection."""
    with faults.stop(rank=1, step=12):
        history = fit("all_reduce", place, epochs=10)
    found = summary(history)
    assert found.samples_committed == found.samples_expected == ROWS * 10
    assert found.workers_lost == 1
    reasons = [
        event["reason"]
        for event in read_events(Folder.at(history.run.url))
        if event["kind"] == "worker_left"
    ]
    assert any("hung: silent for more than" in reason for reason in reasons)


class KillServer(keras.callbacks.Callback):
    """Kills the server of a run, which is the first process it started."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch, self.seen = batch, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        if self.seen == self.batch:
            children = psutil.Process().children()
            min(children, key=lambda child: child.create_time()).kill()


@pytest.mark.process
@EVERYWHERE_LONG
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("strategy", "batch"),
    [
        ("aeasgd", 1),
        pytest.param("local_sgd", 12, marks=pytest.mark.slow),
        pytest.param("all_reduce", 70, marks=pytest.mark.slow),
    ],
)
def test_a_killed_server_is_replaced(place: Place, strategy: str, batch: int) -> None:
    """Once before the first checkpoint, and once in an epoch after one."""
    history = fit(strategy, place, epochs=6, callbacks=[KillServer(batch)])
    found = summary(history)
    assert found.samples_committed == found.samples_expected == ROWS * 6
    assert len(history.history["loss"]) == 6
    assert history.history["loss"][-1] < history.history["loss"][0]
    told = kinds(history)
    assert [told.count(k) for k in ("server_lost", "server_replaced")] == [1, 1]
    assert told.count("worker_lost") == 0


class KillAtEnd(KillServer):
    """Kills the server at an epoch's end, before a checkpoint contains it."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Waits for the end."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_train_batch_end(epoch, logs)


@pytest.mark.process
@EVERYWHERE_LONG
@pytest.mark.parametrize("strategy", ["aeasgd", ALSO_ROUNDS, ALSO_GRADIENTS])
def test_a_reported_epoch_that_was_lost_is_trained_again(
    place: Place, strategy: str
) -> None:
    """Without it, the next epoch was trained on the center from before it."""
    history = fit(strategy, place, callbacks=[KillAtEnd(2)])
    found = summary(history)
    assert found.samples_committed == found.samples_expected == ROWS * EPOCHS
    assert history.epoch == list(range(EPOCHS))
    counts = dict.fromkeys(range(EPOCHS), 0)
    for event in read_events(Folder.at(history.run.url)):
        if event["kind"] == "rollback":
            counts |= {epoch: 0 for epoch in counts if epoch not in event["committed"]}
        for record in unpack_exchanges(event) if event["kind"] == "exchanges" else ():
            counts[record["epoch"]] += record["samples"]
    assert set(counts.values()) == {ROWS}


class KillLeader(keras.callbacks.Callback):
    """Kills a server as soon as a standby has its state, several times.

    Training ends when the last standby knows it all, after two epochs.

    Args:
        times: Number of kills.
        who: "server" or "standby".
    """

    def __init__(self, times: int, who: str) -> None:
        super().__init__()
        self.times, self.who, self.killed, self.left = times, who, 0, 2

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.times > self.killed < kinds_so_far().count("standby_ready"):
            self.killed += 1
            servers_of_this_process()[0 if self.who == "server" else -1].kill()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.left -= kinds_so_far().count("standby_ready") > self.times
        self.model.stop_training = self.left == 0


def kinds_so_far() -> list[str]:
    [folder] = Path(os.environ["SHOAL_RUNS"]).iterdir()
    return [event["kind"] for event in read_events(Folder.at(str(folder)))]


def servers_of_this_process() -> list[psutil.Process]:
    """The leader, then its standby: only they listen, and the leader is older."""
    children = sorted(psutil.Process().children(), key=lambda c: c.create_time())
    return [child for child in children if listens(child)]


@pytest.mark.process
@EVERYWHERE_LONG
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("strategy", ["aeasgd", ALSO_GRADIENTS])
def test_a_standby_takes_over(place: Place, strategy: str) -> None:
    """Twice: the standby of the standby too. No worker is lost, nothing repeated."""
    history = fit(
        strategy, place, epochs=9999, callbacks=[KillLeader(2, "server")], standby=1
    )
    epochs = len(history.history["loss"])
    assert summary(history).samples_committed == ROWS * epochs
    told = kinds(history)
    assert [told.count(k) for k in ("server_lost", "server_replaced")] == [2, 2]
    assert not {"worker_lost", "rollback"} & set(told)


@pytest.mark.process
@EVERYWHERE_LONG
@pytest.mark.usefixtures("patient")
def test_a_standby_that_is_lost_is_replaced(place: Place) -> None:
    history = fit(
        "aeasgd", place, epochs=9999, callbacks=[KillLeader(1, "standby")], standby=1
    )
    epochs = len(history.history["loss"])
    assert summary(history).samples_committed == ROWS * epochs
    told = kinds(history)
    assert told.count("standby_lost") == 1
    assert told.count("standby_ready") == 2
    assert not {"worker_lost", "server_lost"} & set(told)


class KillWorker(keras.callbacks.Callback):
    """Kills a worker once a spare process waits; trains on until it is replaced."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place, self.waiting = place, set[int]()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.waiting:
            return
        children = self.place.workers()
        workers = pids_so_far()
        if len(children) == 3 and len(workers) == 2:
            self.waiting = {child.pid for child in children} - set(workers)
            psutil.Process(workers[0]).kill()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = "worker_replaced" in kinds_so_far()


def pids_so_far() -> list[int]:
    [folder] = Path(os.environ["SHOAL_RUNS"]).iterdir()
    events = read_events(Folder.at(str(folder)))
    return [event["pid"] for event in events if event["kind"] == "worker_started"]


@pytest.mark.process
@EVERYWHERE_LONG
def test_a_spare_process_takes_the_place_of_a_lost_worker(place: Place) -> None:
    killer = KillWorker(place)
    history = fit("aeasgd", place, epochs=9999, callbacks=[killer], spares=1)
    epochs = len(history.history["loss"])
    assert summary(history).samples_committed == ROWS * epochs
    assert pids_so_far()[2:] == list(killer.waiting)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the fixed part of the limits; the measured part stays."""
    monkeypatch.setattr(heartbeat, "FLOOR_S", 2.0)


class StopServer(KillServer):
    """Stops the server of a run: its connections stay open and silent."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        if self.seen == self.batch:
            children = psutil.Process().children()
            min(children, key=lambda child: child.create_time()).suspend()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if "server_lost" in kinds_so_far():  # a busy server that follows is not lost
            heartbeat.FLOOR_S = 120.0


@pytest.mark.process
@EVERYWHERE_LONG
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("strategy", ["aeasgd", ALSO_GRADIENTS])
def test_a_server_that_hangs_is_found_and_replaced(place: Place, strategy: str) -> None:
    history = fit(strategy, place, epochs=6, callbacks=[StopServer(12)])
    found = summary(history)
    assert found.samples_committed == found.samples_expected == ROWS * 6
    events = list(read_events(Folder.at(history.run.url)))
    [lost] = [event for event in events if event["kind"] == "server_lost"]
    assert "hung: it answered nothing for more than" in lost["reason"]
    assert kinds(history).count("server_replaced") == 1


class StopStart(keras.callbacks.Callback):
    """Stops the youngest worker, which has no spec yet."""

    def on_train_begin(self, logs: Any = None) -> None:
        children = psutil.Process().children()
        max(children, key=lambda child: (child.create_time(), child.pid)).suspend()


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.usefixtures("impatient")
def test_a_worker_that_hangs_before_it_joined_is_found_and_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other workers of all_reduce wait for it."""
    monkeypatch.setattr(heartbeat, "START_TIMES", 1.0)
    history = fit("all_reduce", Place(), callbacks=[StopStart()])
    found = summary(history)
    assert found.samples_committed == found.samples_expected == ROWS * EPOCHS
    [lost] = [
        event
        for event in read_events(Folder.at(history.run.url))
        if event["kind"] == "worker_lost"
    ]
    assert "hung: not ready after" in lost["reason"]


@pytest.mark.process
@EVERYWHERE
def test_without_restarts_a_lost_server_ends_the_run(place: Place) -> None:
    with pytest.raises(ClusterError, match="no replacement was left"):
        fit("aeasgd", place, max_restarts=0, callbacks=[KillServer(1)])


@pytest.mark.process
@EVERYWHERE_LONG
def test_all_reduce_goes_on_with_the_same_curve_after_all_workers_are_killed(
    place: Place,
) -> None:
    # In the second of three epochs, both in the same step, which nobody can end.
    with faults.kill(rank=0, step=40).kill(rank=1, step=40):
        history = fit("all_reduce", place)
    found = summary(history)
    assert found.samples_committed == found.samples_expected == ROWS * EPOCHS
    assert found.workers_lost == 2
    assert kinds(history).count("rollback") == 1
    assert kinds(history).count("worker_replaced") == 2
    plain = model()
    given = {"epochs": EPOCHS, "batch_size": BATCH, "shuffle": False, "verbose": 0}
    expected = plain.fit(*data(), **given)
    for ours, theirs in zip(
        history.model.get_weights(), plain.get_weights(), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    for name, values in expected.history.items():
        assert history.history[name] == pytest.approx(values, rel=1e-3)


@pytest.mark.process
@EVERYWHERE_LONG
def test_without_restarts_a_lost_worker_ends_the_run_with_the_reason(
    place: Place,
) -> None:
    watch = faults.kill(rank=0, step=3)
    with watch, pytest.raises(WorkerLost, match="0 of 0 restarts used"):
        fit("aeasgd", place, workers=1, max_restarts=0)


@pytest.mark.process
@EVERYWHERE_LONG
def test_without_restarts_the_others_go_on(place: Place) -> None:
    with faults.kill(rank=1, step=12):
        found = summary(fit("all_reduce", place, max_restarts=0, workers=(1, 2)))
    assert found.samples_committed == ROWS * EPOCHS
    assert found.workers_lost == 1


@pytest.mark.process
@EVERYWHERE
def test_code_that_raises_stops_the_run_with_rank_and_step(place: Place) -> None:
    with faults.fail(rank=1, step=5), pytest.raises(WorkerFailed) as caught:
        fit("all_reduce", place)
    assert (caught.value.rank, caught.value.step) == (1, 5)
    assert "a test has failed this worker" in caught.value.traceback


# ------------------------------------------------------------- the tool itself


def test_faults_are_due_at_their_rank_step_and_incarnation() -> None:
    [fault] = faults.leave(rank=1, step=5).faults
    assert fault.is_due(Moment(1, 1, 5))
    assert fault.is_due(Moment(1, 1, 9))
    for moment in (Moment(0, 1, 5), Moment(1, 2, 5), Moment(1, 1, 4)):
        assert not fault.is_due(moment)


def test_a_chain_holds_all() -> None:
    chain = faults.stop(rank=0, step=1).kill(rank=1, step=2).fail(rank=2, step=3)
    chain = chain.leave(rank=3, step=4, incarnation=2).stop(rank=4, step=5)
    assert [f.action for f in chain.faults] == ["stop", "kill", "fail", "leave", "stop"]
    chain(Moment(9, 1, 9))
    with pytest.raises(ConnectionAbortedError):
        chain(Moment(3, 2, 4))


def test_faults_are_active_within_the_block_only() -> None:
    assert WATCH.get() is None
    with faults.kill(rank=0, step=1) as active:
        assert WATCH.get() is active
    assert WATCH.get() is None
