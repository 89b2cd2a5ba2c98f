"""A callback that ends a run when its events say so."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import keras

from shoal.runs.events import read_events
from shoal.runs.folder import Folder

PAUSES = 10
"""A look waits for so many times its own length: events grow, epochs do not."""


class Watch(keras.callbacks.Callback):
    """Looks at the events of a run now and then; the run ends when `is_over` says so.

    Args:
        root: Folder of the runs, of which there is one.

    Attributes:
        told: Events at the last look.
    """

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root, self._next = root, 0.0
        self.told = list[dict[str, Any]]()

    def events(self) -> list[dict[str, Any]]:
        """Returns the events of the run."""
        [run] = self.root.iterdir()
        return list(read_events(Folder.at(str(run))))

    def kinds(self) -> Counter[str]:
        """Returns the number of events of each kind."""
        return Counter(event["kind"] for event in self.events())

    def is_over(self, kinds: Counter[str]) -> bool:
        """Whether the run has shown enough.

        Args:
            kinds: Number of events of each kind.
        """
        raise NotImplementedError

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Looks, unless it has just done so."""
        began = time.monotonic()
        if began < self._next:
            return
        self.told = self.events()
        kinds = Counter(event["kind"] for event in self.told)
        if self.is_over(kinds):
            self.model.stop_training = True
        now = time.monotonic()
        self._next = now + PAUSES * (now - began)
