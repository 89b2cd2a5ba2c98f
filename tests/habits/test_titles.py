"""What `ps` and `shoal runs status` say of the processes of a run."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.app import app
from shoal.runs.catalogue import find_run
from shoal.runs.events import read_events
from shoal.runs.worker_status import process_statuses, worker_statuses

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

X = np.zeros((256, 1), "f4")


def new_model() -> Any:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def titles() -> dict[str, int]:
    """Titles of the processes that this one has started, and their numbers."""
    found: dict[str, int] = {}
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # others may be ending
            title = " ".join(child.cmdline()).strip("\0 ")
            if title.startswith("shoal: "):
                found[title] = child.pid
    return found


class Look(keras.callbacks.Callback):
    """Looks at the end of each epoch."""

    def __init__(self, look: Callable[[int], None]) -> None:
        super().__init__()
        self._look = look

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._look(epoch)


def status(root: Path, run: str) -> str:
    done = CliRunner().invoke(app, ["runs", "status", run, "--root", str(root)])
    assert done.exit_code == 0, done.output
    return done.output


def test_processes_have_titles_and_status_has_their_numbers(
    kept: shoal.Session, tmp_path: Path
) -> None:
    found: dict[str, int] = {}
    said: list[str] = []

    def look(_epoch: int) -> None:
        found.update(titles())
        [folder] = tmp_path.iterdir()
        said.append(status(tmp_path, folder.name))

    history = kept.fit(
        new_model(), X, X, batch_size=8, workers=2, epochs=1, verbose=0,
        run=str(tmp_path), callbacks=[Look(look)],
    )  # fmt: skip
    run, here = history.run.id, socket.gethostname()
    [text] = said
    for name in ("worker 0", "worker 1", "server"):
        pid = found[f"shoal: {run} {name}"]
        [line] = [line for line in text.splitlines() if line.startswith(name)]
        assert f"process {pid} on {here}" in line
    # They wait for another run now, and do not say that they work for this one.
    until = threading.Event()
    while any(run in title for title in titles()):
        until.wait(0.02)
    assert "server  process" not in status(tmp_path, run)


@pytest.mark.slow
def test_a_process_with_another_role_changes_its_title(tmp_path: Path) -> None:
    """A standby that leads, a spare process that works, an evaluator."""
    found: dict[int, dict[str, int]] = {}
    records: dict[int, dict[str, int]] = {}

    def wait_for(run: str, *names: str) -> dict[str, int]:
        wanted = {f"shoal: {run} {name}" for name in names}
        while not wanted <= titles().keys():
            threading.Event().wait(0.02)
        return titles()

    def look(epoch: int) -> None:
        [folder] = tmp_path.iterdir()
        run = folder.name
        names = ["worker 0", "worker 1", "server", "evaluator"]
        if epoch == 0:
            found[epoch] = wait_for(run, *names)
        events = list(read_events(find_run(run, tmp_path)))
        records[epoch] = {one.name: one.pid for one in process_statuses(events)}
        records[epoch] |= {f"worker {w.rank}": w.pid for w in worker_statuses(events)}
        if epoch == 1:
            os.kill(records[epoch]["server"], signal.SIGKILL)
        if epoch == 3:
            found[epoch] = wait_for(run, *names)

    shoal.fit(
        new_model(), X, X, batch_size=8, workers=2, epochs=5, verbose=0, standby=1,
        validation_data=(X, X), validation="async", run=str(tmp_path),
        callbacks=[Look(look)], strategy="aeasgd",
    )  # fmt: skip
    [folder] = tmp_path.iterdir()
    for epoch in (0, 3):
        for name in ("server", "evaluator", "worker 0", "worker 1"):
            assert found[epoch][f"shoal: {folder.name} {name}"] == records[epoch][name]
    assert found[0][f"shoal: {folder.name} server"] != records[3]["server"]


def test_runs_of_older_versions_are_read(tmp_path: Path) -> None:
    """They record no process but workers, and these without a machine."""
    events = [
        {"kind": "run_created", "host": "node-c"},
        {"kind": "worker_started", "rank": 0, "pid": 7},
        {"kind": "worker_started", "rank": 1, "pid": 8, "node": "10.0.0.8"},
    ]
    assert process_statuses(events) == []
    assert [(w.pid, w.node) for w in worker_statuses(events)] == [
        (7, "node-c"),
        (8, "10.0.0.8"),
    ]
    assert [w.node for w in worker_statuses(events[1:])] == ["localhost", "10.0.0.8"]


def test_a_spare_process_that_works_is_a_worker() -> None:
    events = [
        {"kind": "process_started", "name": "spare", "pid": 5},
        {"kind": "process_started", "name": "spare", "pid": 6},
        {"kind": "worker_started", "rank": 0, "pid": 5},
        {"kind": "process_started", "name": "standby", "pid": 9},
        {"kind": "process_ended", "name": "standby"},
        {"kind": "process_started", "name": "server", "pid": 9},
    ]
    assert [(h.name, h.pid) for h in process_statuses(events)] == [
        ("server", 9),
        ("spare", 6),
    ]
