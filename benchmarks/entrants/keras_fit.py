"""Plain `keras.Model.fit` on all cores."""

from __future__ import annotations

import time
from typing import Any

import keras

from benchmarks.entrants.told import answer, asked
from benchmarks.works import WORKS


class Marks(keras.callbacks.Callback):
    """Notes how long epochs take, from their first step to their last callback."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock."""
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stops the clock."""
        self.spans.append(time.perf_counter() - self._began)


def main() -> None:
    """Trains."""
    given = asked(lambda parser: parser.add_argument("--steps", type=int, default=1))
    work, marks = WORKS[given.work], Marks()
    x, y = work.samples(given.rows)
    history = work.make(given.steps).fit(
        x, y, batch_size=given.batch, epochs=given.epochs, verbose=0, callbacks=[marks]
    )
    answer(marks.spans, history.history["loss"])


if __name__ == "__main__":
    main()
