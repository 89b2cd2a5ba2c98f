"""Checkpoints of a simulated run: what a restart finds."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final


class Place(NamedTuple):
    """How far a controller has come.

    Args:
        upcoming: The first epoch whose end it has not heard.
        is_halted: It has told the server to stop.
    """

    upcoming: int
    is_halted: bool = False


@final
@dataclass
class Center:
    """What the center stands for.

    Args:
        value: The messages that were applied to it, in order, as one number.
        counts: How often each sample of each epoch is in it.
    """

    value: int = 0
    counts: dict[int, bytearray] = field(default_factory=dict[int, bytearray])

    def copy(self) -> Center:
        """Returns one that does not change with this one."""
        return Center(self.value, {e: rows[:] for e, rows in self.counts.items()})

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
        place: Of the controller.
    """

    text: str
    center: Center
    place: Place

    @property
    def document(self) -> dict[str, Any]:
        """The sequencer, as it is read."""
        return json.loads(self.text)


@final
@dataclass
class Store:
    """The last two checkpoints, and the one that is being written.

    Args:
        kept: Those that are there, the newest last.
        coming: The one that is being written.
        newest_lineage: Of all that ever were.
        damaged: Those that could not be read.
    """

    kept: list[Checkpoint] = field(default_factory=list[Checkpoint])
    coming: Checkpoint | None = None
    newest_lineage: int = 0
    damaged: int = 0

    def begin(self, checkpoint: Checkpoint) -> None:
        """Begins to write, unless the one before is being written."""
        self.coming = self.coming or checkpoint

    def end(self) -> None:
        """What was being written is there."""
        coming, self.coming = self.coming, None
        if coming is not None:
            self.write(coming)

    def write(self, checkpoint: Checkpoint) -> None:
        """Writes at once; an older one that was being written is given up."""
        self.coming = None
        self.kept = [*self.kept[-1:], checkpoint]
        # The name of a file tells its lineage, even when its contents are damaged.
        self.newest_lineage = max(self.newest_lineage, checkpoint.document["lineage"])

    def read(self, choice: random.Random, damages: float) -> Checkpoint:
        """The newest, or the one before when that is damaged."""
        self.coming = None
        if len(self.kept) > 1 and choice.random() < damages:
            self.kept.pop()
            self.damaged += 1
        return self.kept[-1]
