"""What a run shows: live lines, logs, notebooks, events, advice. No processes."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.engine.server.records import Record
from shoal.errors import ShoalWarning
from shoal.facts import DataFacts, Gpu, MachineFacts, ModelFacts
from shoal.plan import Plan, Request, resolve
from shoal.strategies import get
from shoal.training.progress import ProgressDisplay, line_of


def make_plan(strategy: str = "aeasgd", epochs: int = 3, gpus: int = 0) -> Plan:
    return resolve(
        Request(strategy=get(strategy), workers=2, epochs=epochs),
        ModelFacts(name="m", parameters=9, statistics=0, optimizer="SGD"),
        DataFacts(rows=1000, size_bytes=8000),
        MachineFacts(
            cores=2, gpus=tuple(Gpu(number=n, name=str(n)) for n in range(gpus))
        ),
    )


def record(t: float, rank: int = 0, **fields: Any) -> Record:
    known: dict[str, Any] = {
        "epoch": 0, "samples": 250, "steps": 8, "version": 1, "staleness": 1,
        "compute_s": 0.5, "data_s": 0.0, "wait_s": 0.0, "exchange_s": 0.1,
    }  # fmt: skip
    return Record(t=t, rank=rank, **{**known, **fields})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Notebook = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})


def show(
    stream: io.StringIO, verbose: int | str, monkeypatch: pytest.MonkeyPatch
) -> str:
    """One epoch of a run in which a worker dies, as it appears on a stream."""
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("shoal.training.progress.PACE_S", 0.0)
    progress = ProgressDisplay(make_plan(), verbose)
    progress.epoch_begin(0)
    for rank in (0, 1):
        progress.event("worker_started", {"rank": rank})
    progress.update([record(1.0, staleness=3)], lambda: {"loss": 0.5})
    progress.event("worker_lost", {"rank": 1, "reason": "killed by SIGKILL"})
    progress.update([record(2.0)], lambda: {"loss": 0.25})
    progress.event("worker_replaced", {"rank": 1, "seconds": 2.5})
    progress.epoch_end(1000, {"loss": 0.125, "val_loss": 0.5, "accuracy": 0.75})
    progress.close()
    return stream.getvalue()


EVENTS = [
    "worker 1 is lost: killed by SIGKILL",
    "worker 1 is replaced, 2.5 s later",
]
LAST = (
    "Epoch 1/3  1,000 samples  1.5 s  667 samples/s  "
    "loss 0.125  accuracy 0.75  val_loss 0.5"
)


@pytest.mark.parametrize("verbose", [1, 2, "auto"])
def test_a_log_gets_a_line_an_epoch(
    verbose: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert show(io.StringIO(), verbose, monkeypatch).splitlines() == [*EVENTS, LAST]


def test_the_line_of_a_lost_server_names_what_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    progress = ProgressDisplay(make_plan(), 2)
    progress.event("server_lost", {"reason": "killed", "has_standby": True})
    progress.event("server_lost", {"reason": "the server of the run is gone: killed"})
    progress.close()
    assert "the server is lost: killed; its standby leads now" in stream.getvalue()
    assert "is gone: killed; going on from the last checkpoint" in stream.getvalue()


@pytest.mark.parametrize(
    ("stream", "verbose", "is_told"),
    [(Terminal, 1, True), (Terminal, 0, False), (io.StringIO, 1, False)],
)
def test_a_live_line_names_the_pending_score(
    stream: Any, verbose: int, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = stream()
    monkeypatch.setattr(sys, "stdout", shown)
    progress = ProgressDisplay(make_plan(), verbose)
    progress.awaiting(1)
    assert ("Epoch 2/3  validating" in shown.getvalue()) is is_told


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_verbose_0_prints_nothing(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert show(stream(), 0, monkeypatch) == ""


def test_problems_are_warnings_with_verbose_0() -> None:
    with pytest.warns(ShoalWarning, match="turned NaN"):
        ProgressDisplay(make_plan(), 0).event(
            "warning", {"text": "a weight turned NaN"}
        )


def test_verbose_2_prints_one_line_for_each_epoch_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert show(Terminal(), 2, monkeypatch).splitlines() == [*EVENTS, LAST]


@pytest.mark.parametrize("verbose", [1, "auto"])
def test_a_terminal_has_a_live_line(
    verbose: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = show(Terminal(), verbose, monkeypatch)
    lines = [part for part in shown.split("\r\x1b[K") if part]
    assert lines == [
        "Epoch 1/3  starting 2 workers",
        "Epoch 1/3   25%  500 samples/s  loss 0.5  2 workers  staleness 3.0  0:02 left",
        EVENTS[0] + "\n",
        "Epoch 1/3   50%  333 samples/s  loss 0.25  1 worker  staleness 2.0  0:02 left",
        EVENTS[1] + "\n" + LAST + "\n",
    ]


def test_a_notebook_has_a_live_line_without_codes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = show(Notebook(), "auto", monkeypatch)
    assert "\x1b" not in shown
    # What is left of a line after the last return is what a reader sees.
    seen = [line.rpartition("\r")[2] for line in shown.split("\n") if line]
    assert seen == [*EVENTS, LAST]


@pytest.mark.parametrize(
    ("columns", "middle"),
    [
        (99, "   25%  500 samples/s  loss 0.5  mae 0.25  2 workers  staleness 1.0"),
        (80, "   25%  500 samples/s  loss 0.5  mae 0.25  2 workers"),
        (66, "   25%  500 samples/s  loss 0.5  mae 0.25"),
        (60, "   25%  500 samples/s  loss 0.5"),
        (50, "   25%  loss 0.5"),
        (30, "   25%"),
        (21, ""),
    ],
)
def test_a_narrow_terminal_keeps_the_time_left(
    columns: int, middle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", stream := Terminal())
    monkeypatch.setenv("COLUMNS", str(columns))
    progress = ProgressDisplay(make_plan(), 1)
    progress.update([record(1.0)], lambda: {"loss": 0.5, "mae": 0.25})
    shown = stream.getvalue().removeprefix("\r\x1b[K")
    assert shown == f"Epoch 1/3{middle}  0:02 left"
    assert len(shown) < columns


@given(
    some.lists(some.tuples(some.integers(0, 5), some.text(min_size=1, max_size=9))),
    some.integers(1, 60),
)
def test_a_narrow_line_drops_the_least_important_fields(
    fields: list[tuple[int, str]], columns: int
) -> None:
    fields = [*fields, (9, "left")]
    line = line_of(fields, columns)
    assert len(line) <= columns
    assert line.endswith("left"[:columns])
    if line == line_of(fields):
        return
    # What is left of a line that was too long: all the heavier ones, in order.
    ranked = sorted(range(len(fields)), key=lambda n: (-fields[n][0], n))
    lines = [
        "  ".join(fields[n][1] for n in sorted(ranked[:kept]))
        for kept in range(1, len(fields) + 1)
    ]
    fitting = [text for text in lines if len(text) <= columns]
    assert line == max(fitting, key=len, default="left"[:columns])


@pytest.mark.parametrize(
    ("strategy", "exchange_s", "gpus", "is_advised"),
    [
        ("all_reduce", 2.0, 0, True),
        ("all_reduce", 0.1, 0, False),
        ("all_reduce", 2.0, 2, False),
        ("local_sgd", 2.0, 0, False),
    ],
)
def test_advice_after_a_run_that_mostly_exchanged(
    strategy: str, exchange_s: float, gpus: int, is_advised: bool
) -> None:
    progress = ProgressDisplay(make_plan(strategy, gpus=gpus), 0)
    records = [record(t, exchange_s=exchange_s) for t in range(4)]
    progress.update(records, dict)
    advice = progress.advice()
    assert (advice is not None) == is_advised
    if advice is not None:
        assert advice.startswith("all_reduce spent 80% of the workers' time exchanging")
        assert "strategy='auto'" in advice
