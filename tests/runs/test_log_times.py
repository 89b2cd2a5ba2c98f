"""Times of log lines, from sizes that were noticed once a second."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from shoal.runs.events import read_events
from shoal.runs.log_times import LOOK_S, MOST_MARKS, SLOWER, LogSizes, LogTimes
from shoal.runs.logs import log_name
from shoal.runs.store import create
from tests.support.environments import SettableClock


def mark(at: float, **sizes: int) -> dict[str, object]:
    return {
        "kind": "log_sizes", "time": at,
        "sizes": {name.removeprefix("w"): size for name, size in sizes.items()},
    }  # fmt: skip


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 50)), max_size=60))
def test_a_line_has_the_time_of_the_first_size_beyond_it(
    steps: list[tuple[int, int]],
) -> None:
    times, at, size = LogTimes(), 1000.0, 0
    expected: list[float] = []
    for seconds, grown in steps:
        at, size = at + seconds, size + grown
        times.add(mark(at, w3=size))
        expected += [at] * grown
    assert [times.of(3, offset) for offset in range(size)] == expected
    assert times.of(3, size) is None
    assert times.of(2, 0) is None
    assert bool(times) == bool(steps)


def test_a_log_that_was_made_anew_begins_anew() -> None:
    times = LogTimes()
    for event in (mark(1.0, w0=100), mark(2.0, w0=30), mark(1.5, w0=60)):
        times.add(event)
    assert [times.of(0, n) for n in (0, 29, 30, 59, 60)] == [2.0, 2.0, 2.0, 2.0, None]


def test_logs_of_another_process_on_a_storage_begin_anew() -> None:
    times = LogTimes()
    times.add(mark(1.0, w0=200, w1=50))
    times.add({**mark(9.0, w0=500), "are_new": True})
    assert [times.of(0, 10), times.of(0, 499), times.of(1, 0)] == [9.0, 9.0, None]


def test_a_long_run_is_looked_at_less_often() -> None:
    clock, size = SettableClock(50.0), [0]
    logs = LogSizes(lambda: {0: size[0]}, clock)
    told = 0
    for _ in range(4 * SLOWER):
        size[0] += 1
        clock.now += 1.0
        told += bool(logs.look())
    assert SLOWER < told < 2.5 * SLOWER


def test_memory_is_bounded() -> None:
    times = LogTimes()
    for number in range(1, 5 * MOST_MARKS):
        times.add(mark(float(number), w0=10 * number))
    assert len(times._marks[0][0]) <= MOST_MARKS
    last = 5 * MOST_MARKS - 1
    assert times.of(0, 10 * last - 1) == last
    # A time that was dropped is replaced by the next one that was kept.
    late_s = (times.of(0, 5) or 0.0) - 1.0
    assert 0 <= late_s <= 0.01 * last


def test_only_what_changed_is_told_at_most_once_a_second() -> None:
    clock, sizes = SettableClock(50.0), {0: 5, 1: 0}
    logs = LogSizes(lambda: sizes, clock)
    assert logs.look() == {0: 5}
    sizes[1] = 7
    assert logs.look() == {}
    clock.now += LOOK_S
    assert logs.look() == {1: 7}
    sizes[0] = 6
    assert logs.last() == {0: 6}
    assert logs.last() == {}


def test_a_run_knows_the_sizes_of_its_logs(tmp_path: Path) -> None:
    with create(tmp_path, "higgs") as run:
        assert run.log_sizes() == {}
        for rank, text in ((0, "a\n"), (12, "")):
            path = run.log_path(rank)
            assert path is not None
            path.write_text(text)
        path.with_name("notes.log").write_text("no log of a worker")
        assert run.log_sizes() == {0: 2, 12: 0}
        run.event("log_sizes", sizes=run.log_sizes())
    times = LogTimes()
    for event in read_events(run.folder):
        times.add(event)
    assert times.of(0, 0) is not None
    assert log_name(12).endswith(path.name)


def test_so_does_a_run_on_a_storage() -> None:
    with create("memory://sizes", "higgs") as run:
        assert run.log_sizes() == {}
        path = run.log_path(1)
        assert path is not None
        path.write_text("ab")
        assert run.log_sizes() == {1: 2}
