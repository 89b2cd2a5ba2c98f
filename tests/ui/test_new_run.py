"""New runs: what the address of the form holds, and what a restart must not lose."""

from __future__ import annotations

import html
import os
import re
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from shoal.host.processes import Process, may_live
from shoal.ui.scripts import top_names
from shoal.ui.starting import UNKNOWN, Starter
from tests.ui.conftest import NOTE, Serving
from tests.ui.test_actions import FORM, end, hold, posted, started

SCRIPT = """
import os, a.b
from c import d as e
f = g = 1
h: int = 2
try:
    def make(): inner = 1
except ImportError as error:
    def other(): ...
if f:
    class Model: name = 3
    async def late(): ...
"""


def test_names_of_a_script_are_read_from_its_syntax():
    found = top_names(SCRIPT.encode())
    assert found is not None
    names, functions = found
    assert functions == ["make", "other", "late"]
    assert {"os", "a.b", "e", "f", "g", "h", "make", "other", "Model"} <= names
    assert not names & {"inner", "name", "d"}
    assert top_names(b"from x import *") is None
    with pytest.raises(SyntaxError):
        top_names(b"def make(:")
    with pytest.raises((SyntaxError, ValueError)):
        top_names(b"\0")


@pytest.mark.parametrize(
    ("content", "value", "text"),
    [
        ("def make(): ...", "train.py:nope", "no function 'nope'"),
        ("def a(): ...\ndef b(): ...", "train.py", "a, b"),
        ("def make(:", "train.py", "cannot be read as Python"),
        ("from x import *", "train.py:nope", '{"error": ""}'),
        ("make = lambda: 1", "train.py", '{"error": ""}'),
        ("raise SystemExit\ndef make(): ...", "train.py", '{"error": ""}'),
        ("", "", "no Python file"),
    ],
)
def test_the_function_of_a_script_is_checked_and_nothing_of_it_runs(
    content: str, value: str, text: str, serving: Serving, root: Path
):
    (root.parent / "train.py").write_text(content)
    served = serving.start(root)
    query = urlencode({"field": "script", "value": value})
    assert text in served.ask(f"/new/check?{query}").text
    assert started(serving) == []


@pytest.mark.process
def test_the_address_of_a_plan_shows_it_again_and_plans_nothing(
    serving: Serving, root: Path
):
    (root.parent / "train.py").write_text("def make(): ...\n")
    (root.parent / "works").touch()
    served = serving.start(root)
    answer = served.post("/new/plan", {**FORM, "do": "plan"})
    assert answer.status == 303
    place = answer.headers["location"]
    given = parse_qs(urlsplit(place).query)
    assert given["epochs"] == ["3"]
    assert given["strategy"] == ["aeasgd:beta=0.5"]
    assert "cluster" not in given  # as by default
    for _ in range(2):
        text = served.ask(place).text
        assert "What would happen</h2>" in text
        assert "Start it" in text
        assert 'name="epochs" value="3"' in text
    later = Serving(root.parent)  # of a server after that one
    try:
        assert "Start it" in later.start(root).ask(place).text
    finally:
        later.close()
    assert len(started(serving)) == 1
    for query in (
        place.replace("epochs=3", "epochs=4"),
        place.partition("&planned")[0],
    ):
        text = served.ask(query).text
        assert "Start it" not in text
        assert "planned-title" not in text
    assert len(started(serving)) == 1


def test_the_address_of_a_refused_form_has_its_values(serving: Serving, root: Path):
    served = serving.start(root)
    answer = served.post("/new/plan", {**FORM, "epochs": "", "workers": "<many"})
    place = answer.headers["location"]
    assert place.startswith("/new?")
    text = html.unescape(served.ask(place).text)
    assert "epochs='' cannot be read" in text
    assert 'value="<many"' in text
    assert "there is no Python file" in text
    assert "cannot be read" not in served.ask(place.replace("checked=yes", "")).text
    assert served.ask("/new?root=none").status == 200
    assert started(serving) == []


@pytest.mark.process
def test_a_program_is_known_after_a_restart(serving: Serving, root: Path):
    (root.parent / "train.py").write_text("def make(): ...\n")
    (root.parent / "works").touch()
    served = serving.start(root)
    text = posted(served, {**FORM, "do": "plan"})
    [planned] = re.findall(r'name="planned" value="([^"]+)"', text)
    [key] = re.findall(r'name="key" value="([^"]+)"', text)
    hold(serving)
    form = {**FORM, "do": "start", "planned": planned, "key": key}
    place = served.post("/new/plan", form).headers["location"]
    own = serving.starter.of(f"new {key}")
    later = Serving(root.parent)
    try:
        other = later.start(root)
        found = later.starter.of(f"new {key}")
        assert own is not None
        assert found is not None
        assert (found.process, found.known) == (own.process, own.known)
        assert found.code is None
        assert f"Process {own.process.pid} was started" in other.ask(place).text
        assert other.post("/new/plan", form).headers["location"] == place  # not again
        end(serving, f"new {key}")
        assert found.code == UNKNOWN
        text = other.ask(place).text
        assert "exit status unknown" in text
        assert "it failed" in text
    finally:
        later.close()
    assert len(started(serving)) == 2


def test_records_of_programs_that_cannot_be_read_are_none(tmp_path: Path):
    starter = Starter(tmp_path, tmp_path, (sys.executable, "-c", NOTE))
    starter.run("x", ["x"], 60.0)
    [path] = tmp_path.glob("*.json")
    assert path.stat().st_mode & 0o077 == 0
    assert starter.of("x") is not None
    for content in ("", "[]", '{"key": "x"}', '{"key": "x", "process": 3, "words": 1}'):
        path.write_text(content)
        assert starter.of("x") is None
    assert starter.of("y") is None


def test_a_child_is_the_process_that_it_says_it_is():
    here = Process.of(os.getpid())
    assert here == Process.here()
    assert may_live(here)
    assert not may_live(Process.of(2**22 + 1))
