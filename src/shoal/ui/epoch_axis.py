"""Places on the axis of epochs of what happens within an epoch. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from shoal.ui.charts import Numbers


@final
class EpochAxis:
    """Converts committed samples to epochs: their number and the share of the next one.

    Args:
        epochs: Epochs that ended, with number and samples committed until then.
        rows: Samples of an epoch, for the open one; 0 if that is not known.
        first: Number of the first epoch, from 0.

    Example:
        >>> axis = EpochAxis([{"epoch": 0, "samples": 100}], rows=200)
        >>> axis.at([50, 100, 150]).tolist()
        [0.5, 1.0, 1.25]
    """

    def __init__(
        self, epochs: Sequence[Mapping[str, Any]], *, rows: int = 0, first: int = 0
    ) -> None:
        # An epoch that is trained again after a rollback has ended twice.
        ended = {one["epoch"] + 1: float(one["samples"]) for one in epochs}
        numbers = [first, *sorted(number for number in ended if number > first)]
        samples = [0.0, *(ended[number] for number in numbers[1:])]
        self._samples: Numbers = np.maximum.accumulate(samples)
        self._numbers: Numbers = np.array(numbers, dtype=np.float64)
        self._rows = rows

    def at(self, samples: ArrayLike) -> Numbers:
        """Returns the place after so many samples, of each of them."""
        counts = np.asarray(samples, dtype=np.float64)
        found = np.interp(counts, self._samples, self._numbers)
        if not self._rows:
            return found
        return found + np.maximum(0.0, counts - self._samples[-1]) / self._rows
