"""Checkpoints of a simulated run, for restarts."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, final

from shoal.engine.coordination.ledger import Piece


class Place(NamedTuple):
    """The progress of a controller.

    Args:
        upcoming: The first epoch whose end it has not heard.
        is_halted: It has told the server to halt.
    """

    upcoming: int
    is_halted: bool = False


@final
@dataclass
class Center:
    """The contents of a center.

    Args:
        value: The messages that were applied to it, in order, as one number.
        counts: Number of times that each sample of each epoch is in it.
        weights: Under all_reduce with a loss that is summed: one for each sample, of
            which every gradient is -1, trained by SGD with a rate of 1.
    """

    value: int = 0
    counts: dict[int, bytearray] = field(default_factory=dict[int, bytearray])
    weights: dict[int, Fraction] = field(default_factory=dict[int, Fraction])

    def copy(self) -> Center:
        """Returns a copy that does not change with this one."""
        counts = {epoch: rows[:] for epoch, rows in self.counts.items()}
        return Center(self.value, counts, dict(self.weights))

    def learn(self, messages: Sequence[Sequence[Piece]], assumed: int) -> None:
        """Takes a step of gradients, of messages as workers of such a loss make them.

        Each is the sum over its samples of -1, times the rows of the step, as those of
        the message are a part of them; the mean is divided by all rows that came.

        Args:
            messages: Samples of each.
            assumed: Rows that the senders took the step to have.
        """
        rows = sum(piece.rows for message in messages for piece in message)
        for message in messages:
            for piece in message:
                for sample in range(piece.start, piece.stop):
                    before = self.weights.get(sample, Fraction(0))
                    self.weights[sample] = before + Fraction(assumed, rows)

    def committed(self, epoch: int) -> int:
        """Samples of an epoch that are in it."""
        return self.counts.get(epoch, b"").count(1)


@final
@dataclass(frozen=True)
class Checkpoint:
    """Server and controller at one moment.

    Args:
        text: The sequencer, as it is written.
        center: Beside it.
        place: Progress of the controller.
    """

    text: str
    center: Center
    place: Place

    @property
    def document(self) -> dict[str, Any]:
        """The sequencer as it is read."""
        return json.loads(self.text)


@final
@dataclass
class Store:
    """The last two checkpoints, and the one that is being written.

    Args:
        kept: Checkpoints that are there, the newest last.
        coming: The one that is being written.
        newest_lineage: Highest lineage of all checkpoints so far.
        damaged: Checkpoints that could not be read.
    """

    kept: list[Checkpoint] = field(default_factory=list[Checkpoint])
    coming: Checkpoint | None = None
    newest_lineage: int = 0
    damaged: int = 0

    def begin(self, checkpoint: Checkpoint) -> None:
        """Begins to write, unless an earlier one is being written."""
        self.coming = self.coming or checkpoint

    def end(self) -> None:
        """Ends the write."""
        coming, self.coming = self.coming, None
        if coming is not None:
            self.write(coming)

    def write(self, checkpoint: Checkpoint) -> None:
        """Writes at once; an older one that was being written is dropped."""
        self.coming = None
        self.kept = [*self.kept[-1:], checkpoint]
        # The name of a file tells its lineage, even when its contents are damaged.
        self.newest_lineage = max(self.newest_lineage, checkpoint.document["lineage"])

    def read(self, choice: random.Random, damages: float) -> Checkpoint:
        """Returns the newest, or the one before if that is damaged."""
        self.coming = None
        if len(self.kept) > 1 and choice.random() < damages:
            self.kept.pop()
            self.damaged += 1
        return self.kept[-1]
