"""All files of a run are private, whatever the umask of the process is."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import keras
import pytest

import shoal
from tests.engine.test_faults import data, model


class Look(keras.callbacks.Callback):
    """Notes which files of a folder others may use, during the run and at its end."""

    def __init__(self, *folders: Path) -> None:
        super().__init__()
        self.folders, self.open, self.seen = folders, dict[str, str](), 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.look(0o077)

    def look(self, mask: int) -> None:
        for folder in self.folders:
            for path in folder.rglob("*"):
                try:
                    mode = path.lstat().st_mode
                except FileNotFoundError:
                    continue
                self.seen += 1
                if not stat.S_ISLNK(mode) and mode & mask:
                    self.open[str(path)] = oct(mode)


@pytest.mark.process
@pytest.mark.parametrize(
    "umask",
    [
        0o000,
        pytest.param(0o022, marks=pytest.mark.slow),
        pytest.param(0o077, marks=pytest.mark.slow),
    ],
)
def test_only_its_user_can_read_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    root = tmp_path / "new" / "runs"
    look = Look(root, temporary)
    before = os.umask(umask)
    try:
        x, y = data()
        history = shoal.fit(
            model(), x, y, workers=2, epochs=2, batch_size=32, verbose=0, threads=1,
            strategy="aeasgd", run=str(root), callbacks=[look], validation_data=(x, y),
            checkpoint_every=1,
        )  # fmt: skip
    finally:
        os.umask(before)
    look.look(0o077)
    assert look.open == {}
    assert look.seen > 20
    for folder in (root, root.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert history.run.summary().status == "finished"


@pytest.mark.process
@pytest.mark.slow
def test_a_team_shares_a_root(tmp_path: Path) -> None:
    """The group may read and resume all of it, under the strictest umask."""
    root = tmp_path / "runs"
    root.mkdir()
    root.chmod(0o2770)
    before = os.umask(0o077)
    try:
        x, y = data()
        shoal.fit(
            model(), x, y, workers=2, epochs=1, batch_size=32, verbose=0, threads=1,
            strategy="aeasgd", run=str(root),
        )  # fmt: skip
    finally:
        os.umask(before)
    modes = {p: p.stat().st_mode for p in root.rglob("*")}
    assert len(modes) > 8
    for path, mode in modes.items():
        wanted = 0o2770 if path.is_dir() else 0o660
        assert stat.S_IMODE(mode) == wanted, path
