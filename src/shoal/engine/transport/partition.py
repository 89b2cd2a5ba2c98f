"""The parts of a vector on several servers. Pure.

One of them, number 0, decides the order of events for all of them; it also has all
state that is no vector. The others compute their parts in that order. As strategies
work element by element, the parts together are the vector of a single server, bit for
bit.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from shoal.engine.transport.buffers import Sizes

LINE = 16  # floats of a cache line: parts of messages begin at one


def cuts(size: int, count: int) -> list[slice]:
    """Cuts `size` floats into `count` parts of one length, but for the last.

    Example:
        >>> cuts(100, 3)
        [slice(0, 48, None), slice(48, 96, None), slice(96, 100, None)]
    """
    length = -(-size // (LINE * count)) * LINE
    starts = [min(size, length * number) for number in range(count + 1)]
    return [slice(*pair) for pair in itertools.pairwise(starts)]


def sizes_of(sizes: Sizes, number: int, count: int) -> Sizes:
    """Sizes of one server's part."""
    part = cuts(sizes.vector, count)[number]
    length = part.stop - part.start
    if number == 0:
        return replace(sizes, vector=length)
    return replace(sizes, vector=length, statistics=0, metrics=0, state=0)
