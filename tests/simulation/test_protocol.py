"""Random schedules of whole runs: each ends, and counts every sample once.

`make simulate` runs fifty times as many.
"""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks import simulate
from shoal.engine.coordination.sequencer import Sequencer
from tests.simulation.protocol import KINDS, ProtocolRun, Violation, draw

SCHEDULES = 2_000
BLOCK = 250


@pytest.mark.parametrize("first", range(0, SCHEDULES, BLOCK))
def test_every_schedule_keeps_all_invariants(first: int) -> None:
    _, broken = simulate.simulate(first, first + BLOCK)
    commands = [f"python -m benchmarks.simulate --seed {seed}" for seed in broken]
    assert not broken, "\n".join([*commands, *broken.values()])


def test_schedules_contain_every_kind_of_trouble() -> None:
    tally: Counter[str] = Counter()
    kinds: set[tuple[str, bool]] = set()
    for seed in range(300):
        run = ProtocolRun(draw(seed)).run()
        tally += run.tally
        kinds.add((run.scenario.kind, run.rules.has_barrier))
    assert set(simulate.LABELS) <= set(+tally)
    assert len(kinds) == 2 * len(KINDS)


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    assert ProtocolRun(draw(seed)).run().log == ProtocolRun(draw(seed)).run().log


def test_a_failing_seed_says_how_to_replay_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Sequencer, "halt", lambda self: [])
    monkeypatch.setattr(Sequencer, "finish", lambda self: [])
    _, broken = simulate.simulate(0, 3)
    seed, why = next(iter(broken.items()))
    simulate.report(seed, why)
    assert f"python -m benchmarks.simulate --seed {seed}" in capsys.readouterr().out
    assert simulate.replay(ProtocolRun(draw(seed))) == 1
    assert why in capsys.readouterr().out
    with pytest.raises(Violation) as caught:
        ProtocolRun(draw(seed)).run()
    assert "server hears" in "".join(caught.value.__notes__)
