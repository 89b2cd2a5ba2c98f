"""The spec of a server process."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.engine.coordination.instructions import Rules
from shoal.engine.server.checkpoint import ServerCheckpoint
from shoal.engine.transport.buffers import Sizes
from shoal.engine.transport.changes import Changes
from shoal.strategies.base import Strategy
from shoal.vectors import Vector
from shoal.wire.tls import Identity


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """Input of a server process.

    Args:
        secret: The run's secret, 32 bytes.
        strategy: Strategy whose arithmetic runs.
        rules: Rules of the sequencer.
        sizes: Sizes of the vectors.
        vector: Initial weights.
        statistics: Initial statistics.
        learning_rate: Learning rate of the driver's optimizer, None for a schedule.
        checkpoint: State that an earlier server left, None for the first one.
        changes: Changes that callbacks made in the model since the run began.
        identity: Identity for TLS, None without it.
        is_private: Nothing else uses these vectors: the center takes over their memory.
        shards: Number of servers that share the vector, see `shards.py`.
        shard: Number of this one.
        order: Address of number 0, for all others.
        losses: Places of losses times rows in the sums of metrics.
    """

    secret: bytes = field(repr=False)
    strategy: Strategy
    rules: Rules
    sizes: Sizes
    vector: Vector
    statistics: Vector
    learning_rate: float | None = None
    checkpoint: ServerCheckpoint | None = None
    changes: Changes = field(default_factory=Changes)
    identity: Identity | None = None
    is_private: bool = False
    shards: int = 1
    shard: int = 0
    order: tuple[str, int] | None = None
    losses: tuple[int, ...] = ()

    @property
    def others(self) -> tuple[int, ...]:
        """Numbers of the servers that follow this one's order."""
        return () if self.shard else tuple(range(1, self.shards))
