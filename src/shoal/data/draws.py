"""Random draws of a user's code, the same in every process.

Code such as `on_epoch_end` shuffles with NumPy's or Python's random numbers. Every
worker has a copy of the data and must compute the same order, or rows would be
trained twice or never. This file decides how such code is run.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

SEED = 0x5A0A1
"""Default seed of the draws."""


@contextmanager
def seeded(*numbers: int) -> Generator[int]:
    """Seeds the random numbers of Python, NumPy and torch, and restores them.

    Those of torch only if it is imported.

    Args:
        numbers: The seed, the epoch and the like; equal numbers give equal draws.

    Yields:
        A seed of 63 bits from the same numbers, for other libraries.

    Example:
        >>> with seeded(1, 2):
        ...     one = np.random.rand()
        >>> with seeded(1, 2):
        ...     one == np.random.rand()
        True
    """
    words = np.random.SeedSequence(list(numbers)).generate_state(2, np.uint64)
    python, numpy = random.getstate(), np.random.get_state()
    # Found by name: torch is not imported for users without it.
    torch: Any = sys.modules.get("torch")
    tensors = None if torch is None else torch.get_rng_state()
    random.seed(int(words[0]))
    np.random.seed(int(words[0] % 2**32))
    if torch is not None:
        torch.default_generator.manual_seed(int(words[1] >> np.uint64(1)))
    try:
        yield int(words[1] >> np.uint64(1))
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch is not None:
            torch.set_rng_state(tensors)
