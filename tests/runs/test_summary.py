from __future__ import annotations

from typing import Any

import pytest

from shoal.host.processes import Process
from shoal.runs.events import pack_exchanges
from shoal.runs.summary import LIST_FIELDS, WriterState, summarise

PLAN = {"strategy": "aeasgd", "workers": 2, "rows": 100, "epochs": 3}


def started(**fields: Any) -> dict[str, Any]:
    return {
        "kind": "run_started", "time": 1000.0, "t": 0.1, "pid": 7, "host": "h",
        **PLAN, **fields,
    }  # fmt: skip


def exchanges(*records: dict[str, Any], t: float = 1.0) -> dict[str, Any]:
    return {"kind": "exchanges", "t": t, **pack_exchanges(records)}


def ended(epoch: int, **fields: Any) -> dict[str, Any]:
    metrics = {"loss": 1.0 / (epoch + 1)}
    return {"kind": "epoch_ended", "epoch": epoch, "metrics": metrics, **fields}


def finished(status: str = "finished", *, t: float = 9.0, **report: Any) -> Any:
    return {"kind": "run_finished", "t": t, "status": status, "report": report}


def test_no_events():
    assert summarise([]).status == "running"


def test_a_finished_run():
    cost = {"compute_s": 3.0, "wait_s": 1.0, "exchange_s": 1.0}
    run = summarise(
        [
            {"kind": "run_created", "id": "i", "name": "n", "time": 1000.0},
            started(),
            {"kind": "worker_started", "rank": 0, "t": 2.5},
            {"kind": "worker_started", "rank": 1, "t": 2.7},
            exchanges(
                *[{"rank": 0, "epoch": e, "samples": 60, **cost} for e in (0, 1)]
            ),
            ended(0, samples=100),
            exchanges({"rank": 1, "epoch": 0, "samples": 40}),
            ended(1),
            {"kind": "worker_lost", "rank": 1},
            {"kind": "worker_replaced", "rank": 1, "seconds": 2.0},
            {"kind": "warning", "text": "w"},
            ended(2, samples=100),
            finished(),
        ],
        url="u",
    )
    assert (run.id, run.name, run.url, run.status) == ("i", "n", "u", "finished")
    assert (run.strategy, run.workers, run.rows) == ("aeasgd", 2, 100)
    assert (run.epochs, run.epochs_planned) == (3, 3)
    assert run.seconds == 9.0
    assert run.samples_expected == 300
    assert run.samples_committed == 100 + 60 + 100
    assert (run.exchanges, run.workers_lost, run.warnings) == (3, 1, ("w",))
    assert run.metrics == ({"loss": 1.0}, {"loss": 0.5}, {"loss": 1 / 3})
    assert run.report["startup_s"] == 2.5
    assert run.report["compute_share"] == 0.6
    assert run.report["best"] == {"metric": "loss", "value": 1 / 3, "epoch": 2}
    assert run.started.startswith("1970-01-01T")
    assert set(run.model_dump()) >= LIST_FIELDS


def test_the_plan_may_be_nested():
    event = {"kind": "run_started", "plan": {**PLAN, "strategy": {"name": "adag"}}}
    run = summarise([event])
    assert (run.strategy, run.workers, run.samples_expected) == ("adag", 2, 300)


def test_the_final_report_overrides_counts_of_events():
    report = {
        "samples_committed": 5,
        "samples_expected": 6,
        "exchanges": 7,
        "total_s": 8,
    }
    run = summarise([started(), ended(0), finished("finished", **report)])
    assert (run.samples_committed, run.samples_expected, run.exchanges) == (5, 6, 7)
    assert run.report["total_s"] == 8


def test_a_run_that_a_callback_stopped_expected_less():
    events = [started(), ended(0, samples=100)]
    assert summarise(events).samples_expected == 300
    assert summarise([*events, finished("interrupted")]).samples_expected == 300
    assert summarise([*events, finished()]).samples_expected == 100


@pytest.mark.parametrize(
    ("fields", "epochs", "expected"),
    [
        # steps_per_epoch=3 of 5: a long and a short epoch, by turns.
        ({"epoch_rows": [96, 64], "samples_expected": 320}, [0], 96),
        ({"epoch_rows": [96, 64], "samples_expected": 320}, [0, 1, 2], 256),
        ({"epoch_rows": [96, 64], "initial_epoch": 1}, [1], 96),
        ({"epoch_rows": [96], "models": 2, "samples_expected": 768}, [0], 192),
    ],
)
def test_expected_are_the_samples_of_the_epochs_that_ended(
    fields: dict[str, Any], epochs: list[int], expected: int
):
    members = [{}, {}] if "models" in fields else None
    ends = [ended(e, samples=expected // len(epochs), members=members) for e in epochs]
    run = summarise([started(epochs=5, **fields), *ends, finished()])
    assert run.samples_expected == expected


def test_samples_beyond_the_end_are_counted_apart():
    events = [
        started(epoch_rows=[100]),
        ended(0, samples=100),
        exchanges({"rank": 0, "epoch": 1, "samples": 60}),
    ]
    assert summarise(events).samples_committed == 160
    run = summarise([*events, finished()])
    assert (run.samples_committed, run.samples_expected) == (100, 100)
    assert run.samples_overrun == 60


def test_a_metric_that_is_no_number_is_not_the_best():
    values = [float("nan"), 0.5, 0.7]
    ends = [{**ended(e), "metrics": {"loss": v}} for e, v in enumerate(values)]
    best = summarise([started(monitor="loss"), *ends]).report["best"]
    assert (best["epoch"], best["value"]) == (1, 0.5)


def test_initial_epoch_counts_as_in_keras():
    run = summarise([started(initial_epoch=1), ended(1), ended(2), finished()])
    assert (run.epochs, run.epochs_planned, run.samples_expected) == (2, 2, 200)
    assert run.report["best"]["epoch"] == 2


def test_the_monitored_metric_is_the_best():
    events = [
        started(monitor="val_auc", is_higher_better=True),
        {**ended(0), "metrics": {"loss": 0.1, "val_auc": 0.7}},
        {**ended(1), "metrics": {"loss": 0.2, "val_auc": 0.9}},
    ]
    assert summarise(events).report["best"]["epoch"] == 1


@pytest.mark.parametrize(("is_alive", "expected"), [(True, "running"), (False, "lost")])
def test_a_run_whose_process_is_gone_is_lost(is_alive: bool, expected: str):
    asked: list[Process] = []
    look = lambda writer: asked.append(writer) or WriterState(is_alive, 7.0)  # noqa: E731
    segment = {"kind": "segment", "host": "h2", "pid": 8, "time": 1500.0}
    worker = {"kind": "worker_started", "host": "h3", "pid": 9, "time": 1600.0}
    found = summarise([started(), segment, worker], look=look)
    assert (found.status, found.heard_s) == (expected, 7.0)
    assert asked == [Process(host="h2", pid=8, seen_time=1500.0)]


@pytest.mark.parametrize("status", ["finished", "failed", "interrupted"])
def test_a_run_that_ended_is_not_lost(status: str):
    run = summarise(
        [started(), finished(status)], look=lambda _: WriterState(may_live=False)
    )
    assert run.status == status


def test_a_resumed_run_runs_again():
    assert (
        summarise([started(), finished("interrupted"), started()]).status == "running"
    )


def test_unknown_events_are_passed_over():
    assert summarise([{"kind": "news"}, {}, {"kind": None}]).status == "running"
