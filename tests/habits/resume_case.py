"""Trains until a moment and is killed there: a run for others to go on with.

Run: `python resume_case.py ROOT STRATEGY EPOCH BATCH`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import keras
import numpy as np

import shoal
from shoal.models.no_tensorflow import no_tensorflow
from shoal.runs.catalogue import run_ids
from shoal.runs.folder import Folder

ROWS, EPOCHS, WORKERS = 1500, 4, 2
DRAWN = 0.2


class Killer(keras.callbacks.Callback):
    """Ends the process at the first exchange after so many batches of an epoch.

    Before an epoch it waits for the checkpoint of the epoch before the last: storage
    may be slow, and tests expect known checkpoints.

    Args:
        moment: (epoch, batch), None for never.
        root: Folder or URL of the run's folder.
        pid: Id of the process to end; copies in other processes do nothing.
    """

    def __init__(self, moment: Any, root: str, pid: int) -> None:
        super().__init__()
        self.moment, self.root, self.pid = moment, root, pid
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Waits for a checkpoint."""
        self.epoch = epoch
        if self.moment is None or os.getpid() != self.pid:
            return
        while len(manifests(self.root)) < min(2, epoch - 1):
            threading.Event().wait(0.005)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Ends the process at its moment."""
        if self.moment is None or os.getpid() != self.pid:
            return
        if (self.epoch, batch) >= tuple(self.moment):
            os.kill(os.getpid(), signal.SIGKILL)


def manifests(root: str) -> list[str]:
    """Checkpoints that are whole, of the one run there."""
    [run] = run_ids(root)
    names = Folder.at(root).child(run).names("checkpoints")
    return [name for name in names if name.endswith(".manifest")]


def make() -> keras.Model:
    """Dropout, so that random state counts."""
    with no_tensorflow():
        keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dropout(DRAWN),
            keras.layers.Dense(2, "softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def data() -> tuple[Any, Any]:
    """Separable, nearly."""
    x = np.random.default_rng(5).normal(size=(ROWS, 6)).astype("f4")
    return x, (x[:, 0] + x[:, 1] > 0).astype("i4")


def train(root: str | bool, strategy: str, moment: Any = None) -> Any:
    """Trains as the run does that is killed; returns the model and the history."""
    model = make()
    x, y = data()
    history = shoal.fit(
        model, x, y, epochs=EPOCHS, batch_size=32, strategy=strategy, workers=WORKERS,
        run=root, verbose=0, validation_split=0.2, seed=11,
        deterministic=strategy == "all_reduce", checkpoint_every="200 samples",
        callbacks=[Killer(moment, str(root), os.getpid())],
    )  # fmt: skip
    return model, history


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], [int(part) for part in sys.argv[3:]])
