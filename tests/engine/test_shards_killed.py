"""Servers that share a vector are killed as processes, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

from shoal.engine.controller import shared_servers
from shoal.engine.transport import heartbeat
from shoal.runs.events import read_events
from shoal.runs.folder import Folder
from tests.engine import test_faults
from tests.engine.test_faults import (
    ROWS,
    KillServer,
    StopServer,
    be_patient,
    fit,
    kinds,
    kinds_so_far,
    servers_of_this_process,
    summary,
)
from tests.ray_nodes import EVERYWHERE_LONG, Place
from tests.support.models import wide


@pytest.fixture(autouse=True)
def _runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_RUNS", str(tmp_path))
    monkeypatch.setattr(test_faults, "model", wide)
    be_patient(monkeypatch)


class KillEach(keras.callbacks.Callback):
    """Kills the oldest server whenever each has a standby, until each was killed once.

    Args:
        servers: Number of servers that lead.
    """

    def __init__(self, servers: int) -> None:
        super().__init__()
        self.servers, self.killed = servers, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        ready = kinds_so_far().count("standby_ready")
        if self.killed < self.servers and ready == self.servers + self.killed:
            self.killed += 1
            servers_of_this_process()[0].kill()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        ready = kinds_so_far().count("standby_ready")
        self.model.stop_training = ready >= 2 * self.servers


@pytest.mark.process
@EVERYWHERE_LONG
@pytest.mark.parametrize(
    ("strategy", "servers"),
    [("aeasgd", 2), pytest.param("all_reduce", 3, marks=pytest.mark.slow)],
)
def test_each_server_is_killed_and_followed(
    place: Place, strategy: str, servers: int
) -> None:
    killer = KillEach(servers)
    given: dict[str, Any] = {"servers": servers, "standby": 1, "epochs": 9999}
    history = fit(strategy, place, callbacks=[killer], **given)
    assert killer.killed == servers
    assert summary(history).samples_committed == ROWS * len(history.history["loss"])
    told = kinds(history)
    names = "server_lost", "server_replaced"
    assert [told.count(name) for name in names] == [servers, servers]
    assert not {"worker_lost", "rollback"} & set(told)


class KillPart(KillServer):
    """Kills a server that orders nothing."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        if self.seen == self.batch:
            servers_of_this_process()[-1].kill()


class StopPart(StopServer):
    """Stops a server that orders nothing: its connections stay open and silent."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        if self.seen == self.batch:
            servers_of_this_process()[-1].suspend()


@pytest.mark.process
@EVERYWHERE_LONG
def test_a_server_that_hangs_is_lost_before_its_part_is_late(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "FLOOR_S", 2.0)
    monkeypatch.setattr(shared_servers, "PART_S", 1.0)
    history = fit("aeasgd", place, epochs=6, callbacks=[StopPart(1)], servers=2)
    found = summary(history)
    assert found.samples_committed == found.samples_expected == ROWS * 6
    [lost] = [e for e in read_events(Folder.at(history.run.url))
              if e["kind"] == "server_lost"]  # fmt: skip
    assert "hung: it answered nothing for more than" in lost["reason"]


class StopSecond(keras.callbacks.Callback):
    """Stops a server that orders nothing once all have standbys; ends the run after."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stopped = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self.is_stopped and kinds_so_far().count("standby_ready") == 2:
            self.is_stopped = True
            servers_of_this_process()[1].suspend()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = "server_replaced" in kinds_so_far()


@pytest.mark.process
@EVERYWHERE_LONG
def test_workers_that_wait_for_a_server_that_hangs_are_not_lost(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hang for longer than a worker may."""
    monkeypatch.setattr(heartbeat, "STANDBY_FLOOR_S", 12.0)
    given: dict[str, Any] = {"servers": 2, "standby": 1, "epochs": 9999}
    history = fit("aeasgd", place, callbacks=[StopSecond()], **given)
    assert summary(history).samples_committed == ROWS * len(history.history["loss"])
    told = kinds(history)
    assert [told.count(k) for k in ("server_lost", "server_replaced")] == [1, 1]
    assert not {"worker_lost", "rollback"} & set(told)


@pytest.mark.process
@EVERYWHERE_LONG
def test_without_a_standby_all_servers_go_back_together(place: Place) -> None:
    """Parts of two moments would not fit together."""
    history = fit("aeasgd", place, epochs=6, callbacks=[KillPart(1)], servers=2)
    found = summary(history)
    assert found.samples_committed == found.samples_expected == ROWS * 6
    assert history.history["loss"][-1] < history.history["loss"][0]
    told = kinds(history)
    assert [told.count(k) for k in ("server_lost", "server_replaced")] == [1, 1]
    assert told.count("worker_lost") == 0
