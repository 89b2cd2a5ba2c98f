"""Connections of a simulated run: messages on them, and how they break.

A connection keeps the order of what it carries, as TCP does; messages are lost only
with it. What a message stands for travels along as `Work`, which the engine never
sees: the checks compare it with what the engine decided.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, final

from shoal.engine.coordination.instructions import Group, PushMetadata
from shoal.engine.coordination.ledger import Piece


class Work(NamedTuple):
    """The origin of a push.

    Args:
        worker: The process that did it, by its own number.
        serial: Number of its window: a repeat has the same.
        era: The history it learnt from; a restart and a rollback begin a new one.
        weights: Under all_reduce: the rounds its weights have gone through.
    """

    worker: int
    serial: int
    era: int
    weights: int


Question: TypeAlias = Literal["join", "ready", "need", "push", "publish", "gone"]


class Message(NamedTuple):
    """A worker's message; "gone" is the end of its connection."""

    kind: Question
    hint: int = -1
    push: PushMetadata | None = None
    work: Work | None = None


class Letter(NamedTuple):
    """A message to a worker; "lost" is the end of its connection.

    Args:
        kind: Kind of the answer.
        body: Body of the answer.
        pieces: New leases.
        lineage: Lineage of the server.
        era: History that the server is in.
        weights: The center, or under all_reduce the mean of a round.
        is_order: The worker has to publish its state.
        group: The group that averages the next step.
        sums: Sums of the step for which the push must be computed again.
        rank: Rank of the worker, once it has joined.
        incarnation: Incarnation of the worker.
        workers: Number of workers that the server knows.
    """

    kind: str
    body: str = "none"
    pieces: tuple[Piece, ...] = ()
    lineage: int = 0
    era: int = 0
    weights: int = 0
    is_order: bool = False
    group: Group | None = None
    sums: tuple[float, ...] = ()
    rank: int = -1
    incarnation: int = 0
    workers: int = 0


@final
@dataclass(eq=False)
class Line:
    """One connection of a worker with the server that listens at that time.

    Args:
        worker: The number of the process at its other end.
        up: On the way to the server.
        down: On the way to the worker.
        is_cut: Nothing more can be sent, from either end.
        is_asked: The server owes an answer.
        rank: Rank that the server gave it, -1 before.
        incarnation: The same.
    """

    worker: int
    up: deque[Message] = field(default_factory=deque[Message])
    down: deque[Letter] = field(default_factory=deque[Letter])
    is_cut: bool = False
    is_asked: bool = False
    rank: int = -1
    incarnation: int = 0

    def say(self, message: Message) -> None:
        """Sends a message of the worker; a broken connection takes none."""
        if not self.is_cut:
            self.up.append(message)

    def answer(self, letter: Letter) -> None:
        """Sends a message of the server."""
        if not self.is_cut:
            self.down.append(letter)

    def cut(self, up: int, down: int) -> None:
        """Breaks the connection; on each way only the first messages still arrive.

        Args:
            up: Messages that do, and then its end; below 0 there is no server.
            down: The same, toward the worker.
        """
        if self.is_cut:
            return
        self.is_cut = True
        while len(self.up) > max(0, up):
            self.up.pop()
        while len(self.down) > down:
            self.down.pop()
        if up >= 0:
            self.up.append(Message("gone"))
        self.down.append(Letter("lost"))
