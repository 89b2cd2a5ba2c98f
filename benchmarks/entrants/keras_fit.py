"""Plain `keras.Model.fit` on all cores."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras

from benchmarks.entrants.told import answer, asked
from benchmarks.works import WORKS


class Marks(keras.callbacks.Callback):
    """Measures epochs, from their first step to their last callback."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[float] = []
        self.ends: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock."""
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stops the clock."""
        self.spans.append(time.perf_counter() - self._began)
        self.ends.append(time.time())


class Until(keras.callbacks.Callback):
    """Ends the training at a given accuracy, and notes the time.

    Args:
        accuracy: Required accuracy of the validation.
    """

    def __init__(self, accuracy: float) -> None:
        super().__init__()
        self.reached_at: float | None = None
        self._accuracy = accuracy

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Looks at the accuracy."""
        if logs["val_accuracy"] >= self._accuracy:
            self.reached_at = time.time()
            self.model.stop_training = True  # pyright: ignore[reportOptionalMemberAccess]


class Loss(keras.callbacks.Callback):
    """Ends the training at a given training loss.

    Args:
        loss: Required loss of an epoch.
        epochs: Epochs to train in any case.
    """

    def __init__(self, loss: float, epochs: int) -> None:
        super().__init__()
        self._loss, self._epochs, self._is_reached = loss, epochs, False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Looks at the loss."""
        self._is_reached |= logs["loss"] <= self._loss
        if self._is_reached and epoch + 1 >= self._epochs:
            self.model.stop_training = True  # pyright: ignore[reportOptionalMemberAccess]


def train(given: Any, fit: Callable[..., Any]) -> None:
    """Trains, and prints the result.

    Args:
        given: The parsed command line.
        fit: Called as `fit` of a model.
    """
    work, marks = WORKS[given.work], Marks()
    x, y = work.samples(given.rows)
    more: dict[str, Any] = {"callbacks": [marks]}
    until = None
    if given.until is not None:
        until = Until(given.until)
        more = {"callbacks": [marks, until], "validation_data": work.held_back()}
    epochs = given.epochs
    if given.loss is not None:
        more["callbacks"].append(Loss(given.loss, epochs))
        epochs = given.most
    called = time.perf_counter()
    history = fit(x, y, batch_size=given.batch, epochs=epochs, verbose=0, **more)
    reached_at = None if until is None else until.reached_at
    call_s = time.perf_counter() - called
    answer(
        marks.spans, history.history["loss"], reached_at=reached_at, call_s=call_s,
        ends=marks.ends,
    )  # fmt: skip


def main() -> None:
    """Trains."""
    given = asked(lambda parser: parser.add_argument("--steps", type=int, default=1))
    train(given, WORKS[given.work].make(given.steps).fit)


if __name__ == "__main__":
    main()
