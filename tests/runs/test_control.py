"""A run stops when its folder says so, wherever the request comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

import shoal
from shoal.errors import ConfigError
from shoal.runs.catalogue import list_runs, read_summary
from shoal.runs.control import (
    LOCAL_S,
    REMOTE_S,
    STOP,
    StopRequest,
    StopWatch,
    ask_stop,
    clear_stop,
    read_stop,
)
from shoal.runs.events import read_events
from shoal.runs.folder import Folder
from shoal.training import inline
from tests.api.problems import line, linear


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"by": 7, "time": -1}'])
def test_a_request_that_cannot_be_understood_is_one(content: bytes, tmp_path: Path):
    folder = Folder.at(tmp_path)
    assert read_stop(folder) is None
    folder.write(STOP, content)
    assert read_stop(folder) == StopRequest(by="unknown", time=0.0)
    clear_stop(folder)
    clear_stop(folder)
    assert read_stop(folder) is None


def test_a_local_folder_is_looked_at_once_a_second(tmp_path: Path):
    now = 0.0
    folder = Folder.at(tmp_path)
    watch = StopWatch(folder, clock=lambda: now)
    assert watch.poll() is None
    asked = ask_stop(folder, by="ann")
    now = LOCAL_S / 2
    assert watch.poll() is None
    now = LOCAL_S
    assert watch.poll() == asked
    clear_stop(folder)
    assert watch.poll() == asked


def test_a_storage_is_looked_at_in_a_thread(tmp_path: Path):
    now = 0.0
    folder = Folder.at(f"memory://{tmp_path.name}")
    watch = StopWatch(folder, clock=lambda: now)
    asked = ask_stop(folder, by="ann")
    watch.poll()
    watch.close()
    assert watch.poll() == asked
    quiet = StopWatch(folder.child("other"), clock=lambda: now)
    assert quiet.poll() is None
    quiet.close()
    ask_stop(folder.child("other"), by="bob")
    now = REMOTE_S / 2
    quiet.poll()
    quiet.close()
    assert quiet.poll() is None


def test_a_folder_that_takes_no_file(tmp_path: Path):
    (tmp_path / "control").touch()
    with pytest.raises(ConfigError, match="cannot be asked to stop"):
        ask_stop(Folder.at(tmp_path), by="ann")


class Ask(keras.callbacks.Callback):
    """Asks its run to stop when its second epoch ends."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            [run] = list_runs(self._root)
            ask_stop(Folder.at(run.url), by="ann")


def check_was_stopped(root: Path, model: Any) -> None:
    """Checks that the only run was asked to stop, and kept what it had."""
    [run] = list_runs(root)
    folder = Folder.at(run.url)
    summary = read_summary(folder)
    assert summary.status == "interrupted"
    assert folder.exists("models/last.keras")
    [asked] = [e for e in read_events(folder) if e["kind"] == "stop_asked"]
    assert asked["by"] == "ann"
    assert float(abs(model.get_weights()[0]).sum()) > 0


@pytest.mark.process
def test_a_run_that_is_asked_ends_as_by_ctrl_c(tmp_path: Path, kept: shoal.Session):
    given: dict[str, Any] = {"run": str(tmp_path), "verbose": 0, "batch_size": 16}
    given |= {"workers": 1, "callbacks": [Ask(tmp_path)], "epochs": 100_000}
    model = linear()
    with pytest.raises(KeyboardInterrupt):
        kept.fit(model, *line(), **given)
    check_was_stopped(tmp_path, model)


def test_a_run_of_simulated_workers_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # On a fast machine epochs are shorter than the time between two reports, and none
    # tells of leases: between epochs there are none.
    monkeypatch.setattr(inline, "LEASES_S", 0.0)
    monkeypatch.setattr(inline, "FLUSH_S", 0.0)
    given: dict[str, Any] = {"run": str(tmp_path), "verbose": 0, "batch_size": 16}
    given |= {"workers": 2, "callbacks": [Ask(tmp_path)], "epochs": 100_000}
    model = linear()
    with pytest.raises(KeyboardInterrupt):
        shoal.fit(model, *line(), strategy="aeasgd", cluster="inline", **given)
    check_was_stopped(tmp_path, model)
    [run] = list_runs(tmp_path)
    [first, *_] = [e for e in read_events(Folder.at(run.url)) if e["kind"] == "leases"]
    [epoch] = first["epochs"]
    assert epoch["rows"] == len(line()[0])
    bounds = epoch["committed"]
    assert bounds == sorted(bounds)
    assert 0 < sum(bounds[1::2]) - sum(bounds[::2]) <= epoch["rows"]
