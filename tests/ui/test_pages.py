"""Pages over runs that stand: what they show, what they never show as HTML."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path

import pytest

from shoal.runs.catalogue import run_ids
from shoal.runs.events import encode, exchange_records, read_events
from shoal.runs.folder import Folder
from shoal.runs.store import create
from shoal.ui.app import CHANGE
from shoal.ui.curves import AXES
from shoal.ui.pages.run import EVENTS_FILE
from shoal.ui.pages.run_parts import PARTS
from tests.ui.conftest import Serving, Stream, make_run, remove_at_once

SCRIPT = "<script>alert(1)</script>"


def links_of(text: str) -> set[str]:
    found = re.findall(r'(?:href|src|action|data-events)="([^"]+)"', text)
    return {link.replace("&amp;", "&") for link in found if not link.startswith("#")}


def test_the_list_filters_and_orders(serving: Serving, root: Path):
    for day, (name, status) in enumerate(
        [("cod", "finished"), ("eel", "failed"), ("ray", "running")], 1
    ):
        make_run(root, name, status=status, day=day)
    served = serving.start(root)

    def names(query: str) -> list[str]:
        return re.findall(
            r' data-run="runs/\d+-\d+-\d+-(\w+)', served.ask(f"/?{query}").text
        )

    assert names("order=name") == ["ray", "cod", "eel"]  # running ones are on top
    assert names("order=-name") == ["ray", "eel", "cod"]
    assert names("q=COD") == ["cod"]
    assert names("state=failed") == ["eel"]
    assert names("q=nothing") == []
    assert names("order=__class__&page=x&state=<") == ["ray", "eel", "cod"]
    text = served.ask("/").text
    assert "val_loss 0.75" in text
    assert "100 %" in text


def test_sizes_on_a_storage_come_after_the_list(serving: Serving):
    root = "memory://test-pages-sizes"
    ended = make_run(root, "cod")
    running = make_run(root, "eel", status="running", day=2)
    served = serving.start(root)
    [key] = served.site.roots
    asked = "&".join(f"run={key}/{run.id}" for run in (ended, running))
    sized = re.compile(r'<td role="cell" class="end">[\d.]+ k?B</td>')
    assert not sized.search(served.ask("/").text)
    assert served.ask("/").text.count("data-unsized") == 1
    assert len(sized.findall(served.ask(f"/?part=rows&{asked}").text)) == 1
    assert len(sized.findall(served.ask("/").text)) == 1  # and is kept
    assert "data-unsized" not in served.ask("/").text


def test_no_run_and_no_root(serving: Serving, root: Path):
    text = serving.start(root).ask("/").text
    assert "shoal demo" in text
    assert "does not exist yet" in text


def test_every_link_of_every_page_leads_somewhere(serving: Serving, root: Path):
    run = make_run(root, "fish", status="running")
    served = serving.start(root, base="/a/shoal")
    pages, seen = ["/a/shoal/"], set[str]()
    while pages:
        page = pages.pop()
        if page in seen or len(seen) > 60:
            continue
        seen.add(page)
        # Streams have no end, and what changes something is posted.
        if page.partition("?")[0].endswith(
            ("/events", *(path.rpartition("/")[2] for path in CHANGE))
        ):
            continue
        answer = served.ask(page)
        assert answer.status == 200, page
        if "text/html" in answer.headers["content-type"]:
            found = links_of(answer.text)
            assert all(link.startswith("/a/shoal/") for link in found), found
            pages += sorted(found)
    assert f"/a/shoal/runs/runs/{run.id}/files/worker-0.log" in seen
    assert served.ask("/").status == 404
    assert served.ask("/a/shoalx/").status == 404


def test_the_page_of_a_run_shows_its_events(serving: Serving, root: Path):
    run = make_run(root, "fish", status="failed")
    run.write_plan({"strategy": SCRIPT, "explained": f"2 workers {SCRIPT}"})
    served = serving.start(root)
    page = f"/runs/runs/{run.id}"
    for query in ("", "?x=seconds", "?x=epoch&scale=log", "?x=<"):
        text = served.ask(f"/runs/runs/{run.id}{query}").text
        assert "worker 1 lost: killed by SIGKILL" in text
        assert text.count('<svg class="chart"') == 2
        assert "1,280 of 1,280 samples" in text
    assert "<pre>2 workers &lt;script&gt;" in served.ask(page).text
    assert "&#34;strategy&#34;: &#34;&lt;script&gt;" in served.ask(page).text
    assert f"shoal runs resume {run.url}" in served.ask(page).text
    asked = served.post("/choose", {"run": f"runs/{run.id}", "do": "remove"})
    assert run.id in asked.text


def test_leases_of_a_run_are_shown(serving: Serving, root: Path):
    run = make_run(root, "fish", status="running")
    page = f"/runs/runs/{run.id}"
    served = serving.start(root)
    text = served.ask(page).text
    assert "320 of 640 samples committed, 64 leased, 256 free" in text
    assert '<rect class="done" x="0.0%" width="50.0%"' in text
    assert '<rect class="w0" x="50.0%" width="10.0%"' in text
    assert '<rect class="back" x="60.0%" width="10.0%"' in text  # worker 1 is lost
    assert "<td>320 to 384</td>" in text


def test_charts_of_a_run_as_json(serving: Serving, root: Path):
    run = make_run(root, "fish")
    served = serving.start(root, has_charts=True)
    text = served.ask(f"/runs/runs/{run.id}").text
    assert "<svg" not in text.partition('id="leases"')[0]
    assert "/static/uplot.js" in text
    assert "<svg" in served.ask(f"/runs/runs/{run.id}?draw=svg").text
    for x in AXES:
        answer = served.ask(f"/runs/runs/{run.id}/series.json?x={x}")
        assert answer.headers["content-type"] == "application/json"
        found = json.loads(answer.text)
        assert found["x"] == x
        charts = {chart["name"]: chart for chart in found["charts"]}
        lines = {line["name"]: line for line in charts["loss"]["lines"]}
        assert lines["val_loss"]["y"] == [1.5, 0.75]
        assert [mark["text"] for mark in found["marks"]] == [
            "worker 1 lost: killed by SIGKILL",
            "run finished",
        ]
        assert len(lines["loss of exchanges"]["y"]) == 11  # the first one alone
        assert len(lines["worker 1"]["x"]) == 10
        assert charts["samples/s"]["part"] == "speed"
    answer = served.ask(f"/runs/runs/{run.id}/series.json?x=<&from=1&to=nan&smooth=x")
    assert json.loads(answer.text)["x"] == "samples"


def test_troubles_and_checkpoints_are_marks(serving: Serving, root: Path):
    run = create(str(root), "fish")
    run.event("run_started", strategy="adag", workers=2, rows=640, epochs=2)
    for number in range(60):
        run.event("checkpoint_written", number=number, bytes=1000)
    run.event("not_finite", rank=1, what="loss", reaction="rollback")
    run.event("rolling_back", reason="numbers are not finite")
    run.event("late", ranks=[0, 1])
    served = serving.start(root)
    found = json.loads(served.ask(f"/runs/runs/{run.id}/series.json").text)["marks"]
    assert [mark["text"] for mark in found if not mark["usual"]] == [
        "worker 1: NaN or infinity in loss",
        "going back to a checkpoint: numbers are not finite",
        "a round was closed without workers 0, 1",
    ]
    usual = [mark["text"] for mark in found if mark["usual"]]
    assert usual == [f"checkpoint {number}" for number in range(10, 60)]
    assert "going back to a checkpoint" in served.ask(f"/runs/runs/{run.id}").text


def test_a_smoothed_curve_keeps_the_raw_one_behind_it(serving: Serving, root: Path):
    run = make_run(root, "fish")
    served = serving.start(root, has_charts=True)

    def lines(query: str) -> dict[str, dict]:
        answer = served.ask(f"/runs/runs/{run.id}/series.json?{query}")
        [chart] = [c for c in json.loads(answer.text)["charts"] if c["name"] == "loss"]
        return {line["name"]: line for line in chart["lines"]}

    plain, soft = lines(""), lines("smooth=0.5")
    name = "loss of exchanges"
    assert soft[f"{name}, raw"]["y"] == plain[name]["y"]
    assert soft[name]["y"] != plain[name]["y"]
    part = lines("smooth=0.5&from=500&to=700")[name]
    assert len(part["y"]) < len(soft[name]["y"])
    assert set(part["y"]) <= set(soft[name]["y"])  # of all points, not of the window


def test_points_of_a_window(serving: Serving, root: Path):
    run = make_run(root, "fish")
    served = serving.start(root)
    answer = served.ask(f"/runs/runs/{run.id}/points.csv?x=samples&from=600&to=700")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [int(row["samples"]) for row in rows] == [640, 640, 640]


def test_points_are_those_of_the_events(serving: Serving, root: Path):
    run = make_run(root, "fish")
    answer = serving.start(root).ask(f"/runs/runs/{run.id}/points.csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    losses = [float(r["value"]) for r in rows if r["what"] == "loss of exchange"]
    records = exchange_records(read_events(run.folder))
    assert losses == [record["loss"] for record in records]
    assert [r["value"] for r in rows if r["what"] == "val_loss"] == ["1.5", "0.75"]
    assert answer.headers["content-disposition"].startswith("attachment")


def test_files_are_downloads(serving: Serving, root: Path):
    run = make_run(root, "fish")
    served = serving.start(root)
    answer = served.ask(f"/runs/runs/{run.id}/files/worker-0.log")
    assert answer.text == "hello\n\x1b[31mred\x1b[0m\n"
    assert answer.headers["content-disposition"] == (
        'attachment; filename="worker-0.log"'
    )
    answer = served.ask(f"/runs/runs/{run.id}/files/{EVENTS_FILE}")
    segments = sorted((root / run.id / "events").iterdir())
    assert answer.text == "".join(path.read_text() for path in segments)


def test_logs_are_paged_and_searched(serving: Serving, root: Path):
    run = make_run(root, "fish")
    lines = b"".join(b"line %d\n" % at for at in range(50_000))
    run.folder.write("experiments/worker-1.log", lines + b"ValueError: \x1b[2J\n")
    served = serving.start(root)
    text = served.ask(f"/runs/runs/{run.id}/logs?rank=1").text
    assert "line 49999" in text
    assert "line 1\n" not in text
    assert "<span>ValueError: \\x1b[2J" in text
    assert text.count('class="bad"') == 1
    found = served.ask(f"/runs/runs/{run.id}/logs?q=LINE+123&list=yes").text
    assert "Found: 111" in found
    [link] = [
        x for x in links_of(found) if x.endswith(f"at={lines.index(b'line 1234')}")
    ]
    assert "line 1234<" in served.ask(link).text


def test_new_lines_of_logs_are_sent(serving: Serving, root: Path):
    run = create(str(root), "fish")
    run.event("run_started", strategy="adag", workers=2, rows=640, epochs=2)
    run.folder.write("experiments/worker-0.log", b"hello\n\x1b[31mred\x1b[0m\n")
    path = root / run.id / "experiments" / "worker-1.log"
    served = serving.start(root)

    def new(ends: str, rank: str = "") -> dict:
        query = f"ends={ends}&rank={rank}"
        return json.loads(served.ask(f"/runs/runs/{run.id}/logs/new?{query}").text)

    def lines(found: dict) -> list[tuple[str, str]]:
        return re.findall(r'<li [^>]*?( class="bad")?>.*?<span>(.*?)<', found["lines"])

    first = new("")
    assert [text for _, text in lines(first)] == ["hello", "red"]
    assert not first["is_over"]
    path.write_bytes(b"one\nTraceback\n<half")
    found = new("0:19,x:y,::,9")
    assert lines(found) == [("", "one"), (' class="bad"', "Traceback")]
    assert found["ends"]["1"] == 14
    assert new("0:19,1:14")["lines"] == ""
    assert new("", rank="1")["lines"] == found["lines"]
    run.finish("finished")
    last = new("0:19,1:14")
    while not last["lines"]:  # a view is read again after a moment
        last = new("0:19,1:14")
    assert lines(last)[0][1] == "&lt;half"
    assert last["is_over"]


def test_lines_of_all_logs_come_in_the_order_in_which_they_were_written(
    serving: Serving, root: Path
):
    with create(str(root), "fish") as run:
        run.event("run_started", strategy="adag", workers=2, rows=640, epochs=2)
        for name, text in (("0", "a\nd\n"), ("1", "b\nc\ne\n")):
            run.folder.write(f"experiments/worker-{name}.log", text.encode())
        for sizes in ({0: 2}, {1: 4}, {0: 4}):
            run.event("log_sizes", sizes=sizes)
        run.finish("finished")
    served = serving.start(root)
    page = f"/runs/runs/{run.id}/logs"
    found = re.findall(
        r'data-rank="(\d)".*?(<time.*?</time>)?\s<span>(.)</span>',
        served.ask(page).text,
    )
    assert [(rank, text) for rank, _, text in found] == [
        ("0", "a"), ("1", "b"), ("1", "c"), ("0", "d"), ("1", "e")
    ]  # fmt: skip
    assert [bool(at) for _, at, _ in found] == [True] * 4 + [False]
    new = json.loads(served.ask(f"{page}/new?ends=&rank=0").text)
    assert new["lines"].count("<time ") == new["lines"].count("<li ") == 2


def test_all_logs_are_searched_in_place(serving: Serving, root: Path):
    run = make_run(root, "fish")
    lines = b"".join(b"line %d\n" % at for at in range(3000))
    run.folder.write("experiments/worker-1.log", lines)
    served = serving.start(root)
    page = f"/runs/runs/{run.id}/logs"
    found = json.loads(served.ask(f"{page}/found?q=LINE+299").text)
    assert found["next"] == ""
    assert found["lines"][0] == {"rank": 1, "offset": lines.index(b"line 299\n")}
    assert len(found["lines"]) == 11
    path, lines, places = f"{page}/found?q=line", [], set[str]()
    later = "0:0"
    while later:  # in parts
        part = json.loads(served.ask(f"{path}&from={later}").text)
        lines += part["lines"]
        later = part["next"]
        assert later not in places
        places.add(later)
    assert len(lines) == 3000
    assert len({line["offset"] for line in lines}) == 3000
    assert json.loads(served.ask(f"{page}/found?q=line&rank=0").text)["lines"] == []
    assert "The end of all logs, 2 workers" in served.ask(page).text
    assert "<h1>" not in served.ask(f"{page}?part=lines&rank=1").text


def test_text_of_a_run_is_escaped(serving: Serving, root: Path):
    with create(str(root), "x") as run:
        run.event("run_started", strategy=SCRIPT, workers=1, rows=1, epochs=1)
        run.event("worker_started", rank=0, pid=1, node=SCRIPT)
        run.event("warning", text=f"{SCRIPT}\u202e\x1b[2J{'x' * 10_000}")
        metrics = {SCRIPT: 1.0, "=1+1": 2.0, "{{7*7}}": 3.0}
        run.event("epoch_ended", epoch=0, samples=1, metrics=metrics)
        run.event("worker_lost", rank=0, reason=SCRIPT)
        run.event("node_used", node=SCRIPT, percent=1.0, memory_mib=1, total_mib=2)
        run.folder.write("experiments/worker-0.log", f"{SCRIPT}\n".encode() * 3)
        run.finish("failed", {"reason": f"{SCRIPT}\n{SCRIPT}"})
    named = root / SCRIPT.replace("/", "-")
    shutil.copytree(run.folder.path, named)
    served = serving.start(root)
    for name in (run.id, named.name.replace("<", "%3C").replace(">", "%3E")):
        for page in ("", "/logs", "/logs?q=script"):
            answer = served.ask(f"/runs/runs/{name}{page}")
            assert answer.status == 200
            assert "<script>" not in answer.text
            assert "\u202e" not in answer.text
            assert "\x1b" not in answer.text
        assert "'=1+1," in served.ask(f"/runs/runs/{name}/points.csv").text
    assert "<script>" not in served.ask("/").text


def test_damage_and_torn_lines_are_shown(serving: Serving, root: Path):
    run = make_run(root, "fish", status="running")
    segment = next((root / run.id / "events").glob("*1.jsonl"))
    with segment.open("ab") as file:
        file.write(b'{"kind": "from a later version", "x": {}}\n{"torn\n')
    served = serving.start(root)
    assert "running" in served.ask(f"/runs/runs/{run.id}").text
    with segment.open("ab") as file:
        file.write(encode({"kind": "run_finished", "status": []}))
    text = ""
    while "is damaged" not in text:  # a view is read again after a moment
        text = served.ask(f"/runs/runs/{run.id}").text


def test_chosen_runs_are_removed_after_a_question(serving: Serving, root: Path):
    gone, kept = make_run(root, "gone"), make_run(root, "kept", status="running")
    served = serving.start(root)
    asked = served.post("/choose", {"run": f"runs/{gone.id}", "do": "remove"})
    assert gone.id in asked.text
    assert len(run_ids(root)) == 2
    for _ in range(2):  # harmless when pressed twice
        answer = served.post("/remove", {"run": f"runs/{gone.id}", "sure": "yes"})
        assert answer.status == 303
    assert run_ids(root) == [kept.id]
    answer = served.post("/remove", {"run": f"runs/{kept.id}", "sure": "yes"})
    assert "is running" in answer.text
    assert run_ids(root) == [kept.id]
    assert served.ask(f"/runs/runs/{gone.id}").status == 404


def test_chosen_runs_are_compared(serving: Serving, root: Path):
    runs = [make_run(root, "cod"), make_run(root, "eel", status="failed")]
    for at, run in enumerate(runs):
        run.write_plan({"request": {"epochs": 2, "seed": at}, "batch_size": 64})
    served = serving.start(root, is_read_only=True)
    answer = served.post("/choose", {"run": f"runs/{runs[0].id}", "do": "compare"})
    assert answer.headers["location"].startswith("/compare?runs=runs")
    named = "&".join(f"runs=runs/{run.id}" for run in runs)
    text = served.ask(f"/compare?{named}&runs=runs/none&runs=..%2F..&x=epoch").text
    assert text.count("<polyline") == 4
    assert "request.seed" in text
    assert "request.epochs" not in text
    points = served.ask(f"/compare.csv?{named}&x=epoch").text
    rows = list(csv.DictReader(io.StringIO(points)))
    assert len(rows) == 8
    assert {row["run"] for row in rows} == {run.id for run in runs}
    first = [r["value"] for r in rows if r["run"] == runs[0].id and r["epoch"] == "2"]
    assert first == ["0.5", "0.75"]
    assert "Choose runs in" in served.ask("/compare").text


def test_a_stream_reports_changes_and_the_end(serving: Serving, root: Path):
    run = make_run(root, "fish", status="running")
    served = serving.start(root, has_charts=True)
    path = f"/runs/runs/{run.id}/events"
    stream = Stream(served, path)
    assert stream.answer.headers["content-type"].startswith("text/event-stream")
    first = stream.next()
    assert first["event"] == "change"
    segment = max((root / run.id / "events").iterdir())
    with segment.open("ab") as file:
        file.write(encode({"kind": "worker_lost", "rank": 0, "t": 9.0}))
    second = stream.next()
    assert int(second["id"]) > int(first["id"])
    whole, news = (json.loads(event["data"]) for event in (first, second))
    # Only what has changed is sent: what happened, and a mark, but no curve.
    assert set(whole["parts"]) == set(PARTS)
    assert {"moments", "workers"} <= set(news["parts"]) < set(PARTS)
    assert "worker 0 lost" in news["parts"]["moments"]
    assert all(chart["lines"] for chart in whole["series"]["charts"])
    assert all("same" in chart for chart in news["series"]["charts"])
    assert len(news["series"]["marks"]) == len(whole["series"]["marks"]) + 1
    remove_at_once(root / run.id)
    assert stream.next()["event"] == "removed"
    stream.close()


def test_all_pages_of_a_run_hear_of_its_end(serving: Serving, root: Path):
    """One that looks later, too: the site has forgotten the run by then."""
    run = make_run(root, "fish", status="running")
    served = serving.start(root)
    streams = [Stream(served, f"/runs/runs/{run.id}/events") for _ in range(2)]
    for stream in streams:
        assert stream.next()["event"] == "change"
    remove_at_once(root / run.id)
    assert streams[0].next()["event"] == "removed"
    served.site.views.of(Folder.at(root).child(run.id))  # as another page does
    assert streams[1].next()["event"] == "removed"
    for stream in streams:
        stream.close()


def test_a_page_that_has_just_been_read_is_not_told_to_read_again(
    serving: Serving, root: Path
):
    run = make_run(root, "fish", status="running")
    served = serving.start(root, has_charts=True)
    text = served.ask(f"/runs/runs/{run.id}").text
    [(path, version)] = re.findall(r'data-events="([^"]+)" data-version="(\d+)"', text)
    seen = int(version)
    stream = Stream(served, f"{path}?seen={seen}")
    segment = max((root / run.id / "events").iterdir())
    with segment.open("ab") as file:
        file.write(encode({"kind": "worker_lost", "rank": 0, "t": 9.0}))
    assert int(stream.next()["id"]) > seen
    stream.close()


def test_a_stream_sends_what_its_address_asks_for(serving: Serving, root: Path):
    run = make_run(root, "fish", status="running")
    served = serving.start(root, has_charts=True)
    for query, axis in (("x=epoch", "epoch"), ("x=<", "samples"), ("", "samples")):
        stream = Stream(served, f"/runs/runs/{run.id}/events?{query}")
        assert json.loads(stream.next()["data"])["series"]["x"] == axis
        stream.close()
    stream = Stream(served, f"/runs/runs/{run.id}/events?draw=svg")
    news = json.loads(stream.next()["data"])
    assert "series" not in news
    assert '<svg class="chart"' in news["parts"]["pictures"]
    stream.close()


def test_a_stream_continues_after_a_reconnect(serving: Serving, root: Path):
    run = make_run(root, "fish", status="running")
    served = serving.start(root)
    path = f"/runs/runs/{run.id}/events"
    stream = Stream(served, path)
    first = stream.next()
    stream.close()
    again = Stream(served, path, last=first["id"])
    segment = max((root / run.id / "events").iterdir())
    with segment.open("ab") as file:
        file.write(encode({"kind": "worker_lost", "rank": 0, "t": 9.0}))
    assert int(again.next()["id"]) > int(first["id"])
    again.close()


@pytest.mark.parametrize("count", [8])
def test_the_server_ends_with_open_streams(count: int, root: Path):
    run = make_run(root, "fish")
    serving = Serving(root.parent)
    served = serving.start(root)
    streams = [Stream(served, f"/runs/runs/{run.id}/events") for _ in range(count)]
    for stream in streams:
        stream.next()
    serving.close()
    for stream in streams:
        stream.close()
