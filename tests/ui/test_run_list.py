"""The list of runs: roots that cannot be read, its address, its stream, removals."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from shoal.host.locks import HeldLock
from shoal.runs import catalogue
from shoal.runs.catalogue import run_ids
from shoal.runs.folder import Folder
from shoal.runs.outlines import OUTLINE
from shoal.runs.store import create, open_run
from shoal.runs.writer import LOCK
from shoal.ui import storage_calls
from shoal.ui.pages import list_changes
from tests.ui.conftest import Served, Serving, Stream, make_run, remove_at_once


class Away(MemoryFileSystem):
    """A storage that is away for a while, with an error that is no OSError."""

    protocol = "away"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    is_away = False
    answers: ClassVar[threading.Event] = threading.Event()
    asked = 0

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        Away.asked += 1
        assert Away.answers.wait(60)
        if Away.is_away:
            raise RuntimeError("no answer from <endpoint>")
        return super().ls(path, detail=detail, **options)


@pytest.fixture
def away() -> Iterator[str]:
    """The URL of a root on it."""
    fsspec.register_implementation("away", Away, clobber=True)
    Away.store.clear()
    Away.answers.set()
    yield "away://bucket/runs"
    Away.answers.set()
    Away.is_away = False


def shown(text: str) -> list[str]:
    """The runs of a list, without their dates."""
    return re.findall(r' data-run="[\w-]+/\d+-\d+-\d+-(\w+)', text)


def ticked(text: str) -> list[str]:
    return re.findall(r'name="run" value="[\w-]+/\d+-\d+-\d+-(\w+)-\w+" checked', text)


# ------------------------------------------------------- roots that cannot be read


def test_a_root_that_cannot_be_read_hides_no_other(
    serving: Serving, root: Path, away: str
):
    make_run(root, "cod")
    far = make_run(away, "eel")
    served = serving.start(root, further=[away])
    key = list(served.site.roots)[1]
    assert shown(served.ask("/").text) == ["eel", "cod"]
    Away.is_away = True
    answer = served.ask("/")
    assert answer.status == 200
    assert shown(answer.text) == ["cod"]
    assert "no answer from &lt;endpoint&gt;" in answer.text
    text = html.unescape(answer.text)
    assert f"{away} cannot be read: RuntimeError" in text
    assert "start shoal ui with another --root" in text
    for path in ("", "/logs", "/events", "/files/plan.json"):
        answer = served.ask(f"/runs/{key}/{far.id}{path}")
        assert answer.status == 503
        assert f"{away} cannot be read" in answer.text
    rows = served.ask(f"/?part=rows&run={key}/{far.id}")
    assert (rows.status, shown(rows.text)) == (200, [])
    answer = served.post("/remove", {"run": f"{key}/{far.id}", "sure": "yes"})
    assert answer.status == 409
    assert f"{away} cannot be read" in answer.text
    Away.is_away = False
    assert shown(served.ask("/").text) == ["eel", "cod"]


def test_a_root_that_does_not_answer_holds_up_no_other(
    serving: Serving, root: Path, away: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(storage_calls, "LIMIT_S", 0.05)
    monkeypatch.setattr(list_changes, "REST_S", 0.05)
    make_run(root, "cod")
    far = make_run(away, "eel")
    served = serving.start(root, further=[away])
    key = list(served.site.roots)[1]
    Away.answers.clear()
    Away.asked = 0
    for _ in range(3):
        text = html.unescape(served.ask("/").text)
        assert shown(text) == ["cod"]
        assert f"{away} has not answered within 0.05 s" in text
        assert "cannot be read" not in text
    assert Away.asked == 1
    stream = Stream(served, "/events")
    assert stream.next()["event"] == "begun"
    Away.answers.set()
    assert json.loads(stream.next()["data"])["new"] == [f"{key}/{far.id}"]
    stream.close()
    late = served.site.calls.begin(("rows", key), lambda: ([], True))
    late.result(None)
    monkeypatch.setattr(storage_calls, "LIMIT_S", 60.0)
    assert shown(served.ask("/").text) == ["eel", "cod"]


def test_a_root_that_cannot_be_read_is_not_called_empty(serving: Serving, away: str):
    served = serving.start(away)
    Away.is_away = True
    text = served.ask("/").text
    assert f"{away} cannot be read" in text
    assert "There is no run yet" not in text


def test_runs_of_a_root_that_is_away_are_not_called_gone(
    serving: Serving, root: Path, away: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(list_changes, "BEAT_S", 0.05)
    monkeypatch.setattr(list_changes, "REST_S", 0.05)
    make_run(root, "cod")
    make_run(away, "eel")
    served = serving.start(root, further=[away])
    stream = Stream(served, "/events")
    assert stream.next()["event"] == "begun"
    Away.is_away = True
    new = make_run(root, "ray")
    news = json.loads(stream.next()["data"])
    assert news == {"gone": [], "new": [f"runs/{new.id}"], "changed": []}
    stream.close()


# ------------------------------------------------------------------- the address


def test_the_list_is_ordered_by_state(serving: Serving, root: Path):
    for name, status in (
        ("cod", "interrupted"),
        ("eel", "finished"),
        ("ray", "failed"),
    ):
        make_run(root, name, status=status)
    served = serving.start(root)
    assert shown(served.ask("/?order=state").text) == ["eel", "ray", "cod"]
    assert shown(served.ask("/?order=-state").text) == ["cod", "ray", "eel"]
    assert "order=state" in served.ask("/").text


def test_chosen_runs_are_in_the_address(serving: Serving, root: Path):
    cod, eel = make_run(root, "cod"), make_run(root, "eel", status="failed")
    served = serving.start(root)
    named = [("chosen", f"runs/{run.id}") for run in (cod, eel)]
    text = served.ask(f"/?{urlencode([*named, ('chosen', 'runs/<i>')])}").text
    assert sorted(ticked(text)) == ["cod", "eel"]
    assert "<i>" not in text
    text = served.ask(f"/?{urlencode([*named, ('q', 'cod')])}").text
    assert ticked(text) == ["cod"]
    assert "1 of the chosen runs is not shown" in text
    # It is sent all the same, and links of the list keep it.
    assert f'type="hidden" name="run" value="runs/{eel.id}"' in text
    [link] = re.findall(r'href="([^"]+)">Took<', text)
    assert (
        html.unescape(link)
        == f"/?{urlencode([('q', 'cod'), ('order', 'took'), *named])}"
    )
    assert ticked(served.ask("/").text) == []  # of a row that is remembered, too


def test_the_browser_searches_the_texts_of_the_server(serving: Serving, root: Path):
    make_run(root, "cod")
    served = serving.start(root)
    [text] = re.findall('data-text="([^"]+)"', served.ask("/").text)
    for word, is_found in (("adag", True), ("finished", True), ("val_loss", False)):
        assert (word in text) == is_found
        assert bool(shown(served.ask(f"/?q={word}").text)) == is_found


def test_a_setting_that_is_cut_has_its_whole_in_the_title(serving: Serving, root: Path):
    setting = f"aeasgd:beta=0.5,<{'x' * 60}>"
    with create(str(root), "cod") as run:
        run.event("run_started", strategy="aeasgd", setting=setting, workers=2)
        run.finish("finished")
    text = serving.start(root).ask("/").text
    assert f'title="{html.escape(setting)}"' in text


def test_the_first_page_names_the_tutorial(serving: Serving, root: Path):
    served = serving.start(root)
    place = "docs/tutorial/index.md"
    assert (Path(__file__).parents[2] / place).exists()
    for page in ("/", "/help"):
        assert place in served.ask(page).text


# -------------------------------------------------------------------- the stream


def data_of(stream: Stream, kind: str) -> dict[str, Any]:
    event = stream.next()
    assert event["event"] == kind
    return json.loads(event["data"])


def test_the_stream_tells_of_runs_that_go_on(
    serving: Serving, root: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(list_changes, "LOOK_S", 0.05)
    run = make_run(root, "cod", status="interrupted")
    served = serving.start(root)
    stream = Stream(served, "/events")
    assert data_of(stream, "begun")["count"] == 1
    os.utime(root / run.id, (2e9, 2e9))  # as a file is made in it
    news = data_of(stream, "list")
    assert news == {"gone": [], "new": [], "changed": [f"runs/{run.id}"]}
    remove_at_once(root / run.id)
    assert data_of(stream, "list")["gone"] == [f"runs/{run.id}"]
    stream.close()


def test_the_stream_tells_of_a_run_that_begins_late(
    serving: Serving, root: Path, monkeypatch: pytest.MonkeyPatch
):
    """A folder is claimed, and only later made a run: its root tells of the first."""
    monkeypatch.setattr(list_changes, "AGAIN_S", 0.0)
    monkeypatch.setattr(list_changes, "LOOK_S", 0.05)
    gone = make_run(root, "cod")
    served = serving.start(root)
    stream = Stream(served, "/events")
    assert data_of(stream, "begun")["count"] == 1
    late = root / "2026-01-01-late-abc"
    late.mkdir()
    remove_at_once(root / gone.id)
    assert data_of(stream, "list")["gone"] == [f"runs/{gone.id}"]
    (late / "events").mkdir()
    assert data_of(stream, "list")["new"] == [f"runs/{late.name}"]
    stream.close()


def test_the_stream_tells_of_runs_of_a_storage_that_go_on(
    serving: Serving, away: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(list_changes, "REST_S", 0.05)
    run, _ = make_run(away, "cod", status="interrupted"), make_run(away, "eel")
    served = serving.start(away)
    [key] = served.site.roots
    served.ask("/")
    stream = Stream(served, "/events")
    assert data_of(stream, "begun")["changed"] == [f"{key}/{run.id}"]
    with open_run(run.folder.url) as again:
        again.event("run_resumed", workers=2)
        news = data_of(stream, "list")
        assert news == {"gone": [], "new": [], "changed": [f"{key}/{run.id}"]}
        rows = served.ask(f"/?part=rows&run={key}/{run.id}").text
        assert 'data-state="interrupted"' not in rows
    stream.close()
    # A page that comes back hears what it has not seen, and nothing of a later time.
    written = run.folder.written_unix(OUTLINE)
    for last, changed in ((written - 9e5, [f"{key}/{run.id}"]), (written + 9e5, [])):
        stream = Stream(served, "/events", f"{last:.3f}")
        names = [f"{key}/{run.id}"] if changed else []
        assert data_of(stream, "begun")["changed"] == names
        stream.close()


def test_a_storage_is_asked_of_few_runs_and_only_for_those_who_look(
    serving: Serving, root: Path, away: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(list_changes, "REST_S", 0.05)
    monkeypatch.setattr(list_changes, "MOST_ASKED", 2)
    asked: list[str] = []
    written = Folder.written_unix

    def noted(folder: Folder, name: str) -> float:
        assert threading.current_thread() is not threading.main_thread()
        asked.append(folder.name)
        return written(folder, name)

    monkeypatch.setattr(Folder, "written_unix", noted)
    make_run(root, "cod", status="interrupted")
    here = serving.start(root)
    stream = Stream(here, "/events")
    data_of(stream, "begun")
    make_run(root, "eel")
    data_of(stream, "list")
    stream.close()
    assert asked == []  # a root on a disk of this machine
    for name, status in (("a", "failed"), ("b", "interrupted"), ("c", "failed")):
        make_run(away, name, status=status)
    make_run(away, "d")  # has finished, as the list knows: nothing resumes it
    served = serving.start(away)
    served.ask("/")
    assert asked == []
    stream = Stream(served, "/events")
    data_of(stream, "begun")
    make_run(away, "e", status="failed")
    data_of(stream, "list")
    stream.close()
    names = [name.split("-")[3] for name in asked]
    assert sorted(names[:2]) == ["b", "c"]
    assert set(names) == {"b", "c", "e"}


def test_pages_share_what_they_ask_of_a_storage(serving: Serving, away: str):
    make_run(away, "cod")
    served = serving.start(away)
    Away.asked = 0
    known = list_changes._listed(served.site, {}, 0.0)
    assert list_changes._listed(served.site, known, 30.0) == known
    assert Away.asked == 1
    make_run(away, "eel")
    Away.asked = 0
    assert len(list_changes._listed(served.site, known, 0.0)) == 2
    assert Away.asked == 1


def test_a_page_hears_what_changed_since_it_was_read(serving: Serving, root: Path):
    old, new = make_run(root, "cod"), make_run(root, "eel")
    for run, at in ((old, 1e9), (new, 1.5e9)):
        os.utime(root / run.id, (at, at))
    served = serving.start(root)
    for seen, last, found in (
        ("1200000000.5", "", [new]), ("", "1200000000.5", [new]),
        ("1700000000", "", []), ("1700000000", "999999999", [old, new]),
        ("x", "", []), ("1e400", "", []),
    ):  # fmt: skip
        stream = Stream(served, f"/events?seen={seen}", last)
        names = [f"runs/{run.id}" for run in found]
        assert data_of(stream, "begun")["changed"] == names
        stream.close()


# --------------------------------------------------------------------- removals


def remove(served: Served, name: str) -> Any:
    return served.post("/remove", {"run": f"runs/{name}", "sure": "yes"})


def test_a_run_is_never_removed_by_the_beginning_of_its_name(
    serving: Serving, root: Path, monkeypatch: pytest.MonkeyPatch
):
    run = make_run(root, "cod")
    shutil.copytree(root / run.id, root / f"{run.id}-copy")
    served = serving.start(root)
    found = type(served.site).find

    def find(site: Any, key: str, name: str) -> Any:
        folder = found(site, key, name)
        shutil.rmtree(root / run.id)  # somebody else removes it meanwhile
        return folder

    monkeypatch.setattr(type(served.site), "find", find)
    remove(served, run.id)
    assert run_ids(root) == [f"{run.id}-copy"]


def test_a_damaged_run_is_removed(serving: Serving, root: Path):
    run = make_run(root, "cod")
    for segment in (root / run.id / "events").iterdir():
        segment.write_bytes(b'{"kind": "run_finished", "status": []}\n')
    (root / run.id / "outline.json").unlink()
    served = serving.start(root)
    assert "damaged" in served.ask("/").text
    lock = HeldLock.take(root / run.id / LOCK)
    assert lock is not None
    answer = remove(served, run.id)  # a process still writes in it
    assert answer.status == 409
    assert "is running" in answer.text
    lock.close()
    asked = served.post("/choose", {"run": f"runs/{run.id}", "do": "remove"})
    assert run.id in asked.text
    assert remove(served, run.id).status == 303
    assert run_ids(root) == []


@pytest.mark.parametrize(("age_s", "is_removed"), [(5.0, False), (9e9, True)])
def test_a_damaged_run_on_a_storage_is_removed_when_its_heart_is_still(
    age_s: float, is_removed: bool, serving: Serving, monkeypatch: pytest.MonkeyPatch
):
    place = f"memory://test-run-list-damaged-{is_removed}"
    folder = Folder.at(place).child("cod")
    folder.write("events/000000.jsonl", b'{"kind": "run_finished", "status": []}')
    folder.write("heartbeats/0123456789abcdef.json", b"{}")
    monkeypatch.setattr(catalogue, "heard_s", lambda *_: age_s)
    served = serving.start(place)
    [key] = served.site.roots
    answer = served.post("/remove", {"run": f"{key}/cod", "sure": "yes"})
    assert answer.status == (303 if is_removed else 409)
    assert run_ids(place) == ([] if is_removed else ["cod"])


def test_a_removal_says_how_many(serving: Serving, root: Path):
    run = make_run(root, "cod")
    make_run(root, "eel")
    served = serving.start(root)
    told = []
    for _ in range(2):
        place = remove(served, run.id).headers["location"]
        told.append((place, served.ask(place).text))
    assert told[0][0] == "/?removed=1"
    assert "1 run was removed" in told[0][1]
    assert "was gone already" in told[1][1]
    for bad in ("<b>", "-1", "", "²"):
        text = served.ask(f"/?{urlencode({'removed': bad})}").text
        assert "removed" not in text.partition("<form")[0]


def test_all_chosen_runs_go_on_to_the_comparison(serving: Serving, root: Path):
    served = serving.start(root, is_read_only=True)
    token = served.site.access.form_token
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "Origin": f"http://127.0.0.1:{served.port}",
    }
    for count in (25, 1000):
        names = [f"runs/{at}" for at in range(count)]
        form = [("do", "compare"), ("form_token", token), *(("run", n) for n in names)]
        body = urlencode(form).encode()
        answer = served.ask("/choose", method="POST", headers=headers, body=body)
        wanted = urlencode([("runs", name) for name in names])
        if count == 25:
            assert answer.headers["location"] == f"/compare?{wanted}"
        else:
            assert answer.status == 409
            assert "1,000 runs were chosen" in answer.text


def test_a_run_without_events_is_damaged_everywhere(serving: Serving, root: Path):
    (root / "cod" / "events").mkdir(parents=True)
    served = serving.start(root)
    for page in ("/", "/runs/runs/cod"):
        text = served.ask(page).text
        assert 'class="state damaged"' in text
        assert "holds no event that can be read" in text
