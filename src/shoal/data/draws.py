"""Random draws of a user's own code that come out the same in every process.

Code such as `on_epoch_end` shuffles with NumPy's or Python's random numbers. Every
worker has a copy of the data and must arrive at the same order, or rows would be
seen twice or never. This file decides how such code is run.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np

SEED = 0x5A0A1
"""Of the draws, unless told otherwise."""


@contextmanager
def seeded(*numbers: int) -> Generator[int]:
    """Seeds the random numbers of Python and NumPy, and puts them back afterwards.

    Args:
        numbers: The seed, the epoch and the like; the same ones, the same draws.

    Yields:
        A seed of 63 bits of the same origin, for other libraries.

    Example:
        >>> with seeded(1, 2):
        ...     one = np.random.rand()
        >>> with seeded(1, 2):
        ...     one == np.random.rand()
        True
    """
    words = np.random.SeedSequence(list(numbers)).generate_state(2, np.uint64)
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(int(words[0]))
    np.random.seed(int(words[0] % 2**32))
    try:
        yield int(words[1] >> np.uint64(1))
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
