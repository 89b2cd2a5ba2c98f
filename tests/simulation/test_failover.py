"""Random schedules of a leading server and its standby: a fail-over changes no result.

`make simulate` runs fifty times as many.
"""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks import simulate
from shoal.engine.server.replication import Replication
from tests.simulation.failover import KINDS, FailoverRun, draw
from tests.simulation.failover.scenario import SERVERS, WORKERS
from tests.simulation.protocol import Violation

SCHEDULES = 200
BLOCK = 50


@pytest.mark.parametrize("first", range(0, SCHEDULES, BLOCK))
def test_every_schedule_keeps_all_invariants(first: int) -> None:
    _, broken = simulate.simulate_failovers(first, first + BLOCK)
    commands = [f"python -m benchmarks.simulate --standby {seed}" for seed in broken]
    assert not broken, "\n".join([*commands, *broken.values()])


def test_schedules_contain_every_kind_of_trouble() -> None:
    tally: Counter[str] = Counter()
    for seed in range(60):
        tally += FailoverRun(draw(seed)).run().tally
    assert {*SERVERS, *WORKERS, *simulate.FAILOVER_LABELS} <= set(+tally)


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    assert FailoverRun(draw(seed)).run().log == FailoverRun(draw(seed)).run().log


def test_a_failing_seed_says_how_to_replay_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Replication, "_release", lambda self: None)  # all wait for ever
    _, broken = simulate.simulate_failovers(0, 2)
    seed, why = next(iter(broken.items()))
    simulate.report(seed, why, "--standby")
    command = f"python -m benchmarks.simulate --standby {seed}"
    assert command in capsys.readouterr().out
    assert simulate.replay(FailoverRun(draw(seed))) == 1
    assert why in capsys.readouterr().out
    with pytest.raises(Violation) as caught:
        FailoverRun(draw(seed)).run()
    assert "leader hears" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("seed", [1419, 1479, 1915, 2895])
def test_a_step_that_closes_before_a_worker_is_ready_is_taken(seed: int) -> None:
    """The answer to "ready" may be a step with fewer rows than workers."""
    FailoverRun(draw(seed)).run()


@pytest.mark.parametrize("seed", [2731, 4827])
def test_without_a_barrier_a_snapshot_may_hold_the_next_epochs_steps(seed: int) -> None:
    assert not draw(seed).has_barrier
    FailoverRun(draw(seed)).run()
