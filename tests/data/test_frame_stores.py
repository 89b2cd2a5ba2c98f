"""Folders of frames in a store: who removes what a killed driver has left."""

from __future__ import annotations

import json
import time
from pathlib import Path

from shoal.data.frame_stores import LEFT_S, OWNER, StoreFolder, sweep, touch


def test_folders_of_killed_drivers_are_removed_after_a_week(tmp_path: Path) -> None:
    names = ("shoal-frame-old", "shoal-frame-new", "others", "shoal-frame-unknown")
    for name in names:
        (tmp_path / name).mkdir()
    for name in names[:3]:
        touch(str(tmp_path / name))
    old = {"seen": time.time() - LEFT_S - 60}
    for name in ("shoal-frame-old", "others"):
        (tmp_path / name / OWNER).write_text(json.dumps(old))
    folder = StoreFolder.new(str(tmp_path))
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted([*names[1:], Path(folder.url).name])
    folder.remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])


def test_a_live_folder_stays(tmp_path: Path) -> None:
    folder = StoreFolder.new(str(tmp_path / "made"))
    assert sweep(str(tmp_path / "made")) == []
    assert sweep(str(tmp_path / "made"), now=time.time() + LEFT_S + 60) != []
    folder.leave()
    folder.remove()  # which is gone already
