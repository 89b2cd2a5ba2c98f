"""Which file systems tell of changes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from shoal.host.file_systems import tells_changes


class Mount(NamedTuple):
    mountpoint: str
    fstype: str


def test_the_nearest_mount_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    home = tmp_path.resolve()
    mounts = [Mount("/", "ext4"), Mount(f"{home}/net", "nfs4")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    assert tells_changes(home)
    assert tells_changes(home / "network")
    assert not tells_changes(home / "net")
    assert not tells_changes(home / "net" / "runs")
    mounts.append(Mount(f"{home}/net", "xfs"))  # mounted over it
    assert tells_changes(home / "net" / "runs")
    mounts[:] = []
    assert not tells_changes(home)
