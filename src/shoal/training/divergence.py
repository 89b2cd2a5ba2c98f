"""Decides from the losses of exchanges whether a run diverges. Pure.

A worker takes few steps between two exchanges, and begins them at or near the center:
the loss of these steps is about that of the center. It is noisy, falls quickly at
first, and may rise a little. A run diverges if much of what the loss had fallen is lost
again, for some time, and not by chance.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias, final

from shoal.engine.server.records import Record
from shoal.plan import Plan
from shoal.plan.cautions import divergence_warning

BLOCKS_PER_EPOCH = 16
LEAST_EXCHANGES = 8
"""Exchanges of a block at least."""
RECENT = 3
"""Blocks that must all be too high: a fifth of an epoch."""
LOST_AGAIN = 0.25
"""Share of the loss's fall that must be lost again."""
RISE = 0.25
"""Rise over the lowest loss, as a share of that one."""
SEPARATION = 0.9
"""Chance that a recent exchange has a higher loss than one of the lowest blocks. Noise
alone makes it half, and two thirds because the lowest blocks are chosen."""


class Divergence(NamedTuple):
    """A loss that rises.

    Args:
        least: Lowest mean loss of some exchanges.
        now: Mean loss of the latest ones.
    """

    least: float
    now: float


Block: TypeAlias = tuple[float, ...]
"""Losses of exchanges in a row."""


@final
class DivergenceWatch:
    """Watches the losses of a run's exchanges; keeps those of ten blocks.

    Args:
        block_samples: Samples of a block of exchanges, whose mean is compared.

    Example:
        >>> watch = DivergenceWatch(block_samples=4)
        >>> falls = [watch.add(loss, 1) for loss in range(40, 4, -1)]
        >>> rises = [watch.add(loss, 1) for loss in [90, 91] * 10]
        >>> any(falls), [found for found in rises if found]
        (False, [Divergence(least=10.5, now=90.5)])
    """

    def __init__(self, block_samples: int) -> None:
        self._block_samples = block_samples
        self._open: list[float] = []
        self._samples = 0
        self._first: float | None = None
        self._blocks: deque[Block] = deque(maxlen=2 * RECENT)
        self._lowest: Block = ()
        self._is_told = False

    def add(self, loss: float, samples: int) -> Divergence | None:
        """Adds an exchange; returns a divergence when one is found, once.

        Args:
            loss: Mean loss of its steps. NaN and infinity are left to `on_nan`.
            samples: Samples of its steps.
        """
        if self._is_told or not math.isfinite(loss):
            return None
        if self._first is None:
            self._first = loss
        self._open.append(loss)
        self._samples += samples
        if self._samples < self._block_samples:
            return None
        self._blocks.append(tuple(self._open))
        self._open, self._samples = [], 0
        if len(self._blocks) < 2 * RECENT:
            return None
        blocks = list(self._blocks)
        before, recent = sum(blocks[:RECENT], ()), blocks[RECENT:]
        if not self._lowest or fmean(before) < fmean(self._lowest):
            self._lowest = before
        self._is_told = _is_higher(self._first, self._lowest, recent)
        if not self._is_told:
            return None
        return Divergence(fmean(self._lowest), fmean(sum(recent, ())))


def _is_higher(first: float, lowest: Block, recent: Sequence[Block]) -> bool:
    """Whether recent losses are higher than the lowest: by much, and not by chance.

    Args:
        first: Loss of the first exchange.
        lowest: Losses of the lowest blocks.
        recent: Losses of the latest ones.
    """
    least = fmean(lowest)
    limit = max(LOST_AGAIN * (first - least), RISE * abs(least))
    if any(fmean(block) - least <= limit for block in recent):
        return False
    now, in_order = sum(recent, ()), sorted(lowest)
    higher = sum(bisect_left(in_order, loss) for loss in now)
    return higher >= SEPARATION * len(now) * len(lowest)


@final
class RunWatch:
    """Watches a run whose strategy may move the center too far.

    Args:
        plan: Plan of the run.
    """

    def __init__(self, plan: Plan) -> None:
        self._strategy = plan.strategy
        self._overshoot = plan.strategy.overshoot(plan.workers)
        is_mixed = plan.request.shuffle is True and (
            plan.data.chunking is None or plan.data.chunking.mixing == "rows"
        )
        # In data that keeps its order the loss follows the data: epochs are compared.
        block = plan.rows // (BLOCKS_PER_EPOCH if is_mixed else 1)
        window = plan.strategy.period * plan.batch_size
        self._watch = DivergenceWatch(max(block, LEAST_EXCHANGES * window))

    def look(
        self,
        records: Sequence[Record],
        means: Sequence[Mapping[str, float]],
        rate: float | None,
    ) -> dict[str, Any] | None:
        """Returns the fields of a warning, once, when the run is found to diverge.

        Args:
            records: New exchanges.
            means: Metrics of each, as far as they are known.
            rate: Learning rate of the workers, None if there is not a single one.
        """
        if self._overshoot is None:
            return None
        for record, mean in zip(records, means, strict=True):
            found = self._watch.add(mean.get("loss", math.nan), record.samples)
            if found is not None:
                text = divergence_warning(
                    self._strategy, self._overshoot, rate=rate, **found._asdict()
                )
                place = {"cause": "divergence", "epoch": record.epoch}
                return {"text": text, **place, **found._asdict()}
        return None
