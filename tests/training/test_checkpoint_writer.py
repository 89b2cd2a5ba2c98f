"""Checkpoints that are written aside: what fails, what waits, what stays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import CheckpointError
from shoal.runs.checkpoints import Checkpoint, CheckpointStore
from shoal.runs.folder import Folder
from shoal.training.checkpoint_writer import CHECKPOINTS, CheckpointWriter


def at(epoch: int) -> Checkpoint:
    return Checkpoint(
        number=0, document={"epoch": epoch}, arrays={"vector": np.full(3, epoch)}
    )


def newest(folder: Folder) -> int:
    found = CheckpointStore(folder.child(CHECKPOINTS)).latest(print)
    return -1 if found is None else int(found.document["epoch"])


class Gate:
    """What is written first, and lets the writer through when it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        self.error, self.calls = error, 0

    def __call__(self) -> None:
        self.calls += 1
        self.entered.set()
        self.open.wait()
        if self.error is not None and self.calls == 1:
            raise self.error


def failing(
    folder: Folder, said: list[str], error: Exception
) -> tuple[CheckpointWriter, Gate]:
    """A keeper that cannot write what comes first, at the first time."""
    writer, gate = CheckpointWriter(folder, said.append), Gate(error)
    gate.open.set()
    writer.begin(gate)
    return writer, gate


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder.at(tmp_path)


def test_the_newest_of_those_that_waited_is_kept(
    folder: Folder, said: list[str]
) -> None:
    writer, gate = CheckpointWriter(folder, said.append), Gate()
    writer.begin(gate)
    gate.entered.wait()
    for epoch in range(5):
        writer.keep(at(epoch))
    gate.open.set()
    writer.close()
    assert newest(folder) == 4
    assert len(list((Path(folder.path) / CHECKPOINTS).glob("*.manifest"))) == 1
    assert said == []


def test_a_pending_checkpoint_is_written_at_the_end(
    folder: Folder, said: list[str]
) -> None:
    writer = CheckpointWriter(folder, said.append)
    writer.keep(at(7))
    writer.close()
    writer.close()
    assert newest(folder) == 7


def test_a_storage_failure_is_reported_once_and_retried(
    folder: Folder, said: list[str]
) -> None:
    writer, gate = failing(folder, said, OSError("disk full"))
    gate.entered.wait()
    writer.keep(at(1))
    writer.close()
    assert newest(folder) == 1
    assert gate.calls == 2
    [failed, again] = said
    assert "OSError: disk full" in failed
    assert "there is none yet" in failed
    assert "again" in again


def test_each_checkpoint_is_reported(folder: Folder, said: list[str]) -> None:
    told: list[tuple[str, dict]] = []
    writer = CheckpointWriter(
        folder, said.append, tell=lambda kind, **fields: told.append((kind, fields))
    )
    gate = Gate(OSError("disk full"))
    gate.open.set()
    writer.begin(gate)
    _until(lambda: bool(told))
    writer.keep(replace(at(0), document={"diary": {"epoch": 1, "samples": 64}}))
    writer.close()
    (failed, why), (written, facts) = told
    assert (failed, why["reason"]) == ("checkpoint_failed", "OSError: disk full")
    assert written == "checkpoint_written"
    assert (facts["epoch"], facts["samples"], facts["bytes"]) == (1, 64, 24)
    assert facts["seconds"] > 0


def test_storage_that_stays_away_costs_no_training(
    tmp_path: Path, said: list[str]
) -> None:
    (tmp_path / CHECKPOINTS).write_text("a file where the folder should be")
    writer = CheckpointWriter(Folder.at(tmp_path), said.append)
    for epoch in range(3):
        writer.keep(at(epoch))
    writer.close()
    [failed] = said
    assert "Training goes on" in failed


def test_another_process_takes_the_run_over(folder: Folder, said: list[str]) -> None:
    writer = CheckpointWriter(folder, said.append)
    writer.keep(at(1))
    _until(lambda: newest(folder) == 1)
    CheckpointStore(folder.child(CHECKPOINTS)).open()
    writer.keep(at(2))
    _until(lambda: bool(said))
    with pytest.raises(CheckpointError):
        writer.keep(at(3))
    writer.close()
    assert newest(folder) == 1


def test_a_run_that_cannot_be_resumed_trains_all_the_same(
    folder: Folder, said: list[str]
) -> None:
    writer, _ = failing(folder, said, CheckpointError("no pickle"))
    writer.close()
    writer.keep(at(1))
    assert said == ["no pickle"]
    assert newest(folder) == -1


def test_nothing_stays_of_a_run_that_ended_well(
    folder: Folder, said: list[str]
) -> None:
    writer = CheckpointWriter(folder, said.append)
    writer.keep(at(1))
    writer.discard()
    assert not folder.child(CHECKPOINTS).exists()
    assert said == []


def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        threading.Event().wait(0.005)
