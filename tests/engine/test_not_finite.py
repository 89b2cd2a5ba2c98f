"""Numbers that are not finite: found, named, and handled as `on_nan` says.

Whole trainings over real sockets with workers in threads; one row's target is NaN.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

from shoal.data.order import Order
from shoal.engine.coordination.ledger import Piece
from shoal.engine.transport.messages.worker_reports import NanReport
from shoal.engine.transport.messages.worker_to_server import NanStatus
from shoal.engine.worker.nan_policy import (
    REACTIONS,
    describe,
    error_of,
    is_finite,
    reaction_to,
    report,
    suspects,
    what_follows,
)
from shoal.errors import NotFinite
from shoal.strategies import get, registry
from shoal.testing.problems import LeastSquares
from tests.support.inline import Outcome, Setup, train
from tests.support.linear import LinearRows

PROBLEM = LeastSquares.seeded(rows=101, size=5)
BAD, BATCH, RATE = 43, 8, 0.3
ALONE = ("ensemble", "single")
EXCHANGING = [name for name in registry.names() if name not in ALONE]
WEIGHTS = [n for n in EXCHANGING if get(n).exchanges == "weights"]
PLAIN = [n for n in WEIGHTS if "plain" in get(n).promises]


class OneBadRow:
    """The rows of the problem; one target is NaN."""

    def __init__(self) -> None:
        self._rows = LinearRows(PROBLEM)

    def take(self, indices: Any) -> Any:
        x, y = self._rows.take(indices)
        return x, np.where(indices == BAD, np.float32(np.nan), y)


def setup(name: str, on_nan: str | None, **changes: Any) -> Setup:
    fields: dict[str, Any] = {"workers": 3, "epochs": 3, "batch_size": BATCH, **changes}
    made = Setup.linear(PROBLEM, get(name, **fields.pop("own", {})), RATE, **fields)
    return replace(made, source=OneBadRow(), reaction=reaction_to(on_nan))


def plain(left_out: list[tuple[int, int, int]]) -> Any:
    """Gradient descent over three epochs, without some batches (epoch, start, stop)."""
    weights: Any = np.zeros(PROBLEM.size, np.float32)
    for epoch in range(3):
        for start in range(0, PROBLEM.rows, BATCH):
            if any(e == epoch and a <= start < b for e, a, b in left_out):
                continue
            rows = np.arange(start, min(PROBLEM.rows, start + BATCH))
            weights = weights - np.float32(RATE) * PROBLEM.gradient(weights, rows)
    return weights


def skipped(outcome: Outcome) -> list[tuple[int, int, int]]:
    """Reports of workers about skipped samples; each names the harmful row."""
    events = outcome.of_kind("not_finite")
    for event in events:
        assert event["rows"] == [BAD]
        assert event["bad_rows"] == 1
        assert any(start <= BAD < stop for start, stop in event["ranges"])
    return [(e["epoch"], a, b) for e in events for a, b in e["ranges"]]


def check_counts(outcome: Outcome, left_out: list[tuple[int, int, int]]) -> None:
    """Each sample was committed once; metrics are of those that were trained on."""
    assert [end.rows for end in outcome.epochs] == [PROBLEM.rows] * 3
    for epoch, end in enumerate(outcome.epochs):
        lost = sum(b - a for e, a, b in left_out if e == epoch)
        assert np.isfinite(end.vector).all()
        assert np.isfinite(end.statistics).all()
        assert np.isfinite(end.metrics).all()
        assert end.metrics[1] == PROBLEM.rows - lost
    told = [
        sum(record.samples for record in outcome.records if record.epoch == epoch)
        for epoch in range(3)
    ]
    assert told == [PROBLEM.rows] * 3


# ------------------------------------------------------------------------ skip


@pytest.mark.parametrize("wants_slot", [True, False])
@pytest.mark.parametrize("name", EXCHANGING)
def test_harmful_samples_are_skipped_and_committed_once(
    name: str, wants_slot: bool
) -> None:
    outcome = train(setup(name, "skip", wants_slot=wants_slot))
    left_out = skipped(outcome)
    assert sorted({epoch for epoch, _, _ in left_out}) == [0, 1, 2]
    check_counts(outcome, left_out)
    assert PROBLEM.loss(outcome.vector) < PROBLEM.loss(np.zeros(PROBLEM.size, "f4"))


@pytest.mark.parametrize(
    ("name", "period"),
    [*((name, 1) for name in PLAIN), ("local_sgd", 3), ("downpour", 3), ("dynsgd", 3)],
)
def test_one_worker_trains_as_without_the_skipped_window(
    name: str, period: int
) -> None:
    outcome = train(setup(name, "skip", workers=1, own={"period": period}))
    left_out = skipped(outcome)
    check_counts(outcome, left_out)
    expected = plain(left_out)
    np.testing.assert_allclose(outcome.vector, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wants_slot", [True, False])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_all_reduce_skips_the_whole_step(workers: int, wants_slot: bool) -> None:
    """The curve is then the same with any number of workers."""
    outcome = train(setup("all_reduce", "skip", workers=workers, wants_slot=wants_slot))
    check_counts(outcome, skipped(outcome))
    step = [(epoch, BAD - BAD % BATCH, BAD - BAD % BATCH + BATCH) for epoch in range(3)]
    np.testing.assert_allclose(outcome.vector, plain(step), rtol=1e-4, atol=1e-5)
    # The optimizer has not counted the steps that were skipped.
    assert int.from_bytes(outcome.optimizer_state, "little") == 3 * 13 - 3


def test_a_shuffled_order_is_named_by_place_and_by_row() -> None:
    order = Order(rows=PROBLEM.rows, seed=5, shuffle=True)
    outcome = train(replace(setup("local_sgd", "skip"), order=order))
    events = outcome.of_kind("not_finite")
    assert [event["epoch"] for event in events] == [0, 1, 2]
    for event in events:
        ranges = event["ranges"]
        named = [order.indices(event["epoch"], a, b) for a, b in ranges]
        assert BAD in np.concatenate(named)
        assert event["rows"] == [BAD]
        # The step is the one whose batch has the row, of all steps of the window.
        assert event["step"] == event["last_step"]


# ------------------------------------------------------------------------ stop


@pytest.mark.parametrize("name", EXCHANGING)
def test_a_run_that_is_to_stop_says_where(name: str) -> None:
    with pytest.raises(NotFinite) as caught:
        train(setup(name, "stop"))
    error = caught.value
    assert error.rows == (BAD,)
    assert error.epoch == 0
    assert error.rank in (0, 1, 2)
    assert error.step is not None
    assert 1 <= error.step <= 13
    assert any(start <= BAD < stop for start, stop in error.samples)
    assert f"worker {error.rank} turned NaN" in str(error)
    assert f"row {BAD} of the data is not finite" in str(error)


def test_skip_stops_a_run_whose_first_weights_are_nan() -> None:
    lost = np.full(PROBLEM.size, np.nan, np.float32)
    for name in ("local_sgd", "all_reduce"):
        given = replace(setup(name, "skip", workers=1), vector=lost)
        with pytest.raises(NotFinite, match="on_nan='stop' ends"):
            train(given)


# ------------------------------------------------------------------------ warn


@pytest.mark.parametrize("name", ["aeasgd", "downpour", "local_sgd", "all_reduce"])
def test_the_default_goes_on_as_keras_and_warns(name: str) -> None:
    """Each worker warns once; NaN of others may make it warn."""
    with np.errstate(all="ignore"):
        outcome = train(setup(name, None))
    assert [end.rows for end in outcome.epochs] == [PROBLEM.rows] * 3
    assert np.isnan(outcome.vector).all()
    events = outcome.of_kind("not_finite")
    assert events[0]["epoch"] == 0
    assert {(e["reaction"], *e["rows"]) for e in events} == {("warn", BAD)}
    assert len({event["rank"] for event in events}) == len(events)
    if name != "aeasgd" and name != "downpour":  # in a round all meet the same harm
        assert len(events) == 1


# ---------------------------------------------------------------------- parts


FLOATS = some.floats(width=32, allow_nan=False, allow_infinity=False)


@given(arrays(np.float32, some.integers(1, 50), elements=FLOATS), some.data())
def test_finiteness_is_that_of_numpy(vector: Any, data: some.DataObject) -> None:
    assert is_finite(vector)
    place = data.draw(some.integers(0, vector.size - 1))
    vector[place] = data.draw(some.sampled_from([np.nan, np.inf, -np.inf]))
    assert not is_finite(vector)


def test_an_empty_vector_is_finite() -> None:
    assert is_finite(np.zeros(0, np.float32))


def test_all_rows_are_searched_and_the_first_are_named() -> None:
    x = {"a": np.zeros((20, 2, 2)), "b": np.arange(20)}
    y = np.zeros(20, "f4")
    x["a"][3, 1, 0] = np.inf
    y[5:15] = np.nan
    found = suspects((x, y), np.arange(100, 120))
    assert found == (3, 11, (103, 105, 106, 107, 108, 109, 110, 111))


def test_adjacent_ranges_are_joined() -> None:
    pieces = [Piece(1, 0, 4), Piece(1, 4, 8), Piece(1, 12, 16)]
    found = report("warn", "weights", pieces, (3, 9), suspects((), np.arange(1)))
    assert found.ranges == ((0, 8), (12, 16))
    assert describe(2, found) == (
        "the weights of worker 2 turned NaN or infinite in its steps 3 to 9, on "
        "samples 0 to 7 and 12 to 15 of the order of epoch 2; their data is finite"
    )


@pytest.mark.parametrize("name", [*REACTIONS, "warn"])
def test_the_message_says_what_follows(name: str) -> None:
    rows = suspects((np.full(12, np.nan),), np.arange(12))
    found = report(name, "loss", [Piece(0, 0, 12)], (1, 2), rows)
    assert "12 rows of the data are not finite, rows 0, 1, 2" in what_follows(0, found)
    assert isinstance(error_of(0, found), NotFinite)


@pytest.mark.parametrize(
    "wrong",
    [
        {"reaction": 3},
        {"what": "x" * 5000},
        {"step": -1},
        {"rows": "12"},
        {"ranges": [[0, 1]] * 2000},
        {"ranges": [[0, 1, 2]]},
        {"ranges": [[0, "many"]]},
        {"bad_rows": 1 << 70},
    ],
)
def test_a_malformed_report_is_not_passed_on(wrong: dict[str, Any]) -> None:
    rows = suspects((), np.arange(1))
    found = report("skip", "loss", [Piece(0, 0, 8)], (1, 2), rows)
    assert NanReport.parse(found.pack()) == found
    assert NanReport.parse(found.to_json()) == found
    with pytest.raises((TypeError, ValueError)):
        NanReport.parse({**found.pack(), **wrong})


def test_an_unknown_nan_status_is_refused() -> None:
    assert [NanStatus.parse(n) for n in range(4)] == [*NanStatus]
    for wrong in (-1, 4):
        with pytest.raises(ValueError, match="no number"):
            NanStatus.parse(wrong)
