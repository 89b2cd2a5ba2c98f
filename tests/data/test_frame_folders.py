"""Folders of frames' files after a run was broken off, without Spark."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.data.frame_folders import FrameFolder, in_scratch, in_store, of_driver
from shoal.data.frame_stores import StoreFolder
from shoal.errors import CheckpointError
from shoal.host.scratch import Scratch, planned_scratch, sweep

pytestmark = pytest.mark.process

KILLED = """
import os, signal
from shoal.host.scratch import Scratch, planned_scratch
made = Scratch(planned_scratch("frame"))
(made.path / "rows").write_text("rows")
print(made.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def reopened(folder: FrameFolder, *, is_kept: bool = False) -> FrameFolder | None:
    """What `shoal.resume` gets of what was kept with the run."""
    return pickle.loads(pickle.dumps(folder.reopen))(is_kept)


def test_a_folder_here_is_left_until_it_is_taken_over() -> None:
    scratch = Scratch(planned_scratch("frame"))
    path, folder = scratch.path, in_scratch(scratch)
    folder.leave()
    assert reopened(folder) is folder
    assert path.is_dir()
    folder.close()
    assert not path.exists()
    assert reopened(folder) is None


def test_what_a_killed_process_has_left_is_taken_over_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    path = Path(done.stdout.strip())
    scratch = Scratch.take_over(path)
    assert scratch is not None
    assert Scratch.take_over(path) is None
    assert sweep() == []
    assert (path / "rows").read_text() == "rows"
    in_scratch(scratch).close()
    assert not path.exists()
    assert Scratch.take_over(path) is None


def test_a_folder_in_a_store_is_taken_over_by_any_process(tmp_path: Path) -> None:
    place = StoreFolder.new(str(tmp_path))
    folder = in_store(place)
    folder.leave()
    folder.close()  # it is not its own any more
    again = reopened(folder)
    assert again is not None
    again.close()
    assert list(tmp_path.iterdir()) == []
    assert reopened(folder) is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_a_store_that_others_use_stays(tmp_path: Path) -> None:
    folder = in_store(StoreFolder.new(str(tmp_path)))
    folder.leave()
    again = reopened(folder, is_kept=True)
    assert again is not None
    again.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_rows_of_a_driver_go_with_it() -> None:
    gone: list[int] = []
    folder = of_driver("shoal-driver://127.0.0.1:1", lambda: gone.append(1))
    folder.leave()
    assert reopened(folder) is folder
    folder.close()
    assert gone == [1]
    with pytest.raises(CheckpointError, match=r"store='driver'.*went with that proc"):
        reopened(folder)
