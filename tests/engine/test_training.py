"""Whole runs over real sockets, workers in threads, without a framework."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any, final

import numpy as np
import pytest

from shoal.data.order import Order
from shoal.engine.environment import SystemEnvironment
from shoal.engine.transport.codec import CODECS
from shoal.errors import WorkerFailed
from shoal.strategies import get, registry
from shoal.testing import faults
from shoal.testing.problems import LeastSquares
from tests.support.inline import Cluster, Outcome, Setup, train
from tests.support.linear import LinearBackend

PROBLEM = LeastSquares.seeded(rows=101, size=5)
NAMES = [name for name in registry.names() if name != "ensemble"]
EXCHANGING = [name for name in NAMES if name != "single"]
ROUNDS = [name for name in EXCHANGING if not get(name).is_asynchronous]
PLAIN = [name for name in NAMES if "plain" in get(name).promises]
RATE = 0.3
ALONE = "all_reduce, alone"
"""A worker that takes windows of steps, as long as it has no partner."""


def setup(name: str, **changes: Any) -> Setup:
    given: dict[str, Any] = {
        "workers": 1 if name in ("single", ALONE) else 3,
        "epochs": 3,
        "alone_steps": 3 if name == ALONE else 0,
        **changes,
    }
    name = name.partition(",")[0]
    return Setup.linear(PROBLEM, get(name), RATE, **given)


def plain(epochs: int, batch_size: int) -> Any:
    """Gradient descent in a simple loop."""
    weights: Any = np.zeros(PROBLEM.size, np.float32)
    for _ in range(epochs):
        for start in range(0, PROBLEM.rows, batch_size):
            rows = np.arange(start, min(PROBLEM.rows, start + batch_size))
            weights = weights - np.float32(RATE) * PROBLEM.gradient(weights, rows)
    return weights


def check_counts(outcome: Outcome, epochs: int = 3) -> None:
    """Each sample of each epoch counts once: by the ledger, by records, by metrics."""
    rows = PROBLEM.rows
    assert [end.rows for end in outcome.epochs] == [rows] * epochs
    assert [end.metrics[1] for end in outcome.epochs] == [rows] * epochs
    assert not np.isnan(outcome.vector).any()


@pytest.mark.parametrize("wants_slot", [True, False])
@pytest.mark.parametrize("has_barrier", [True, False])
@pytest.mark.parametrize("name", [*NAMES, ALONE])
def test_every_sample_is_committed_once(
    name: str, wants_slot: bool, has_barrier: bool
) -> None:
    given = setup(name, wants_slot=wants_slot, has_barrier=has_barrier)
    outcome = train(given)
    check_counts(outcome)
    by_epoch = [
        sum(record.samples for record in outcome.records if record.epoch == epoch)
        for epoch in range(3)
    ]
    assert by_epoch == [PROBLEM.rows] * 3
    assert PROBLEM.loss(outcome.vector) < PROBLEM.loss(np.zeros(PROBLEM.size, "f4"))


@pytest.mark.parametrize("wants_slot", [True, False])
@pytest.mark.parametrize("has_barrier", [True, False])
@pytest.mark.parametrize("name", EXCHANGING)
def test_windows_may_be_computed_while_others_are_exchanged(
    name: str, has_barrier: bool, wants_slot: bool
) -> None:
    given = setup(name, wants_slot=wants_slot, has_barrier=has_barrier)
    outcome = train(replace(given, has_overlap=True))
    check_counts(outcome)
    assert PROBLEM.loss(outcome.vector) < PROBLEM.loss(np.zeros(PROBLEM.size, "f4"))


@final
class Later(Future[Any]):
    """An answer that is fetched only when it is looked for."""

    def __init__(self, work: Any) -> None:
        super().__init__()
        self._work: Any = work

    def result(self, timeout: float | None = None) -> Any:
        work, self._work = self._work, None
        if work is not None:
            self.set_result(work())
        return super().result(timeout)


@pytest.mark.parametrize("name", ["aeasgd", "downpour"])
def test_steps_are_taken_before_the_answer_is_there(name: str) -> None:
    taken = list[int]()

    class Backend(LinearBackend):
        def run(self, data: Any, steps: int, clock: Any) -> int | None:
            taken.append(sum(later._work is not None for later in asked))
            return super().run(data, steps, clock)

    asked = list[Later]()

    class Patient(SystemEnvironment):
        def in_background(self, work: Any) -> Any:
            asked.append(Later(work))
            return asked[-1]

    given = Setup.linear(PROBLEM, get(name, period=2), RATE, epochs=3)
    given = replace(given, environment=Patient())
    opener = lambda spec, _: Backend(PROBLEM.size, spec, RATE)  # noqa: E731
    outcome = train(replace(given, has_overlap=True, open_backend=opener))
    check_counts(outcome)
    assert max(taken) == 1
    assert taken.count(0) <= 6  # where an epoch begins, and where it runs out
    assert taken.count(1) >= 12
    assert PROBLEM.loss(outcome.vector) < PROBLEM.loss(np.zeros(PROBLEM.size, "f4"))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", [*EXCHANGING, ALONE])
def test_encoded_vectors_train_as_well(name: str, codec: str) -> None:
    given = setup(name, wants_slot=False)
    outcome, plainly = train(replace(given, codec=codec)), train(given)
    check_counts(outcome)
    found, expected = PROBLEM.loss(outcome.vector), PROBLEM.loss(plainly.vector)
    begun = PROBLEM.loss(np.zeros(PROBLEM.size, "f4"))
    if name in [*ROUNDS, ALONE]:  # which repeat: what differs is the rounding
        assert found - expected <= 0.01 * (begun - expected)
    else:
        assert found < begun


@pytest.mark.parametrize("codec", CODECS)
def test_all_reduce_keeps_common_weights_with_encoded_vectors(codec: str) -> None:
    """Each worker applies the same mean: the model of one is that of all."""
    states: dict[int, set[bytes]] = {}

    class Backend(LinearBackend):
        def apply(self, mean: Any, clock: Any) -> None:
            super().apply(mean, clock)
            states.setdefault(self.steps, set()).add(self.read()[0].tobytes())

    given = replace(setup("all_reduce", wants_slot=False), codec=codec)
    train(replace(given, open_backend=lambda s, _: Backend(PROBLEM.size, s, RATE)))
    assert len(states) == 39
    assert {len(found) for found in states.values()} == {1}


@pytest.mark.parametrize("wants_slot", [True, False])
@pytest.mark.parametrize("name", PLAIN)
def test_one_worker_that_exchanges_each_step_trains_plainly(
    name: str, wants_slot: bool
) -> None:
    given = Setup.linear(
        PROBLEM, get(name, period=1), RATE, epochs=2, wants_slot=wants_slot
    )
    outcome = train(given)
    check_counts(outcome, 2)
    np.testing.assert_allclose(outcome.vector, plain(2, 8), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wants_slot", [True, False])
@pytest.mark.parametrize("alone_steps", [0, 4])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("batch_size", [10, 100, 101])
def test_all_reduce_trains_plainly(
    workers: int, batch_size: int, alone_steps: int, wants_slot: bool
) -> None:
    # 10 and 100 over 3 and 7 are uneven shares; a last batch of one row leaves all
    # workers but one without any.
    fields = {"workers": workers, "batch_size": batch_size}
    fields["alone_steps"] = alone_steps
    outcome = train(setup("all_reduce", wants_slot=wants_slot, **fields))
    check_counts(outcome)
    expected = plain(3, batch_size)
    np.testing.assert_allclose(outcome.vector, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*ROUNDS, ALONE])
def test_rounds_repeat_bit_for_bit(name: str) -> None:
    one, two = train(setup(name)), train(setup(name, wants_slot=False))
    np.testing.assert_array_equal(one.vector, two.vector)


def test_adag_divides_by_the_steps_that_were_taken() -> None:
    problem = LeastSquares.seeded(rows=36, size=5)  # five steps, the last one short
    strategy = get("adag", period=12)
    outcome = train(Setup.linear(problem, strategy, RATE))
    [record] = outcome.records
    assert record.steps == 5
    whole = train(Setup.linear(problem, get("single", period=12), RATE))
    np.testing.assert_allclose(outcome.vector, whole.vector / 5, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 40, 41])
def test_the_last_short_window_and_batch_are_committed(rows: int) -> None:
    problem = LeastSquares.seeded(rows=rows, size=5)
    given = Setup.linear(problem, get("downpour", period=4), RATE, workers=2, epochs=2)
    outcome = train(given)
    assert [end.rows for end in outcome.epochs] == [rows, rows]
    assert outcome.records[-1].samples <= 32


def test_epochs_of_uneven_length() -> None:
    order = Order(rows=101, shuffle=False, batch_size=8, steps_per_epoch=5)
    given = Setup.linear(PROBLEM, get("local_sgd"), RATE, workers=2, epochs=4)
    outcome = train(replace(given, order=order))
    assert [end.rows for end in outcome.epochs] == [40, 40, 21, 40]


def test_statistics_ride_beside_the_weights() -> None:
    problem = LeastSquares.seeded(rows=64, size=5)
    outcome = train(Setup.linear(problem, get("all_reduce"), RATE, workers=2))
    last = problem.features[-8:].astype(np.float32) @ problem.optimum
    assert outcome.epochs[0].statistics[0] == pytest.approx(last.mean(), rel=1e-4)


@pytest.mark.parametrize("wants_slot", [True, False])
@pytest.mark.parametrize("rows", [1, 8, 9, 101])
def test_one_worker_of_all_reduce_takes_the_path_of_single(
    rows: int, wants_slot: bool
) -> None:
    """The same windows of the same programs, and so the same bits."""
    problem = LeastSquares.seeded(rows=rows, size=5)
    given: dict[str, Any] = {"epochs": 3, "wants_slot": wants_slot}
    alone = train(
        Setup.linear(problem, get("all_reduce"), RATE, alone_steps=4, **given)
    )
    single = train(Setup.linear(problem, get("single", period=4), RATE, **given))
    for one, other in zip(alone.epochs, single.epochs, strict=True):
        np.testing.assert_array_equal(one.vector, other.vector)
        np.testing.assert_array_equal(one.statistics, other.statistics)
        np.testing.assert_array_equal(one.metrics, other.metrics)
        assert one.rows == other.rows == rows
    assert alone.optimizer_state == single.optimizer_state
    steps = [record.steps for record in alone.records]
    assert max(steps) == min(4, max(1, rows // 8))
    assert sum(steps) == 3 * -(-rows // 8)


def test_a_worker_is_alone_exchanges_and_is_alone_again() -> None:
    """Windows end when a second worker takes part, and begin again when it is lost."""
    epochs = 60
    watch = faults.leave(rank=1, step=5)
    given = setup(ALONE, watch=watch, late=(150,), epochs=epochs)
    with Cluster(given) as cluster:
        hear = cluster._keep

        def without_another(head: Any, body: Any, *, is_over: bool) -> None:
            hear(head, body, is_over=is_over or head["kind"] == "left")

        cluster._keep = without_another  # type: ignore[method-assign]
        outcome = cluster.run()
    check_counts(outcome, epochs)
    np.testing.assert_allclose(outcome.vector, plain(epochs, 8), rtol=1e-4, atol=1e-5)
    ranks = [record.rank for record in outcome.records]
    shared = [place for place, rank in enumerate(ranks) if rank == 1]
    steps = [record.steps for record in outcome.records]
    assert max(steps[: shared[0]]) == 3
    assert max(steps[shared[0] : shared[-1] + 1]) == 1
    assert max(steps[shared[-1] + 1 :]) == 3


# ------------------------------------------------------------------- failures


@pytest.mark.parametrize("has_barrier", [True, False])
@pytest.mark.parametrize("name", [*EXCHANGING, ALONE])
def test_lost_and_joining_workers_change_no_count(name: str, has_barrier: bool) -> None:
    watch = faults.leave(rank=1, step=3).leave(rank=2, step=1)
    watch = watch.leave(rank=1, step=2, incarnation=2)
    outcome = train(setup(name, watch=watch, late=(60, 150), has_barrier=has_barrier))
    check_counts(outcome)


@pytest.mark.parametrize("name", [*EXCHANGING, ALONE])
def test_all_workers_are_lost(name: str) -> None:
    watch = faults.leave(rank=0, step=4).leave(rank=1, step=4)
    outcome = train(setup(name, workers=2, watch=watch))
    check_counts(outcome)


@pytest.mark.parametrize("step", [4, 13, 20])
@pytest.mark.parametrize("name", ["all_reduce", ALONE])
@pytest.mark.parametrize("wants_slot", [True, False])
def test_all_reduce_without_workers_goes_back_to_its_snapshot(
    step: int, name: str, wants_slot: bool
) -> None:
    watch = faults.leave(rank=0, step=step)
    outcome = train(setup(name, workers=1, watch=watch, wants_slot=wants_slot))
    check_counts(outcome)
    [rollback] = outcome.of_kind("rollback")
    epoch = (step - 1) // 13  # the snapshots are of the ends of epochs
    assert list(rollback["committed"].values()) == [101] * epoch + [0]
    # Nothing that was rolled back is in the weights, nor is anything missing.
    np.testing.assert_allclose(outcome.vector, plain(3, 8), rtol=1e-4, atol=1e-5)
    # The optimizer's state goes on where the snapshot was taken.
    assert int.from_bytes(outcome.optimizer_state, "little") == 39


@pytest.mark.parametrize("name", ["all_reduce", ALONE])
def test_a_worker_that_joins_all_reduce_ends_with_the_same_weights(name: str) -> None:
    # A thread starts when it likes: with few epochs the run may be over before.
    epochs = 30
    outcome = train(setup(name, workers=1, late=(16, 40, 150), epochs=epochs))
    check_counts(outcome, epochs)
    assert len({record.rank for record in outcome.records}) == 4
    np.testing.assert_allclose(outcome.vector, plain(epochs, 8), rtol=1e-4, atol=1e-5)


def test_code_that_raises_ends_the_run_with_its_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watch = faults.fail(rank=1, step=3)
    with pytest.raises(WorkerFailed, match="a test has failed this worker") as caught:
        train(setup("aeasgd", watch=watch))
    assert "faults.py" in caught.value.traceback
    assert "faults.py" in capsys.readouterr().out
