"""What the page starts: with which words, how often, and what it says of it."""

from __future__ import annotations

import ast
import html
import json
import os
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import urlencode

import pytest

from shoal.runs.store import create
from shoal.ui.starting import Starter
from tests.ui.conftest import Served, Serving, Stream, make_run


def started(serving: Serving) -> list[list[str]]:
    """The arguments of all programs that were started."""
    if not serving.noted.exists():
        return []
    return [ast.literal_eval(line) for line in serving.noted.read_text().splitlines()]


def hold(serving: Serving) -> None:
    """Makes programs wait for `end`."""
    os.mkfifo(serving.noted.parent / "hold")


def end(serving: Serving, key: str) -> None:
    """Lets a program end, and waits for it."""
    (serving.noted.parent / "hold").write_text("")
    program = serving.starter.of(key)
    assert program is not None
    assert program.child is not None
    program.child.wait(timeout=60)


@pytest.mark.process
def test_a_run_is_resumed_once_however_often_it_is_asked(serving: Serving, root: Path):
    run = make_run(root, "fish", status="interrupted")
    served = serving.start(root)
    page = f"/runs/runs/{run.id}"
    assert "Resume the run" in served.ask(page).text
    hold(serving)
    for _ in range(3):
        answer = served.post(f"{page}/resume", {"workers": "1-3", "verbose": "0"})
        assert (answer.status, answer.headers["location"]) == (303, page)
    shown = served.ask(page).text
    assert "Resuming: process" in shown
    end(serving, run.url)
    # A page that has been read before that, and whose stream begins after it.
    seen = shown.partition('data-version="')[2].partition('"')[0]
    stream = Stream(served, f"{page}/events?seen={seen}")
    assert "Resuming failed" in json.loads(stream.next()["data"])["parts"]["head"]
    stream.close()
    words = ["runs", "resume", run.url, "--verbose", "0", "--workers", "1-3"]
    assert started(serving) == [words]
    text = served.ask(page).text
    assert "Resuming failed with exit status 3" in text
    assert "it failed" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("status", "form"),
    [
        ("interrupted", {"verbose": "--force"}), ("interrupted", {"verbose": ""}),
        ("finished", {}), ("running", {}),
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_resumed_starts_nothing(
    status: str, form: dict[str, str], serving: Serving, root: Path
):
    run = make_run(root, "fish", status=status)
    served = serving.start(root)
    answer = served.post(f"/runs/runs/{run.id}/resume", form)
    assert answer.status == (409 if form else 303)
    assert serving.starter.of(run.url) is None
    assert started(serving) == []


@pytest.mark.parametrize("workers", ["-1", "--force", "two", "1-2-3", '"><b>' * 50])
def test_a_wrong_number_of_workers_is_told_beside_its_field(
    workers: str, serving: Serving, root: Path
):
    run = make_run(root, "fish", status="interrupted")
    served = serving.start(root)
    answer = served.post(f"/runs/runs/{run.id}/resume", {"workers": workers})
    place = answer.headers["location"]
    assert (answer.status, place.partition("#")[2]) == (303, "resume-workers")
    page = served.ask(place.partition("#")[0])
    assert page.status == 422
    form = page.text.partition('id="resume"')[2].partition("</form>")[0]
    assert "<details open>" in form
    assert 'aria-invalid="true"' in form
    assert f'value="{html.escape(workers[:100])}"'.replace("&quot;", "&#34;") in form
    assert "Expected a number, min-max or auto" in form
    assert started(serving) == []


@pytest.mark.process
def test_a_run_elsewhere_is_resumed_by_those_who_trust_it(serving: Serving):
    root = "memory://test-actions-resume"
    run = make_run(root, "fish", status="interrupted")
    served = serving.start(root)
    [key] = served.site.roots
    page = f"/runs/{key}/{run.id}"
    assert 'name="trusted"' in served.ask(page).text
    answer = served.post(f"{page}/resume")
    assert answer.status == 409
    assert "Tick that you trust it" in answer.text
    assert serving.starter.of(run.url) is None
    hold(serving)
    assert served.post(f"{page}/resume", {"trusted": "yes"}).status == 303
    end(serving, run.url)


def test_a_request_to_stop_is_shown_until_it_is_answered(serving: Serving, root: Path):
    run = create(str(root), "fish")
    run.event("run_started", strategy="adag", workers=2, rows=640, epochs=2)
    served = serving.start(root)
    page = f"/runs/runs/{run.id}"
    assert "Asked to stop" not in served.ask(page).text
    for _ in range(2):
        assert served.post(f"{page}/stop").status == 303
    assert re.search(r"Asked to stop by .*\(shoal ui, ", served.ask(page).text)
    run.finish("interrupted")
    while "Asked to stop" in served.ask(page).text:  # it is read again after a moment
        pass


def posted(served: Served, form: dict[str, str]) -> str:
    """The page that a form of a new run leads to."""
    answer = served.post("/new/plan", form)
    assert answer.status == 303
    return served.ask(answer.headers["location"]).text


FORM = {
    "script": "train.py:make", "strategy": "aeasgd:beta=0.5", "workers": "2",
    "epochs": "3", "batch_size": "32", "cluster": "local", "name": "higgs", "root": "",
    "data": "", "label": "", "feature": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("script", "none.py", "there is no Python file"),
        ("script", "/etc/passwd", "there is no Python file"),
        ("script", "train.py:a b", "no name of a function"),
        ("script", "-m.py", "there is no Python file"),
        ("strategy", "eagsd", "unknown strategy"),
        ("strategy", "aeasgd:beta=9", "beta"),
        ("workers", "many", "cannot be read"), ("epochs", "0", "cannot be read"),
        ("batch_size", "-1", "cannot be read"), ("cluster", "moon", "no cluster"),
        ("name", "../x", "no name of a run"), ("root", "s3://x", "is not shown here"),
        ("data", "none.csv", "there is nothing at"), ("data", "--echo", "begins with"),
        ("label", "a,--plan", "begins with"), ("feature", "-a", "begins with"),
    ],
)  # fmt: skip
def test_fields_of_a_new_run_are_checked(
    field: str, value: str, text: str, serving: Serving, root: Path
):
    (root.parent / "train.py").write_text("def make(): ...\n")
    served = serving.start(root)
    assert served.ask("/new").status == 200
    query = urlencode({"field": field, "value": value})
    assert text in json.loads(served.ask(f"/new/check?{query}").text)["error"]
    for do in ("plan", "start"):
        form = {**FORM, field: value, "do": do, "planned": "x", "key": "0" * 16}
        assert text in html.unescape(posted(served, form))
    assert started(serving) == []
    query = urlencode({"field": field, "value": FORM[field]})
    assert served.ask(f"/new/check?{query}").text == '{"error": ""}'


@pytest.mark.parametrize("data", ["s3://b/x y/", "runs/*.csv", "."])
def test_a_new_run_on_files(data: str, serving: Serving, root: Path):
    (root.parent / "train.py").write_text("def make(): ...\n")
    served = serving.start(root)
    form = {**FORM, "do": "plan", "label": "late", "feature": "month, air time,"}
    alone = posted(served, form)
    assert "label names columns of files, and data is empty" in alone
    assert started(serving) == []
    served.post("/new/plan", {**form, "data": data})
    [words] = started(serving)
    at = words.index("--data")
    assert words[at : at + 8] == [
        "--data", data, "--label", "late", "--feature", "month", "--feature", "air time"
    ]  # fmt: skip


def test_each_parameter_of_a_strategy_has_a_field(serving: Serving, root: Path):
    served = serving.start(root)

    def error(**fields: str) -> str:
        query = urlencode({"field": "strategy", **fields})
        return json.loads(served.ask(f"/new/check?{query}").text)["error"]

    given = {"p.aeasgd.rho": "1", "p.aeasgd.learning_rate": "0.05", "p.adag.x": "1"}
    assert error(value="aeasgd", **given) == ""
    assert "rho" in error(value="aeasgd", **{"p.aeasgd.rho": "1"})
    assert "beta" in error(value="aeasgd:period=3", **{"p.aeasgd.beta": "9"})
    form = {**FORM, "strategy": "aeasgd:beta=0.5,period=3", "p.aeasgd.beta": "0.25"}
    text = posted(served, {**form, "script": "none.py"})
    [strategy] = re.findall('name="strategy" value="([^"]*)"', text)
    assert strategy == "aeasgd"
    for name, value in (("beta", "0.25"), ("period", "3"), ("rho", "")):
        assert f'name="p.aeasgd.{name}" value="{value}"' in text


@pytest.mark.process
def test_a_new_run_is_started_after_its_plan_and_once(serving: Serving, root: Path):
    (root.parent / "train.py").write_text("def make(): ...\n")
    (root.parent / "works").touch()
    served = serving.start(root)
    words = [
        "fit", "train.py:make", "--strategy", "aeasgd:beta=0.5", "--workers", "2",
        "--epochs", "3", "--batch-size", "32", "--name", "higgs", "--root", str(root),
    ]  # fmt: skip
    early = posted(served, {**FORM, "do": "start", "key": "0" * 16})
    assert started(serving) == [[*words, "--plan"]]  # not planned yet: planned now
    assert "Start it" in early
    assert f"shoal {' '.join(words)}" in early
    planned, key = (
        re.findall(f'name="{name}" value="([^"]+)"', early)[0]
        for name in ("planned", "key")
    )
    other = {**FORM, "epochs": "4", "do": "start", "planned": planned, "key": key}
    assert "Start it" in posted(served, other)  # of other values
    form = {**FORM, "do": "start", "planned": planned, "key": key}
    hold(serving)
    places = {served.post("/new/plan", form).headers["location"] for _ in range(3)}
    [place] = places
    assert "Starting" in served.ask(place).text
    program = serving.starter.of(f"new {key}")
    assert program is not None
    assert serving.starter.of("new 0") is None
    run = make_run(root, "other")
    assert "Starting" in served.ask(place).text
    first = next((root / run.id / "events").iterdir())
    pid = str(program.process.pid)
    first.write_bytes(
        re.sub(rb'"pid":\d+', f'"pid":{pid}'.encode(), first.read_bytes())
    )
    assert served.ask(place).headers["location"] == f"/runs/runs/{run.id}"
    end(serving, f"new {key}")
    assert started(serving)[-1] == words
    assert len(started(serving)) == 3
    shutil.rmtree(root / run.id)
    text = served.ask(place).text
    assert "Not started" in text
    assert "it failed" in text
    assert served.post("/new/plan", form).headers["location"] == place  # not again
    assert len(started(serving)) == 3


@pytest.mark.process
def test_a_plan_that_is_refused_cannot_be_started(serving: Serving, root: Path):
    (root.parent / "train.py").write_text("def make(): ...\n")
    served = serving.start(root)
    text = posted(served, FORM)
    assert "That would not work" in text
    assert "it failed" in text
    assert "Start it" not in text


@pytest.mark.process
def test_tensorboard_is_started_once(serving: Serving, root: Path):
    run = make_run(root, "fish")
    served = serving.start(root)
    page = f"/runs/runs/{run.id}/tensorboard"
    assert served.ask(f"{page}/started").status == 404
    hold(serving)
    for _ in range(2):
        assert served.post(page).headers["location"] == f"{page}/started"
    assert "The link appears here" in served.ask(f"{page}/started").text
    end(serving, f"tensorboard {run.url}")
    assert started(serving) == [["tensorboard", run.url, "--port", "0"]]
    assert "It ended with exit status 3" in served.ask(f"{page}/started").text


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path):
    code = "import time; print('begun', flush=True); time.sleep(600)"
    starter = Starter(tmp_path / "state", tmp_path, (sys.executable, "-c", code))
    program = starter.run("x", ["x"], 1.0)
    assert program.is_late
    assert program.code == -9
    assert len(list((tmp_path / "state").iterdir())) == 2  # its output and its outcome
