"""When a silent worker counts as hung: by its own pace, not by a fixed limit."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.coordination.timeouts import FLOOR_S, TIMES, LivenessTimeout

SECONDS = st.floats(1e-6, 1e4)
BEATS = st.integers(1, 100)


@dataclass
class Worker:
    """A worker that compiled and then sent messages; its next one is due."""

    startup_s: float
    silences: list[float]
    now: float = 0.0
    liveness: LivenessTimeout = field(default_factory=LivenessTimeout)

    def __post_init__(self) -> None:
        self.liveness.answered(0.0)
        self.speaks(self.startup_s, is_ready=True)
        for silence in self.silences:
            self.speaks(silence)

    def speaks(self, silence: float, **kind: bool) -> None:
        self.now += silence
        self.liveness.heard(self.now, **kind)
        self.liveness.answered(self.now)

    def beats(self, count: int, **kind: bool) -> None:
        for _ in range(count):
            assert not self.is_over(FLOOR_S / 2)
            self.speaks(FLOOR_S / 2, **kind)

    def is_over(self, later_s: float) -> bool:
        return self.liveness.is_over(self.now + later_s)


WORKERS = st.builds(Worker, SECONDS, st.lists(SECONDS, max_size=20))


@given(WORKERS)
def test_a_worker_of_constant_pace_is_never_dropped(worker: Worker) -> None:
    longest = max(worker.silences, default=0.0)
    assert not worker.is_over(TIMES * longest)
    assert worker.is_over(1.01 * (FLOOR_S + TIMES * longest) + 1)


@given(WORKERS)
def test_compiling_another_program_is_allowed_for_and_sets_no_pace(
    worker: Worker,
) -> None:
    before = worker.liveness.limit_s
    worker.liveness.compiles()
    assert not worker.is_over(worker.startup_s)
    worker.speaks(worker.startup_s, is_ready=False)
    assert worker.liveness.limit_s == before


@given(WORKERS, BEATS)
def test_arriving_bytes_count_as_life_and_set_no_pace(
    worker: Worker, looks: int
) -> None:
    """A vector may take long on a slow link; computing takes as long as before."""
    liveness, before = worker.liveness, worker.liveness.limit_s
    for _ in range(looks):
        worker.now += FLOOR_S / 2
        assert not worker.is_over(0.0)
        liveness.moves(worker.now)
    liveness.heard(worker.now)
    liveness.moves(worker.now)  # it waits for an answer, and has nothing to say
    assert not worker.is_over(2 * before)
    liveness.answered(worker.now)
    assert liveness.limit_s == before


@given(WORKERS, BEATS)
def test_a_worker_that_reads_data_is_kept_and_sets_no_pace(
    worker: Worker, beats: int
) -> None:
    before = worker.liveness.limit_s
    worker.beats(beats, is_reading=True)
    assert worker.liveness.limit_s == before


@given(SECONDS, BEATS)
def test_the_first_window_sets_the_pace(startup_s: float, beats: int) -> None:
    worker = Worker(startup_s, [])
    start = worker.now
    worker.beats(beats, is_busy=True)
    worker.speaks(0.0)
    assert worker.liveness.longest_s == pytest.approx(worker.now - start)
    assert not worker.is_over(TIMES * (worker.now - start))


def test_a_worker_is_not_dropped_while_it_compiles_or_waits() -> None:
    starting = LivenessTimeout()
    starting.answered(0.0)
    assert not starting.is_over(1e9)
    worker = Worker(1.0, [0.1])
    worker.liveness.heard(worker.now)
    assert not worker.is_over(1e9)


def test_a_pause_of_the_server_counts_against_no_worker() -> None:
    worker = Worker(1.0, [0.1])
    worker.liveness.forgive(1000.0)
    assert not worker.is_over(1000.0)
    assert worker.is_over(1010.0)


@given(st.floats(0.0, 1e4), st.floats(0.0, 10.0))
def test_a_worker_that_waits_for_a_silent_server_is_due_after_it(
    now: float, within_s: float
) -> None:
    liveness = LivenessTimeout(startup_s=1.0)
    liveness.seeks(now, within_s)  # it waits for an answer of this server
    assert liveness.since is None
    liveness.answered(now)
    liveness.seeks(now + 1000, within_s)
    assert not liveness.is_over(now + 1000 + within_s + FLOOR_S / 2)
    assert liveness.is_over(now + 1001 + within_s + FLOOR_S)
    liveness.answered(now + 2000)
    assert liveness.is_over(now + 2001 + FLOOR_S)
