"""The page of a run: its numbers, its parts and its texts, as the server makes them."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from starlette.requests import Request

from shoal.runs.control import asking
from shoal.runs.events import read_events
from shoal.runs.leases import LeaseFold
from shoal.runs.store import StoredRun, create
from shoal.runs.worker_status import worker_statuses
from shoal.ui.chart_tables import MOST_ROWS, table_of
from shoal.ui.charts import Points, Series, number
from shoal.ui.epoch_axis import EpochAxis
from shoal.ui.guard import Access
from shoal.ui.pages.run_parts import Parts
from shoal.ui.site import Site, roots_of
from shoal.ui.speeds import BINS, LEAST_SPAN_S, ROUNDS, slices, speeds
from tests.ui.conftest import Served, Serving, Stream, make_run

PUSHES = some.lists(
    some.tuples(
        some.one_of(some.floats(0.0, 1e-3), some.floats(0.0, 1e4)),
        some.integers(0, 4096),
    ),
    min_size=2,
    max_size=300,
)
"""Pushes: seconds since the one before, and samples."""


@given(PUSHES, some.integers(1, 5))
def test_a_speed_is_of_a_span_of_at_least_half_a_slice(
    pushes: list[tuple[float, int]], workers: int
):
    times = np.cumsum([gap for gap, _ in pushes])
    rows = np.array([rows for _, rows in pushes], dtype=np.float64)
    ends = slices(times, workers)
    if not len(ends):
        assert times[-1] - times[0] < LEAST_SPAN_S
        return
    whole = times[-1] - times[0]
    count = max(1, min(BINS, (len(times) - 1) // (ROUNDS * workers)))
    spans = np.diff(times[np.concatenate(([0], ends))])
    assert len(ends) <= count
    assert min(spans) >= whole / count / 2 * (1 - 1e-9)
    found = speeds(times, rows, ends)
    assert sum(found * spans) == pytest.approx(sum(rows[1:]))
    starts = np.concatenate(([0], ends[:-1])) + 1
    done = np.add.reduceat(rows, starts)
    assert np.all(found * (whole / count / 2) <= done * (1 + 1e-6))


def test_two_workers_that_push_at_the_same_moment_make_no_peak():
    begins = np.arange(0.0, 400.0, 0.5)
    times = np.stack([begins, begins + 0.001], axis=1).ravel()
    for until in range(5, len(times), 7):
        part = times[:until]
        found = speeds(part, np.full(until, 64.0), slices(part, 2))
        assert max(found) < 2 * 64 * 4, until


def charts_of(served: Served, run: str, query: str = "") -> dict[str, Any]:
    text = served.ask(f"/runs/runs/{run}/series.json?{query}").text
    return {chart["name"]: chart for chart in json.loads(text)["charts"]}


def test_no_speed_is_told_of_the_first_pushes(serving: Serving, root: Path):
    with create(str(root), "fish") as run:
        run.event("run_started", strategy="adag", workers=2, rows=640, epochs=2)
        push = {"epoch": 0, "samples": 64, "loss": 1.0}
        run.exchanges([{**push, "rank": 0, "t": 1.0}, {**push, "rank": 1, "t": 1.001}])
        served = serving.start(root)
        assert "Samples/s" not in served.ask(f"/runs/runs/{run.id}").text
        assert "samples/s" not in charts_of(served, run.id)


def test_a_window_of_epochs_is_one_of_epochs(serving: Serving, root: Path):
    run = make_run(root, "fish")
    served = serving.start(root)

    def samples(window: str) -> list[int]:
        text = served.ask(f"/runs/runs/{run.id}/points.csv?x=epoch&{window}").text
        return [int(row["samples"]) for row in csv.DictReader(io.StringIO(text))]

    assert samples("from=0.25&to=0.45") == [192, 256]
    assert samples("from=1.95&to=2") == [1280, 1280, 1280]  # with two metrics
    assert samples("from=7&to=9") == []


def test_exchanges_and_marks_lie_within_their_epochs(serving: Serving, root: Path):
    run = make_run(root, "fish")
    served = serving.start(root)
    lines = {
        one["name"]: one
        for one in charts_of(served, run.id, "x=epoch")["loss"]["lines"]
    }
    assert lines["worker 0"]["x"][:3] == [0.1, 0.3, 0.5]
    assert lines["loss of exchanges"]["x"][-1] == 2
    assert lines["loss"]["x"] == [1, 2]
    assert "bold" in lines["loss of exchanges"]["style"]
    assert lines["loss of exchanges"]["style"] != lines["loss"]["style"]


@given(
    some.lists(some.tuples(some.integers(0, 20), some.integers(0, 10_000))),
    some.integers(0, 500),
    some.integers(0, 5),
    some.lists(some.integers(0, 20_000)),
)
def test_more_samples_are_never_an_earlier_place(
    ended: list[tuple[int, int]], rows: int, first: int, samples: list[int]
):
    epochs = [{"epoch": number, "samples": count} for number, count in ended]
    axis = EpochAxis(epochs, rows=rows, first=first)
    found = axis.at(sorted(samples))
    assert np.all(np.isfinite(found))
    assert np.all(np.diff(found) >= 0)
    assert np.all(found >= first)


def test_the_losses_of_64_workers_are_drawn(serving: Serving, root: Path):
    with create(str(root), "many") as run:
        run.event("run_started", strategy="adag", workers=70, rows=640, epochs=2)
        for at in range(140):
            push = {"rank": at % 70, "samples": 64, "loss": 1.0 + at, "t": at / 10}
            run.exchanges([push])
    lines = charts_of(serving.start(root), run.id)["loss"]["lines"]
    faint = {one["name"]: one["y"] for one in lines if one["style"] == "faint"}
    assert list(faint) == [f"worker {rank}" for rank in range(64)]
    assert faint["worker 63"] == [64, 134]


def begin(root: Path) -> StoredRun:
    run = create(str(root), "live")
    run.event("run_started", strategy="adag", workers=2, rows=640, epochs=2)
    for rank in range(2):
        run.event("worker_started", rank=rank, pid=7 + rank, node="localhost")
    return run


def parts_of(served: Served, run: StoredRun, query: str = "") -> dict[str, str]:
    stream = Stream(served, f"/runs/runs/{run.id}/events?{query}")
    try:
        return json.loads(stream.next()["data"])["parts"]
    finally:
        stream.close()


def test_the_stream_tells_of_files_logs_and_the_plan(serving: Serving, root: Path):
    with begin(root) as run:
        served = serving.start(root)
        stream = Stream(served, f"/runs/runs/{run.id}/events")
        before = json.loads(stream.next()["data"])["parts"]
        assert "This run has no plan yet" in before["plan"]
        assert "/logs" not in before["nav"]
        run.write_plan({"strategy": "adag", "explained": "2 workers"})
        run.folder.write("experiments/worker-0.log", b"hello\n")
        run.folder.write("models/last.keras", b"model")
        run.finish("finished")
        after = json.loads(stream.next()["data"])["parts"]
        stream.close()
    assert "<pre>2 workers</pre>" in after["plan"]
    assert "/logs" in after["nav"]
    files = re.findall(r"download>(.*?)</a>", after["files"])
    assert files == ["plan.json", "last.keras", "worker-0.log", "events.jsonl"]


REASON = """DataError: worker 1 at step 0: ValueError: bad <cell>
second line. See that rows are whole.

Traceback (most recent call last):
  File "fail.py", line 13
ValueError: bad <cell>
second line"""


def test_a_failed_run_shows_its_whole_reason(serving: Serving, root: Path):
    with begin(root) as run:
        run.finish("failed", {"reason": REASON})
    parts = parts_of(serving.start(root), run)
    assert (
        "Failed: DataError: worker 1 at step 0: ValueError: bad &lt;cell&gt;\n"
        "second line. See that rows are whole.</p>"
    ) in parts["head"]
    assert (
        '<details open><summary>Traceback</summary><pre class="bad">Tr'
        in (parts["head"])
    )
    assert "<td>failed: DataError: worker 1 at step 0" in parts["workers"]
    assert "<td>stopped</td>" in parts["workers"]


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        ("finished", "", ["done", "done"]),
        ("interrupted", "KeyboardInterrupt", ["stopped", "stopped"]),
        ("failed", "ClusterError: no room", ["stopped", "stopped"]),
        ("failed", REASON, ["stopped", "failed"]),
        ("failed", "WorkerLost: worker 9 stopped answering", ["stopped", "stopped"]),
        ("failed", f"X: worker {'9' * 5000} failed", ["stopped", "stopped"]),
    ],
)
def test_workers_end_as_their_run(status: str, reason: str, expected: list[str]):
    events = [{"kind": "worker_started", "rank": rank} for rank in range(2)]
    end = {"kind": "run_finished", "status": status, "report": {"reason": reason}}
    assert [one.state for one in worker_statuses([*events, end])] == expected


def test_the_reason_of_a_death_stays_after_the_replacement(
    serving: Serving, root: Path
):
    with begin(root) as run:
        run.event("worker_lost", rank=1, reason="killed by SIGKILL " + "x" * 200)
        run.event("worker_started", rank=1, pid=9, node="n" * 60)
        [_, one] = worker_statuses(read_events(run.folder))
        assert (one.state, one.reason) == ("working", "")
        assert one.reason_before.startswith("killed by SIGKILL")
        text = parts_of(serving.start(root), run)["workers"]
    assert "working; the process before: " in text
    assert f'title="killed by SIGKILL {"x" * 200}"' in text
    assert f'title="{"n" * 60}"' in text
    assert "time of the run</th>" in text
    assert '<td class="end">none</td>' in text


def test_leases_of_an_ended_run_tell_when_they_were_reported(
    serving: Serving, root: Path
):
    held = {"epoch": 0, "rows": 640, "committed": [0, 384], "leased": {}}
    fold = LeaseFold()
    fold.add({"kind": "leases", "t": 12.25, "epochs": [held]})
    assert [one.t for one in fold.epochs(is_over=True)] == [12.25]
    with begin(root) as run:
        run.event("leases", epochs=[held])
        served = serving.start(root)
        assert "as it was reported last" not in parts_of(served, run)["leases"]
        run.finish("failed", {"reason": "no room"})
    text = parts_of(served, run, "seen=0")["leases"]
    assert re.search(
        r"Epoch 1, as it was reported last, at [\d.]+ s of the run: 384", text
    )


def test_checkpoints_are_listed_with_their_times(serving: Serving, root: Path):
    with begin(root) as run:
        for number in range(3):
            run.event(
                "checkpoint_written",
                number=number,
                epoch=number,
                samples=640,
                bytes=6700,
            )
        served = serving.start(root)
        parts = parts_of(served, run)
        assert "ago" not in parts["head"]
        assert re.search(r"6.7 kB, <time datetime=.*? data-exact>", parts["head"])
        rows = re.findall(r'<tr><th scope="row">(\d)', parts["checkpoints"])
        assert rows == ["2", "1", "0"]
        run.finish("finished")
    parts = parts_of(served, run, "seen=0")
    assert "removed, as the run ended well" in parts["head"]
    assert "so its checkpoints were removed" in parts["checkpoints"]


def test_the_estimate_of_the_time_left_is_text(serving: Serving, root: Path):
    with begin(root) as run:
        for at in range(8):
            push = {"rank": 0, "samples": 64, "loss": 1.0, "t": float(at)}
            run.exchanges([push])
        text = parts_of(serving.start(root), run)["head"]
    assert "about 12 s <small>at the speed of the last 10 s</small>" in text


def test_each_picture_has_a_table_and_tells_its_zone(serving: Serving, root: Path):
    run = make_run(root, "fish")
    served = serving.start(root)
    text = served.ask(f"/runs/runs/{run.id}?x=time").text
    for name in ("loss", "samples/s"):
        assert f"<summary>{name} as a table</summary>" in text
    assert re.search(r">time of day, \w+, UTC[+-]\d{4}</text>", text)
    text = served.ask(f"/runs/runs/{run.id}?x=epoch").text
    row = (
        r'<tr><th scope="row">2</th><td class="end">[\d.]+</td><td class="end">0.5</td>'
    )
    assert re.search(row, text)
    other = served.ask(f"/compare?runs=runs/{run.id}").text
    assert other.count('<svg class="chart"') == other.count(" as a table</summary>")


@given(some.lists(some.integers(0, 3000), min_size=1, max_size=9))
def test_a_table_has_the_ends_of_each_line(counts: list[int]):
    lines = [
        Series(
            name=f"{at}",
            points=Points.of(np.arange(count) * (at + 1.5), np.ones(count)),
        )
        for at, count in enumerate(counts)
    ]
    faint = Series(name="worker 0", points=Points.of([-1], [1]), style="faint")
    found = table_of([*lines, faint], number)
    assert len(found.rows) <= MOST_ROWS
    assert list(found.names) == [one.name for one in lines]
    places = {place for place, _ in found.rows}
    for one in lines:
        ends = one.points.x[[0, -1]].tolist() if len(one.points) else []
        assert {number(end) for end in ends} <= places


def test_whole_numbers_are_sent_exactly(serving: Serving, root: Path):
    with begin(root) as run:
        run.event(
            "epoch_ended", epoch=0, samples=1_255_808, metrics={"hits": 1_234_567}
        )
        run.finish("finished")
    [line] = charts_of(serving.start(root), run.id)["hits"]["lines"]
    assert line["y"] == [1_234_567]


def test_a_line_tells_the_span_that_a_window_is_of(serving: Serving, root: Path):
    run = make_run(root, "fish")
    served = serving.start(root)
    lines = charts_of(served, run.id, "from=600&to=700")["loss"]["lines"]
    assert {one["name"]: one["span"] for one in lines}["worker 0"] == [64, 1216]


def test_a_request_to_stop_names_its_user():
    user = psutil.Process().username()
    assert asking("shoal ui").startswith(f"{user} (shoal ui, process ")


EVENTS = some.one_of(
    some.builds(
        lambda rank: {
            "kind": "exchanges",
            "columns": ["rank", "epoch", "samples", "t", "loss", "compute_s"],
            "rows": [[rank, 0, 64, 1.0, 0.5, 0.1]],
        },
        some.integers(0, 2),
    ),
    some.builds(
        lambda epoch, loss: {
            "kind": "epoch_ended", "epoch": epoch, "samples": 64,
            "metrics": {"loss": loss},
        },
        some.integers(0, 2), some.floats(0, 1),
    ),
    some.builds(
        lambda epoch, loss: {
            "kind": "epoch_scored", "epoch": epoch, "metrics": {"val_loss": loss},
        },
        some.integers(0, 2), some.floats(0, 1),
    ),
    some.builds(
        lambda rank, until: {
            "kind": "leases",
            "epochs": [{"epoch": 0, "rows": 640, "committed": [0, until],
                        "leased": {str(rank): [until, until + 64]}}],
        },
        some.integers(0, 2), some.sampled_from([64, 128]),
    ),
    some.sampled_from([
        {"kind": "worker_started", "rank": 1, "pid": 7},
        {"kind": "worker_lost", "rank": 1, "reason": "it was killed"},
        {"kind": "checkpoint_written", "number": 1, "epoch": 0, "samples": 64},
        {"kind": "rollback", "committed": {"0": 0}},
        {"kind": "warning", "text": "an odd thing"},
        {"kind": "stop_asked", "by": "somebody"},
        {"kind": "interrupted", "samples": 64},
        {"kind": "run_finished", "status": "failed", "report": {"reason": "gone"}},
        {"kind": "run_finished", "status": "finished"},
        {"kind": "run_resumed", "workers": 2},
    ]),
)  # fmt: skip


@given(some.lists(EVENTS, min_size=1, max_size=8))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_open_page_has_the_parts_that_a_new_one_has(
    serving: Serving, root: Path, events: list[dict[str, Any]]
):
    access = Access(token="x", port=1)
    site = Site(
        roots=roots_of([str(root)]),
        access=access,
        starter=serving.starter,
        has_charts=True,
    )
    run = create(str(root), "fish")
    run.event("run_started", strategy="adag", workers=2, rows=640, epochs=2)
    of = {"root": "runs", "run": run.id}
    request = Request({"type": "http", "path_params": of, "query_string": b""})
    view = site.views.of(run.folder)
    page, shown = Parts(site, request, view), dict[str, str]()
    for event in events:
        run.event(event["kind"], **{k: v for k, v in event.items() if k != "kind"})
        view.advance(math.inf)
        shown |= page.changed()
        assert shown == Parts(site, request, view).changed()
    run.close()
