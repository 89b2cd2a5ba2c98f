"""The temporary directory goes away while something runs: it is made again."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shoal.host import temporary
from shoal.host.private import make_private
from shoal.host.scratch import Scratch
from shoal.host.temporary import NoTemporaryFolder, temporary_folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "job" / "tmp"
    found.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(found))
    monkeypatch.setenv("TMPDIR", str(found))
    return found


def remove(folder: Path) -> None:
    folder.rmdir()
    folder.parent.rmdir()


def test_the_directory_is_made_again_for_its_user_alone(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert temporary_folder() == folder
    assert not caplog.records
    remove(folder)
    with caplog.at_level(logging.WARNING, "shoal"):
        assert temporary_folder() == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert "was removed while it is in use" in caplog.text
    assert temporary_folder() == folder  # and nothing more is said
    assert len(caplog.records) == 1
    with tempfile.TemporaryFile() as file:
        file.write(b"x")


def test_another_one_is_taken_where_it_cannot_be_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    remove(folder)
    folder.parent.write_text("a file lies in its way")
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(other)])
    assert temporary_folder() == other == Path(tempfile.gettempdir())


def test_an_error_if_there_is_no_temporary_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(folder)
    folder.parent.write_text("a file lies in its way")
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(folder)])
    with pytest.raises(NoTemporaryFolder, match="Set TMPDIR to a folder"):
        temporary_folder()


def test_a_folder_of_all_users_is_not_made_for_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(temporary, "SYSTEM", frozenset({str(folder)}))
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path)])
    remove(folder)
    assert temporary_folder() == tmp_path
    assert not folder.exists()


def test_a_scratch_folder_is_made_anew(folder: Path) -> None:
    scratch = Scratch()
    before = scratch.path
    for path in (before / "lock", before):
        path.unlink() if path.is_file() else path.rmdir()
    remove(folder)
    made = scratch.make_folder()
    assert made.parent == scratch.path != before
    assert made.is_dir()
    scratch.close()
    assert os.listdir(folder) == []


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_private(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        make_private(tmp_path / "file" / "inside")


@pytest.mark.parametrize("limit", ["FSIZE", "NOFILE"])
def test_a_model_that_a_disk_does_not_take_leaves_nothing(
    tmp_path: Path, limit: str
) -> None:
    """Keras removes its folders last of all; the limits are those of a process."""
    script = f"""
import os, resource, tempfile
tempfile.tempdir = {str(tmp_path)!r}
import keras
from shoal.host.temporary import keras_saving
model = keras.Sequential([keras.Input((24,)), keras.layers.Dense(64)])
model.save({str(tmp_path / "model.keras")!r})  # all it imports has been imported
hard = resource.getrlimit(resource.RLIMIT_{limit})[1]
if {limit == "FSIZE"}:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
else:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    opened = []
    try:
        while True:
            opened.append(os.dup(0))
    except OSError:
        for _ in range(2):
            os.close(opened.pop())
try:
    with keras_saving():
        model.save({str(tmp_path / "model.keras")!r})
except OSError:
    for descriptor in opened if {limit == "NOFILE"} else ():
        os.close(descriptor)
    print(keras.config.is_traceback_filtering_enabled())
    print(os.listdir(tempfile.tempdir))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    said = done.stdout.splitlines()[-2:]
    assert said == ["True", "['model.keras']"], done.stderr
