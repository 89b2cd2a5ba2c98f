"""The temporary folder is removed in a run, and then processes are killed."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import pytest

import shoal
from shoal.engine.transport import shared_memory
from shoal.errors import DataError
from shoal.runs.events import read_events
from shoal.runs.folder import Folder
from tests.engine.test_faults import data, model, servers_of_this_process


class Cleaner(keras.callbacks.Callback):
    """Removes the temporary folder when an epoch has ended, then kills a process.

    Training ends with the first epoch after its replacement.

    Args:
        folder: Folder that is removed.
        root: Root of the run.
        who: "server", "worker" or "" for nobody.
    """

    def __init__(self, folder: Path, root: str, who: str) -> None:
        super().__init__()
        self.folder, self.root, self.who, self.is_done = folder, root, who, False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self.is_done:
            self.is_done = True
            # At once: a file that is written meanwhile would stop the removal.
            gone = self.folder.rename(self.folder.with_name("removed"))
            shutil.rmtree(gone, ignore_errors=True)
            if self.who == "server":
                servers_of_this_process()[0].kill()
            elif self.who == "worker":
                servers = servers_of_this_process()
                children = psutil.Process().children()
                next(child for child in children if child not in servers).kill()
        kinds = {event["kind"] for event in self.events()}
        self.model.stop_training = not self.who or f"{self.who}_replaced" in kinds

    def events(self) -> list[dict[str, Any]]:
        root = Folder.at(self.root)
        [name] = root.names()
        return list(read_events(root.child(name)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "job" / "tmp"
    found.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(found))
    monkeypatch.setenv("TMPDIR", str(found))
    return found


def fit(folder: Path, root: str, who: str, x: Any = None, **fields: Any) -> Any:
    rows, targets = data()
    given = {"x": rows, "y": targets, "batch_size": 32} if x is None else {"x": x}
    return shoal.fit(
        model(), workers=2, epochs=9999 if who else 2, verbose=0, run=root, threads=1,
        callbacks=[Cleaner(folder, root, who)], **given, **fields,
    )  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize(
    ("strategy", "who", "more"),
    [
        ("aeasgd", "server", {}),
        pytest.param(
            "all_reduce", "worker", {"collective": "shared"}, marks=pytest.mark.slow
        ),
        pytest.param("all_reduce", "server", {"standby": 1}, marks=pytest.mark.slow),
        pytest.param("local_sgd", "worker", {}, marks=pytest.mark.slow),
        pytest.param("all_reduce", "", {}, marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_and_is_saved(
    folder: Path, tmp_path: Path, strategy: str, who: str, more: dict[str, Any]
) -> None:
    """A process killed then is replaced; Keras saves the model in the folder."""
    root = tmp_path / "runs"
    history = fit(folder, str(root), who, strategy=strategy, **more)
    found = history.run.summary()
    assert found.status == "finished"
    assert found.samples_committed == found.samples_expected
    [run] = root.iterdir()
    saved = keras.saving.load_model(run / "models" / "last.keras")
    for ours, theirs in zip(
        saved.get_weights(), history.model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.process
@pytest.mark.slow
def test_logs_of_a_run_on_other_storage(folder: Path) -> None:
    """Logs wait in the temporary folder; a worker that comes later has one, too."""
    root = "memory://temporary-gone"
    history = fit(folder, root, "worker", strategy="aeasgd")
    assert history.run.summary().status == "finished"
    [name] = Folder.at(root).names()
    assert Folder.at(root).child(name).exists("models/last.keras")


@pytest.mark.process
def test_missing_batches_are_reported(folder: Path, tmp_path: Path) -> None:
    """The batches of a generator cannot be made again."""

    def batches() -> Any:
        while True:
            yield np.ones((8, 4), "float32"), np.ones((8, 1), "float32")

    with pytest.raises(DataError, match=r"its folder is not there.* Set TMPDIR"):
        fit(
            folder, str(tmp_path / "runs"), "worker", batches(), strategy="aeasgd",
            steps_per_epoch=300,
        )  # fmt: skip


def test_slots_of_a_killed_server_are_swept_where_folders_are_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    left = here / f"{shared_memory.PREFIX}tag-1"
    left.touch()
    monkeypatch.setattr(shared_memory, "slot_folders", lambda: [folder, here])
    shutil.rmtree(folder)
    shared_memory.sweep("tag")
    assert not left.exists()
