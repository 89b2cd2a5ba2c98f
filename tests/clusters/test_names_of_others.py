"""Files that other users made under predictable names are not used."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from shoal.clusters import ray
from shoal.clusters.host_agent import jobs, nodes, probing
from shoal.clusters.host_agent.answering import UserError
from shoal.clusters.ray import Ray

MARK = "deadbeef-0"
NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root makes it another's")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of a node, below that of the test; it starts nothing."""
    found = tmp_path / f"shoal-{MARK}"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(nodes, "temp_of", lambda mark: str(found))
    monkeypatch.setattr(nodes, "run", lambda *_, **__: None)
    for name, value in (("end", 0), ("is_alive", False), ("processes_of", ())):
        monkeypatch.setattr(nodes, name, lambda *_, value=value: value)
    return found


def start() -> dict[str, Any]:
    return nodes.start(
        {
            "mark": MARK, "port": 1, "again": True, "token": "t", "name": "x",
            "private": "127.0.0.1", "limit_s": 1, "variables": {}, "head": None,
            "options": [],
        }
    )  # fmt: skip


def stop() -> None:
    nodes.stop({"marks": [MARK], "name": "x", "environment": None})


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_folder_of_a_node_is_private(place: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        start()
        start()  # once more in the same place
    finally:
        os.umask(before)
    home = Path.home() / ".shoal"
    for path in (place, home, *home.rglob("*")):
        if path.is_dir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
    token = nodes.node_folder(MARK) / "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    stop()
    assert not place.exists()


@pytest.mark.parametrize(
    "how",
    [
        "open to all",
        "a link",
        "a link to nothing",
        "a file",
        pytest.param("somebody else's", marks=needs_root),
    ],
)
def test_an_existing_folder_of_another_user_is_refused_and_kept(
    place: Path, tmp_path: Path, how: str
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "file").touch()
    if how == "open to all":
        place.mkdir()
        place.chmod(0o777)
    elif how == "a link":
        place.symlink_to(theirs)
    elif how == "a link to nothing":
        place.symlink_to(tmp_path / "none")
    elif how == "a file":
        place.touch()
    else:
        place.mkdir(mode=0o700)
        os.chown(place, NOBODY, NOBODY)
    with pytest.raises(UserError, match="Check its owner"):
        start()
    stop()
    assert os.path.lexists(place)
    assert (theirs / "file").exists()


def test_a_shared_folder_of_jobs_that_comes_between_look_and_use(
    tmp_path: Path,
) -> None:
    base = tmp_path / f".shoal-{os.getuid()}"
    assert jobs.jobs_folder(str(tmp_path)) == base / "jobs"  # nothing is there yet
    base.mkdir()
    base.chmod(0o777)
    with pytest.raises(UserError):
        nodes.make_own(base)


def test_a_file_in_the_folder_of_all_hosts_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "is_alive", lambda _: True)
    dear, own = tmp_path / "dear", tmp_path / ".shoal-secret-host"
    dear.write_text("x")
    own.symlink_to(dear)
    told = probing._condition({"mark": MARK}, own)
    assert "File exists" in told["shared"]
    assert dear.read_text() == "x"
    own.unlink()
    assert probing._condition({"mark": MARK}, own)["shared"] == ""
    assert own.read_text() == "here"
    assert own.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("whose", ["ours", pytest.param("theirs", marks=needs_root)])
def test_addresses_of_ray_are_read_from_files_of_this_user_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    noted = tmp_path / "ray_current_cluster"
    noted.write_text("10.0.0.66:6379")
    if whose == "theirs":
        os.chown(noted, NOBODY, NOBODY)
    monkeypatch.setattr(ray, "LAST_RAY", noted)
    monkeypatch.setattr(ray, "reach", lambda _: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert Ray()._address() == ("10.0.0.66:6379" if whose == "ours" else None)
    noted.rename(tmp_path / "moved")
    noted.symlink_to(tmp_path / "moved")
    assert Ray()._address() is None
