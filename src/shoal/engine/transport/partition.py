"""Which part of a vector each of several servers holds. Pure.

One of them, number 0, decides in which order things happen, for all of them; it also
holds all that is no vector. The others do, in that order, the arithmetic on their part.
As strategies work element by element, the parts together are what one server's vector
would be, bit for bit.
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
    """What a server exchanges with a worker, of what there is to exchange."""
    part = cuts(sizes.vector, count)[number]
    length = part.stop - part.start
    if number == 0:
        return replace(sizes, vector=length)
    return replace(sizes, vector=length, statistics=0, metrics=0, state=0)
