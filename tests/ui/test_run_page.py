"""The page of a run: its numbers, its parts and its texts, as the server makes them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.runs.store import create
from shoal.ui.epoch_axis import EpochAxis
from shoal.ui.speeds import BINS, ROUNDS, slices, speeds
from tests.ui.conftest import Served, Serving, make_run

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
        assert times[-1] == times[0]
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
