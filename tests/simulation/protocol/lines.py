"""Connections of a simulated run: what travels on them, and how they break.

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
    """What a push was made from.

    Args:
        worker: The process that did it, by its own number.
        serial: Its windows so far: a repeat has the same.
        era: The history it learnt from; a restart and a rollback begin a new one.
        weights: Under all_reduce: the rounds its weights have gone through.
    """

    worker: int
    serial: int
    era: int
    weights: int


Question: TypeAlias = Literal["join", "ready", "need", "push", "publish", "gone"]


class Message(NamedTuple):
    """What a worker says; "gone" is the end of its connection."""

    kind: Question
    hint: int = -1
    push: PushMetadata | None = None
    work: Work | None = None


class Letter(NamedTuple):
    """What a worker is told; "lost" is the end of its connection.

    Args:
        kind: Of the answer.
        body: What travels along.
        pieces: New leases.
        lineage: Of the server.
        era: Of the history the server is in.
        weights: The center, or under all_reduce the mean of a round.
        is_order: It has to publish its state.
        group: The group that averages the next step.
        sums: Of the step that a push is to be computed for anew.
        rank: Its place, when it has joined.
        incarnation: Its number there.
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


@final
@dataclass(eq=False)
class Line:
    """One connection of a worker with the server that listens then.

    Args:
        worker: The number of the process at its other end.
        up: On the way to the server.
        down: On the way to the worker.
        is_cut: Nothing more can be sent, from either end.
        is_asked: The server owes an answer.
        rank: What the server gave it, -1 before.
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
        """The worker sends; into a broken connection nothing goes."""
        if not self.is_cut:
            self.up.append(message)

    def answer(self, letter: Letter) -> None:
        """The server sends."""
        if not self.is_cut:
            self.down.append(letter)

    def cut(self, up: int, down: int) -> None:
        """Breaks; only what was sent first on either way still arrives.

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
