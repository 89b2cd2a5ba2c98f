"""What a server process is given."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.engine.coordination.instructions import (
    Rules,
)
from shoal.engine.server.checkpoint import Restart
from shoal.engine.transport.buffers import Sizes
from shoal.engine.transport.changes import Changes
from shoal.strategies.base import Strategy
from shoal.vectors import Vector
from shoal.wire.tls import Identity


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """What a server process is given.

    Args:
        secret: Of the run, 32 bytes.
        strategy: Whose arithmetic runs.
        rules: Of the sequencer.
        sizes: Of the vectors.
        vector: Initial weights.
        statistics: Initial statistics.
        learning_rate: Where the driver's optimizer stands, None for a schedule.
        restart: What an earlier server left, None for the first.
        changes: What callbacks have changed in the model since the run began.
        identity: For TLS, None for none.
        is_private: Nobody else has these vectors: the center is made of their memory.
        shards: Servers that share the vector, see `shards.py`.
        shard: Which of them this one is.
        order: Address of number 0, for any other.
        losses: Places among the sums of metrics of losses times rows.
    """

    secret: bytes = field(repr=False)
    strategy: Strategy
    rules: Rules
    sizes: Sizes
    vector: Vector
    statistics: Vector
    learning_rate: float | None = None
    restart: Restart | None = None
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
