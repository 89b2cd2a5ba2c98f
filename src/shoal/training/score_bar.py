"""Progress while several processes score: the bar of Keras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, final


@final
class ScoreBar:
    """Keras' own progress bar, advanced by chunks.

    Args:
        bounds: First row and end of each chunk.
        batch_size: Rows of one step.
        verbose: 0 nothing, 1 or "auto" a bar, 2 a line at the end; as for Keras.

    Example:
        >>> bar = ScoreBar([(0, 64), (64, 100)], batch_size=32, verbose=2)
        >>> bar.show([True, False])
        >>> bar.end({"loss": 0.5})
        4/4 - 0s - ... - loss: 0.5000
    """

    def __init__(
        self, bounds: Sequence[tuple[int, int]], batch_size: int, verbose: int | str
    ) -> None:
        self._steps = [-(-(stop - start) // batch_size) for start, stop in bounds]
        self._shown = 0
        self._bar: Any = None
        if verbose:
            self._bar = import_module("keras").utils.Progbar(
                sum(self._steps),
                verbose=1 if verbose == "auto" else verbose,
                unit_name="step",
            )

    def show(self, done: Sequence[bool]) -> None:
        """Shows the progress.

        Args:
            done: For each chunk, whether it is done.
        """
        if self._bar is None:
            return
        steps = sum(n for n, is_done in zip(self._steps, done, strict=True) if is_done)
        if self._shown < steps < sum(self._steps):
            self._shown = steps
            self._bar.update(steps)

    def end(self, results: Mapping[str, float] | None = None) -> None:
        """Shows the end, with the results."""
        if self._bar is not None:
            values = list((results or {}).items())
            self._bar.stateful_metrics = {name for name, _ in values}
            self._bar.update(sum(self._steps), values, finalize=True)
