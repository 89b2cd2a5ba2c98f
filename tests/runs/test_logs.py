"""Pages of a log join without gap or overlap; a search finds every line."""

from __future__ import annotations

import re
import tempfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.runs.folder import Folder
from shoal.runs.logs import log_name, page, page_before, search

CONTENT = some.lists(
    some.sampled_from([b"fish", b"\n", b"\r", b"\r\n", b"\xff", b"Shoal " * 9]),
    max_size=30,
).map(b"".join)


@given(CONTENT, some.integers(1, 80))
def test_pages_hold_every_byte_once(content: bytes, most: int):
    with tempfile.TemporaryDirectory() as place:
        folder = Folder.at(place)
        folder.write(log_name(0), content)
        at, forward = 0, list[str]()
        while (found := page(folder, 0, at, most)).end > at:
            assert (found.start, found.size) == (at, len(content))
            forward += [line.text for line in found.lines]
            at = found.end
        assert at == len(content)
        backward = len(content)
        while (found := page_before(folder, 0, backward, most)).start < backward:
            assert found.end == backward
            backward = found.start
        assert backward == 0
        if most > len(content):
            text = content.decode(errors="replace").replace("\r\n", "\n")
            whole = [line for line in text.replace("\r", "\n").split("\n") if line]
            assert [line for line in forward if line] == whole


@given(CONTENT)
def test_a_search_finds_every_line(content: bytes):
    with tempfile.TemporaryDirectory() as place:
        folder = Folder.at(place)
        folder.write(log_name(0), content)
        lines = re.split(rb"\r\n|\n|\r", content)
        found = list(search(folder, 0, "shoal"))
        assert len(found) == sum(b"shoal" in line.lower() for line in lines)
        for line in found:
            assert content[: line.offset][-1:] in (b"", b"\n", b"\r")
        for place, line in enumerate(found):
            assert list(search(folder, 0, "SHOAL", line.offset)) == found[place + 1 :]


def test_each_part_of_a_long_line_is_found_where_it_is(tmp_path: Any):
    folder = Folder.at(tmp_path)
    text = "first\nneedle " + "é" * 5000 + "needle" + "é" * 5000 + "needle\nend\n"
    folder.write(log_name(0), text.encode())
    found = list(search(folder, 0, "NEEDLE"))
    assert len(found) == 3
    for line in found:
        assert page(folder, 0, line.offset).lines[0] == line
        assert "needle" in line.text
        assert line.text.strip("é").startswith("needle")


def test_no_more_than_a_page_is_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    folder = Folder.at(tmp_path)
    folder.write(log_name(0), b"a line\n" * 1_000_000)
    sizes, plain = list[int](), Folder.read

    def counting(self: Folder, *arguments: Any) -> bytes:
        content = plain(self, *arguments)
        sizes.append(len(content))
        return content

    monkeypatch.setattr(Folder, "read", counting)
    assert page_before(folder, 0).end == 7_000_000
    assert page(folder, 0, 3_500_000).lines[0].text == "a line"
    assert max(sizes) <= 1 << 16
    assert sum(1 for _ in search(folder, 0, "LINE")) == 1_000_000
    assert max(sizes) <= 1 << 20


def test_a_line_that_never_ends(tmp_path: Any):
    folder = Folder.at(tmp_path)
    folder.write(log_name(0), b"x" * 9_000_000 + b"needle" + b"x" * 1_000_000)
    assert page(folder, 0, 0).lines[0].is_cut
    assert len(list(search(folder, 0, "needle"))) == 1
    assert page(folder, 1, 0).lines == ()
    assert list(search(folder, 1, "needle")) == []
    assert list(search(folder, 0, "")) == []
