"""A callback that kills something in mid-run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from shoal.runs.events import read_events
from shoal.runs.folder import Folder


class Killer(keras.callbacks.Callback):
    """Kills a process once, and trains until its worker is replaced.

    Args:
        root: Folder of the runs, of which there is one.
        kill: Kills it.
    """

    def __init__(self, root: Path, kill: Callable[[], object]) -> None:
        super().__init__()
        self.root, self.kill, self.seen = root, kill, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        if self.seen == 5:
            self.kill()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        [run] = self.root.iterdir()
        kinds = [event["kind"] for event in read_events(Folder.at(str(run)))]
        self.model.stop_training = "worker_replaced" in kinds
