"""Arithmetic on a vector, segment by segment: in one thread, or in two.

When a round closes, all of its workers wait, and their cores are free. A server that
merges it with two threads needs little more than half the time. If one worker waits
and others compute, a second thread needs a free core, and a vector so long that the
time to wake a thread does not count.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, final

from shoal.launchers.cores import count_cores
from shoal.strategies.base import Strategy
from shoal.vectors import Vector

# Floats. A few of these do not fit a core's second-level cache, but with shorter ones
# Python's own time counts, and threads wait for each other too often.
SEGMENT = 1 << 17
_LINE = 16  # floats of a cache line, which two threads should not share
WORTH_A_THREAD = 1 << 17  # floats; below, one thread is done before another wakes up
LONG = 1 << 20  # floats; below, one thread handles one message faster

Work: TypeAlias = Callable[[slice], None]
Spread: TypeAlias = Callable[[int, Work], None]
"""Runs some work on all segments of a vector of a given size."""


def segments(size: int, length: int = SEGMENT) -> Iterator[slice]:
    """Cuts `size` floats into slices of at most `length`."""
    for start in range(0, size, length):
        yield slice(start, min(size, start + length))


def in_turn(size: int, work: Work) -> None:
    """Runs the work on one segment after the other."""
    for part in segments(size):
        work(part)


@final
class InPairs:
    """Runs two segments at a time if the vector is long, else one after the other.

    Args:
        least: Fewest floats of a vector for which a thread is used.

    Example:
        >>> spread, done = InPairs(), []
        >>> spread(5, done.append)
        >>> done
        [slice(0, 5, None)]
        >>> spread.close()
    """

    def __init__(self, least: int = WORTH_A_THREAD) -> None:
        self._least = least
        self._pool: ThreadPoolExecutor | None = None
        self._cores = count_cores()

    def __call__(self, size: int, work: Work) -> None:
        """Runs the work.

        Raises:
            Exception: The error of the work, once no segment is worked on any more.
        """
        if size < self._least or self._cores < 2:
            in_turn(size, work)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="shoal-merge")
        parts = _pairs(size)
        run = contextvars.copy_context().run  # mainly NumPy's error state
        try:
            other = self._pool.submit(run, _each, parts[1::2], work)
        except RuntimeError:  # no more threads for this user: it never began
            self._pool, self._cores = None, 1
            in_turn(size, work)
            return
        try:
            _each(parts[::2], work)
        finally:
            other.result()

    def beside(self, busy: Callable[[], int]) -> Spread:
        """Returns a spread for long vectors that uses a second core if one is free.

        Args:
            busy: Counts the cores on which others compute, plus that of this thread.
        """

        def spread(size: int, work: Work) -> None:
            pays = size >= LONG and busy() < self._cores
            (self if pays else in_turn)(size, work)

        return spread

    def close(self) -> None:
        """Ends its thread."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _pairs(size: int) -> list[slice]:
    """An even number of segments, all but the last of one length."""
    count = 2 * -(-size // (2 * SEGMENT))
    length = -(-size // count)
    return list(segments(size, -(-length // _LINE) * _LINE))


def _each(parts: list[slice], work: Work) -> None:
    for part in parts:
        work(part)


def push_into(
    strategy: Strategy,
    out: Vector,
    local: Vector,
    anchor: Vector,
    steps: int,
    spread: Spread = in_turn,
) -> None:
    """Writes a worker's message into `out`, by segments."""

    def push(part: slice) -> None:
        out[part] = strategy.push(local[part], anchor[part], steps)

    spread(out.size, push)


def pull_into(
    strategy: Strategy,
    out: Vector,
    local: Vector,
    anchor: Vector,
    reply: Vector,
    spread: Spread = in_turn,
) -> None:
    """Writes a worker's new weights into `out`, and changes `anchor`, by segments."""

    def pull(part: slice) -> None:
        strategy.pull_into(out[part], local[part], anchor[part], reply[part])

    spread(local.size, pull)
