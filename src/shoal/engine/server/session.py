"""A worker's place at the server, as its replica knows it as well."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from shoal.engine.coordination.timeouts import LivenessTimeout
from shoal.engine.transport.buffers import Buffers, Sizes
from shoal.engine.transport.messages.server_to_worker import ToWorker
from shoal.engine.transport.messages.worker_to_server import Push


@final
@dataclass(eq=False, kw_only=True)
class WorkerSession:
    """Where a worker's vectors lie, what it last said, and what it was told.

    Args:
        rank: Its place.
        incarnation: Counts the processes that had this rank.
        token: Names its process; nobody else knows it.
        buffers: Its vectors.
        push: Its last one.
        question: Number of the last message that it waits for an answer to.
        answer: To that message, with the optimizer state that goes along; None while
            there is none. Its vectors are in `buffers`.
        liveness: How long it may be silent.
        staged: Number of the last message whose part is here, at a server that shares
            the vector and follows another one's order.
        told: Serial number of the newest change of a callback that it was told of.
        adopted: The same of statistics: a worker that joins gets the server's.
    """

    rank: int
    incarnation: int
    token: str
    buffers: Buffers
    push: Push | None = None
    question: int = 0
    answer: tuple[ToWorker, bytes] | None = None
    liveness: LivenessTimeout = field(default_factory=LivenessTimeout)
    staged: int = 0
    told: int = 0
    adopted: int = 0

    def freeze(self) -> dict[str, Any]:
        """Everything, as one value that does not change."""
        return {
            "rank": self.rank,
            "incarnation": self.incarnation,
            "token": self.token,
            "push": self.push,
            "question": self.question,
            "answer": self.answer,
            "liveness": self.liveness,
            "staged": self.staged,
            "told": self.told,
            "adopted": self.adopted,
            "up": bytes(self.buffers.up),
            "down": bytes(self.buffers.down),
        }

    @classmethod
    def thaw(cls, sizes: Sizes, frozen: dict[str, Any]) -> WorkerSession:
        """The inverse of `freeze`, with vectors in memory of its own."""
        fields = {k: v for k, v in frozen.items() if k not in ("up", "down")}
        session = cls(buffers=Buffers(sizes, None), **fields)
        session.buffers.up[:], session.buffers.down[:] = frozen["up"], frozen["down"]
        return session
