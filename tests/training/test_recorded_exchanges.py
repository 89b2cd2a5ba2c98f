"""Losses and times of exchanges: pure, and as a run records them."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import shoal
from shoal.runs.events import exchange_records, read_events
from shoal.runs.folder import Folder
from shoal.training.run_clock import RunClock
from tests.api.problems import line, linear


@given(
    some.lists(
        some.lists(some.floats(0, 100), min_size=1, max_size=5).map(sorted),
        max_size=5,
    )
)
def test_times_of_servers_become_times_of_the_run(batches: list[list[float]]):
    clock, now = RunClock(), 0.0
    for times in batches:
        now += 100.0
        found = clock.times(times, now)
        assert found == sorted(found)
        assert all(0 <= time <= now + 1e-6 for time in found)


@pytest.mark.parametrize("thresholds", [0, 200])
@pytest.mark.parametrize("strategy", ["downpour", "all_reduce"])
def test_a_run_records_losses_times_and_rates(
    strategy: str, thresholds: int, tmp_path: Path
):
    # With thresholds it has more numbers than a record of an exchange.
    at = np.linspace(0, 1, thresholds).tolist()
    wide = [keras.metrics.Precision(at)] if at else []
    history = shoal.fit(
        linear(metrics=wide), *line(), epochs=2, batch_size=16, verbose=0,
        strategy=strategy, workers=2, cluster="inline", run=str(tmp_path),
    )  # fmt: skip
    events = list(read_events(Folder.at(history.run.url)))
    for epoch, expected in enumerate(history.history["loss"]):
        records = [r for r in exchange_records(events) if r["epoch"] == epoch]
        total = sum(r["loss"] * r["samples"] for r in records)
        mean = total / sum(r["samples"] for r in records)
        assert mean == pytest.approx(expected, rel=1e-4)
    times = [r["t"] for r in exchange_records(events)]
    assert times == sorted(times)
    assert times[-1] <= events[-1]["t"]
    ends = [event for event in events if event["kind"] == "epoch_ended"]
    assert all(event["learning_rate"] > 0 for event in ends)


@pytest.mark.process
def test_exchanges_of_many_metrics_of_processes_have_a_loss(
    kept: shoal.Session, tmp_path: Path
):
    wide = keras.metrics.Precision(np.linspace(0, 1, 200).tolist())
    history = kept.fit(
        linear(metrics=[wide]), *line(), epochs=1, batch_size=16, verbose=0,
        strategy="downpour", workers=2, run=str(tmp_path),
    )  # fmt: skip
    records = list(exchange_records(read_events(Folder.at(history.run.url))))
    total = sum(r["loss"] * r["samples"] for r in records)
    mean = total / sum(r["samples"] for r in records)
    assert mean == pytest.approx(history.history["loss"][0], rel=1e-4)


def test_times_of_older_runs_are_mended():
    rows = [[0, 1.0], [1, 1.73]]
    event = {"kind": "exchanges", "columns": ["rank", "t"], "rows": rows, "t": 6.86}
    assert [r["t"] for r in exchange_records([event])] == [6.13, 6.86]
    new = {**event, "clock": "run"}
    assert [r["t"] for r in exchange_records([new])] == [1.0, 1.73]
