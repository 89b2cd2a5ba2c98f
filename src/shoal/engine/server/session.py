"""A worker's session at the server; its replica has it as well."""

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
    """A worker's vectors, its last message, and the last answer.

    Args:
        rank: Rank of the worker.
        incarnation: Counts the processes that had this rank.
        token: Secret name of its process.
        buffers: Buffers of its vectors.
        push: Its last push.
        question: Number of its last request (`WorkerRequest.number`). A request with
            the same number again is a repetition after a reconnect. `Push.sequence`,
            which the sequencer compares, counts the exchanges of the worker instead.
        answer: Answer to that message, with the optimizer state that follows; None if
            there is none yet. Its vectors are in `buffers`.
        liveness: Timeout of its silence.
        staged: Number of the last message whose part has arrived, at a server that
            shares the vector and follows the order of another one.
        told: Serial number of the newest callback change that it was told.
        adopted: Serial number of the newest callback change of statistics that it was
            told. A worker that joins gets the statistics of the server, which have it.
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
        """Returns all of it, as one value that does not change."""
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
        """The inverse of `freeze`, with vectors in its own memory."""
        fields = {k: v for k, v in frozen.items() if k not in ("up", "down")}
        session = cls(buffers=Buffers(sizes, None), **fields)
        session.buffers.up[:], session.buffers.down[:] = frozen["up"], frozen["down"]
        return session
