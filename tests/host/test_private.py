"""Shoal's files are private: for the owner, and for the group of the root."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.host.private import alike, make_alike, make_inside, make_private, shared_mode


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@given(st.integers(0, 0o7777))
def test_others_get_nothing_and_the_group_no_more_than_it_has(root: int) -> None:
    found = shared_mode(root)
    assert found & 0o700 == 0o700
    assert found & 0o007 == 0
    assert found & 0o070 & ~root == 0


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        (0o700, 0o700),
        (0o755, 0o700),  # what mkdir makes under the usual mask says nothing
        (0o777, 0o700),
        (0o1777, 0o700),  # as /tmp
        (0o750, 0o750),
        (0o770, 0o770),
        (0o775, 0o770),
        (0o2755, 0o2750),
        (0o2770, 0o2770),
    ],
)
def test_a_run_folder_in_a_root(
    tmp_path: Path, umask: int, root: int, expected: int
) -> None:
    around = tmp_path / "runs"
    around.mkdir()
    around.chmod(root)
    run = around / "run"
    make_inside(run)
    assert mode(run) == expected
    with pytest.raises(FileExistsError):  # nobody's folder is taken for a new one
        make_inside(run)
    inner = run / "checkpoints" / "owners"
    make_alike(inner)
    assert {mode(inner), mode(inner.parent)} == {expected}
    with open(inner / "file", "ab", opener=alike) as file:
        file.write(b"x")
    assert mode(inner / "file") == expected & 0o666
    with open(inner / "file", "ab", opener=alike) as file:
        file.write(b"y")
    assert (inner / "file").read_bytes() == b"xy"
    with pytest.raises(FileExistsError), open(inner / "file", "xb", opener=alike):
        pass


def test_a_link_is_no_new_folder(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "run").symlink_to(other)
    with pytest.raises(FileExistsError):
        make_inside(tmp_path / "run")


def test_missing_folders_are_private_and_others_stay(
    tmp_path: Path, umask: int
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o755)
    make_private(there / "a" / "b")
    assert [mode(p) for p in (there, there / "a", there / "a" / "b")] == [
        0o755, 0o700, 0o700,
    ]  # fmt: skip


@pytest.mark.skipif(os.getuid() != 0, reason="only root may choose any group")
def test_a_run_is_of_the_group_of_its_root(tmp_path: Path) -> None:
    """Its group is that of the root, not the first group of the user."""
    root = tmp_path / "runs"
    root.mkdir()
    os.chown(root, -1, 4321)
    root.chmod(0o770)
    make_inside(root / "run")
    make_alike(root / "run" / "events")
    for path in (root / "run", root / "run" / "events"):
        assert path.stat().st_gid == 4321
        assert mode(path) == 0o2770


@pytest.mark.skipif(shutil.which("setfacl") is None, reason="needs setfacl")
def test_a_default_acl_goes_before_modes(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    rules = "u::rwx,g::---,o::---,u:65534:r-x,m::r-x"
    if subprocess.run(["setfacl", "-d", "-m", rules, root]).returncode:
        pytest.skip("this file system has no access lists")
    make_inside(root / "run")
    with open(root / "run" / "file", "wb", opener=alike):
        pass
    told = subprocess.run(["getfacl", root / "run"], capture_output=True, text=True)
    assert "user:65534:r-x\n" in told.stdout.replace("\t", "")
