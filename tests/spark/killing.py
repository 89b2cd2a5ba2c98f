"""Callbacks that kill or end something in mid-run."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from tests.support.watch import Watch


class Press(keras.callbacks.Callback):
    """Presses Ctrl-C in the second epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Presses."""
        if epoch == 1:
            os.kill(os.getpid(), signal.SIGINT)


class StopLater(keras.callbacks.Callback):
    """Trains three more epochs."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins to count."""
        self.left = 3

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Counts."""
        self.left -= 1
        self.model.stop_training = self.left == 0


class Killer(Watch):
    """Kills something, and trains until the worker is replaced.

    Args:
        root: Folder of the runs, of which there is one.
        kill: Kills it.
        times: Number of kills, each after the worker before was replaced.
    """

    def __init__(self, root: Path, kill: Callable[[], object], times: int = 1) -> None:
        super().__init__(root)
        self.kill, self.times = kill, times
        self.killed = 0

    def is_over(self, kinds: Counter[str]) -> bool:
        """Kills when all that were lost are replaced."""
        replaced = kinds["worker_replaced"]
        if replaced < self.times and self.killed <= replaced:
            self.killed += 1
            self.kill()
        return replaced >= self.times
