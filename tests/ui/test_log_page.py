"""Logs: what is found, what is an error, and what an address of them holds."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from shoal.runs.log_errors import errors_among
from shoal.ui.pages.logs import MOST_ROWS
from tests.ui.conftest import Served, Serving, make_run

TRACEBACK = """\
Traceback (most recent call last):
  File "a.py", line 3, in f
    boom()

KeyError: 3
"""


@pytest.mark.parametrize(
    "line",
    [
        "ERROR:root:it broke", "ERROR something", "[error] cannot open", "KeyError: 3",
        "CRITICAL x", "fatal: no", "  shoal.errors.DataError: x", "Error",
        "an exception", "KeyboardInterrupt", 'x  File "a.py" error, line 3',
    ],
)  # fmt: skip
def test_lines_of_errors(line: str):
    assert errors_among([line]) == [True]


@pytest.mark.parametrize(
    "line",
    [
        "no errors were found: ErrorRate", "terror", "mean_squared_error: 0.25",
        "RuntimeWarning: x", "done, no error", "error-free", "non-fatal", "",
    ],
)  # fmt: skip
def test_lines_without_errors(line: str):
    assert errors_among([line]) == [False]


def test_a_traceback_goes_on_until_its_last_line():
    lines = ["step 1", *TRACEBACK.splitlines(), "step 2"]
    assert errors_among(lines) == [False, True, True, True, True, True, False]
    # A page that begins within one; the last line names no error by its words.
    part = ['  File "a.py", line 3, in f', "    boom()", "package.Boom: 3", "step 2"]
    assert errors_among(part) == [True, True, True, False]
    inner = [f"    {line}" for line in TRACEBACK.splitlines()]
    assert errors_among(["x", *inner, "    y"]) == [False, *[True] * 5, False]


def lines_of(text: str) -> list[tuple[str, str]]:
    return re.findall(r'<li id="(w\d+-\d+)".*?<span>(.*?)</span>', text)


def log_of(served: Served, run: str, query: str) -> str:
    return served.ask(f"/runs/runs/{run}/logs?{query}").text


def test_errors_have_a_word(serving: Serving, root: Path):
    run = make_run(root, "fish")
    run.folder.write("experiments/worker-0.log", f"a\n{TRACEBACK}".encode())
    served = serving.start(root)
    text = log_of(served, run.id, "")
    assert text.count('<em class="word">error</em>') == 5
    new = json.loads(served.ask(f"/runs/runs/{run.id}/logs/new?ends=").text)["lines"]
    assert new.count("<li ") == 6
    assert new.count('<em class="word">error</em>') == 5


def test_only_found_lines_are_shown_page_by_page(serving: Serving, root: Path):
    run = make_run(root, "fish")
    lines = b"".join(b"line %d\nother\n" % at for at in range(20_000))
    run.folder.write("experiments/worker-0.log", b"old LINE\n" + b"\n" * 100_000)
    run.folder.write("experiments/worker-1.log", lines)
    served = serving.start(root)
    text, found = log_of(served, run.id, "q=line&only=1&list=yes"), []
    while True:
        rows = lines_of(text)
        assert len(rows) <= MOST_ROWS
        assert 'id="found"' not in text
        found += rows
        link = re.search(r'id="more" href="([^"]+)"', text)
        if link is None or len(found) > 3 * MOST_ROWS:
            break
        text = served.ask(html.unescape(link[1])).text
    assert [text for _, text in found[:2]] == ["old LINE", "line 0"]
    assert [text for _, text in found[1:]] == [
        f"line {n}" for n in range(len(found) - 1)
    ]
    assert len({place for place, _ in found}) == len(found) > 3 * MOST_ROWS
    assert lines_of(log_of(served, run.id, "q=nowhere&only=1")) == []
    assert "Nothing was found." in log_of(served, run.id, "q=nowhere&only=1")
    assert len(lines_of(log_of(served, run.id, "only=1&rank=0"))) > MOST_ROWS


def test_the_shown_log_is_kept_apart_from_those_that_are_searched(
    serving: Serving, root: Path
):
    run = make_run(root, "fish")
    run.folder.write("experiments/worker-0.log", b"one\ntwo\n")
    run.folder.write("experiments/worker-1.log", b"three\nfour\n" * 20_000)
    served = serving.start(root)
    for name in ("hit", "at"):
        text = log_of(served, run.id, f"q=o&{name}=1:6")
        assert lines_of(text)[0] == ("w1-6", "four")
        assert '<option value="">all</option>' in text
        assert "selected" not in text
        assert "<h2>Worker 1, bytes 6" in text
        [later] = re.findall(r'href="([^"]+)">Later<', text)
        later = html.unescape(later)
        assert "rank=" not in later
        assert "q=o" in later
        assert "<h2>Worker 1, bytes 65," in served.ask(later).text
    for wrong in ("at=7:0", "at=x", "hit=1:-1", "at=:", "at=6"):
        assert "The end of all logs" in log_of(served, run.id, wrong)
    assert lines_of(log_of(served, run.id, "rank=1&at=6"))[0] == ("w1-6", "four")


def test_all_logs_can_be_downloaded(serving: Serving, root: Path):
    run = make_run(root, "fish")
    run.folder.write("experiments/worker-1.log", b"x\n")
    served = serving.start(root)
    links = re.findall(r'href="([^"]+)" download', log_of(served, run.id, ""))
    assert [served.ask(link).text for link in links] == [
        "hello\n\x1b[31mred\x1b[0m\n", "x\n"
    ]  # fmt: skip


def test_parts_of_a_progress_bar_are_lines(serving: Serving, root: Path):
    run = make_run(root, "fish")
    bar = "".join(f"\r{at}/5 loss" for at in range(1, 6))
    run.folder.write("experiments/worker-0.log", f"Epoch 1\n{bar}\nend\n".encode())
    served = serving.start(root)
    page = f"/runs/runs/{run.id}/logs"
    found = json.loads(served.ask(f"{page}/found?q=loss").text)["lines"]
    shown = [place for place, text in lines_of(served.ask(page).text) if "loss" in text]
    assert [f"w{line['rank']}-{line['offset']}" for line in found] == shown
    assert len(shown) == 5
