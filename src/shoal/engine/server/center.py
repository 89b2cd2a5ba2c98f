"""The center and its arithmetic, in segments that fit the cache.

The sequencer decides what is applied when; this file does the arithmetic. Messages
are read and replies written in place, one segment at a time, so that no temporary
of a vector's size is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.engine.transport.segments import Spread, in_turn
from shoal.strategies.base import Facts, RoundStrategy, ServerStrategy, Strategy
from shoal.vectors import Vector

Doubles = npt.NDArray[np.float64]


class Center:
    """The common weights, their statistics, and the strategy's state.

    Args:
        strategy: Strategy whose `apply` or `merge` runs.
        vector: Initial weights, `(size,)`; changed in place.
        statistics: Initial statistics, `(count,)`; changed in place.
    """

    def __init__(self, strategy: Strategy, vector: Vector, statistics: Vector) -> None:
        self.strategy = strategy
        self.vector = vector
        self.statistics = statistics
        self.state = strategy.init(vector.size)
        self._last_samples: dict[int, float] = {}
        self._spread_round = self._spread_one = in_turn

    def spread(self, a_round: Spread, one: Spread) -> None:
        """Sets how work is spread over threads, on a server that leads.

        Strategies keep nothing between two segments.

        Args:
            a_round: Spread for the merge of a round, for which all workers wait.
            one: Spread for one message, while other workers compute.
        """
        self._spread_round, self._spread_one = a_round, one

    def apply(
        self,
        rank: int,
        message: Vector,
        statistics: Vector,
        facts: Facts,
        reply: Vector,
    ) -> None:
        """Applies one worker's message and writes its reply."""
        strategy = self.strategy
        if not isinstance(strategy, ServerStrategy):
            raise TypeError(f"{strategy.name} merges rounds; received one message")

        def apply(part: slice) -> None:
            state = {name: value[part] for name, value in self.state.items()}
            center = self.vector[part]
            strategy.apply_into(reply[part], center, state, message[part], facts)

        # Strategies work element by element (a law): segments need no order.
        self._spread_one(self.vector.size, apply)
        self._blend(rank, statistics, facts)

    def _blend(self, rank: int, statistics: Vector, facts: Facts) -> None:
        """Updates a sample-weighted running average of the statistics."""
        # Messages come one by one, not in rounds. Each moves the average by the
        # sender's share of the samples in the last messages of all workers, so that
        # equal workers get equal shares, and a slow one keeps its share (decision 4).
        self._last_samples[rank] = facts.samples
        if statistics.size == 0:
            return
        total = sum(self._last_samples.values())
        share = facts.samples / total if total > 0 else 0.0
        self.statistics += np.float32(share) * (statistics - self.statistics)

    def merge(
        self,
        messages: Mapping[int, Vector],
        statistics: Mapping[int, Vector],
        facts: Mapping[int, Facts],
        write: Callable[[int, slice, Vector], None],
    ) -> None:
        """Merges a round; `write(rank, segment, values)` takes each reply.

        Replies that are one object for all ranks are written once, for rank -1.
        """
        strategy = self.strategy
        if not isinstance(strategy, RoundStrategy):
            raise TypeError(f"{strategy.name} has no rounds; received a round")

        def merge(part: slice) -> None:
            state = {name: value[part] for name, value in self.state.items()}
            parts = {rank: message[part] for rank, message in messages.items()}
            replies = strategy.merge(self.vector[part], state, parts, facts)
            values = list(replies.values())
            if all(value is values[0] for value in values):
                write(-1, part, values[0])
            else:
                for rank, value in replies.items():
                    write(rank, part, value)

        self._spread_round(self.vector.size, merge)
        self.merge_statistics(statistics, facts)

    def merge_statistics(
        self, statistics: Mapping[int, Vector], facts: Mapping[int, Facts]
    ) -> None:
        """Merges the statistics of a round whose vectors were merged elsewhere."""
        rows = {r: f.samples if f.rows is None else f.rows for r, f in facts.items()}
        total = sum(rows.values())
        if self.statistics.size and total > 0:
            # In rank order and in float64: it does not matter whose message came first
            # (decision 3).
            mean = np.zeros(self.statistics.size, np.float64)
            for rank in sorted(statistics):
                mean += statistics[rank] * (rows[rank] / total)
            self.statistics[:] = mean

    def freeze(self) -> dict[str, Any]:
        """Returns everything but the strategy; read it before the next change."""
        return {
            "vector": self.vector,
            "statistics": self.statistics,
            "state": self.state,
            "samples": self._last_samples,
        }

    def thaw(self, frozen: dict[str, Any]) -> None:
        """The inverse of `freeze`."""
        self.vector, self.statistics = frozen["vector"], frozen["statistics"]
        self.state, self._last_samples = frozen["state"], frozen["samples"]

    def forget(self, rank: int) -> None:
        """Forgets a lost worker, and its weight in the running average."""
        self._last_samples.pop(rank, None)
