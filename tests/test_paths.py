"""Names from elsewhere become paths inside a folder, or errors."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.errors import DataError
from shoal.paths import fault_of, inside, name_of, one_inside, unpack

BAD = [
    "", ".", "..", "../x", "a/../../x", "/etc/passwd", "a//b", "a/", "./a", "a/..",
    "..\\x", "a\\..\\..\\x", "C:\\x", "C:/x", "c:x", "~", "~/x", "~root/x", "a\0b",
    "a\nb", "\x1b[2Jx", "\udc80", "x" * 256, "a/" + "\u00e4" * 128, "a/" * 3000 + "b",
]  # fmt: skip
NAMES = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from(["..", ".", "/", "\\", "~", "C:", "\0", "a", "//", "events"]),
    )
).map("".join)


@pytest.mark.parametrize("name", BAD)
def test_names_that_could_lead_out_are_refused(name: str, tmp_path: Path):
    with pytest.raises(DataError, match="cannot be a path in"):
        inside(tmp_path, name)


@pytest.mark.parametrize("name", ["a", "a/b.c", "...", "..a", ".a", "a..b/c", "a~"])
def test_other_names_are_taken_as_they_are(name: str, tmp_path: Path):
    assert inside(tmp_path, name) == tmp_path / name


@given(NAMES)
@example("..")
@example("a/../..")
def test_no_name_gives_a_path_outside_of_the_folder(name: str):
    folder = Path("/srv/runs/copy")
    if fault_of(name):
        return
    path = os.path.normpath(os.path.join(folder, os.path.expanduser(name)))
    assert path.startswith(f"{folder}/")
    assert Path(path) == folder / name
    assert "\\" not in name


@given(NAMES)
def test_any_text_has_a_name_of_one_part(text: str):
    name = name_of(text)
    assert not fault_of(name)
    assert "/" not in name
    assert name_of(name) == name


def test_links_in_the_folder_are_not_followed(tmp_path: Path):
    home = tmp_path / "home"
    home.mkdir()
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "train").symlink_to(home)
    (folder / "a").symlink_to(home / ".bashrc")
    for name in ("train/x", "train", "a"):
        with pytest.raises(DataError, match="is a link"):
            inside(folder, name)
    link = tmp_path / "link"  # the folder itself may be one: the user chose it
    link.symlink_to(folder)
    assert inside(link, "b") == link / "b"


@pytest.mark.parametrize("name", ["a/b", "..", "/x", ""])
def test_a_name_of_one_part(name: str, tmp_path: Path):
    with pytest.raises(DataError):
        one_inside(tmp_path, name)
    assert one_inside(tmp_path, "2026-11-21-higgs-a3f").parent == tmp_path


def packed(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            member.size = 4 if member.isreg() else 0
            archive.addfile(member, io.BytesIO(b"evil"))
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, to: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, to
    return member


@pytest.mark.parametrize("name", ["../x", "/tmp/shoal-test-x", "run/../../x"])
def test_an_archive_writes_nothing_outside(name: str, tmp_path: Path):
    folder = tmp_path / "here"
    folder.mkdir()
    with pytest.raises(DataError, match="cannot be a path in"):
        unpack(packed(tmp_path / "a.tar.gz", entry(name)), folder)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "a.tar.gz", folder]


def test_links_of_an_archive_are_left_out(tmp_path: Path):
    folder = tmp_path / "here"
    folder.mkdir()
    archive = packed(
        tmp_path / "a.tar.gz", entry("run", tarfile.DIRTYPE), entry("run/file"),
        entry("run/up", tarfile.SYMTYPE, ".."),
        entry("run/hard", tarfile.LNKTYPE, "run/file"),
        entry("run/pipe", tarfile.FIFOTYPE), entry("run/device", tarfile.CHRTYPE),
    )  # fmt: skip
    left_out = unpack(archive, folder)
    assert left_out == ["run/up", "run/hard", "run/pipe", "run/device"]
    assert [path.name for path in (folder / "run").iterdir()] == ["file"]


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", None])
def test_a_truncated_archive_is_an_error(content: bytes | None, tmp_path: Path):
    archive = packed(tmp_path / "a.tar.gz", *[entry(f"run/{n}") for n in range(99)])
    if content is None:
        content = archive.read_bytes()[:60]
    archive.write_bytes(content)
    with pytest.raises(DataError, match="archive of another host is not complete"):
        unpack(archive, tmp_path)
