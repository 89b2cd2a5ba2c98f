"""Metrics of the present epoch, from sums of metric states.

Some metrics continue their states from epoch to epoch, and some layers add to metrics:
this file decides what an epoch begins with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from shoal.engine.server.records import Record
from shoal.facts import ModelFacts
from shoal.models.exchange_means import ExchangeMeans
from shoal.models.metrics import MetricStates
from shoal.vectors import Sums


@final
class EpochMetrics:
    """Metric states of a run, as far as its present epoch.

    Args:
        model: The user's model.
        facts: Facts of the model.
    """

    def __init__(self, model: Any, facts: ModelFacts) -> None:
        self._model = model
        self._states = MetricStates.of(
            model, logs=facts.step_logs, unmergeable=facts.unmergeable_metrics
        )
        self._means = ExchangeMeans(model, self._states)
        self._sums: dict[int, Sums] = {}
        self._kept: npt.NDArray[np.float64] = self._states.read_kept(model)

    def begin_epoch(self) -> None:
        """Begins an epoch with the states that the model has now."""
        self._kept = self._states.read_kept(self._model)

    def add(self, sums: Mapping[int, Sums]) -> None:
        """Records the newest sums of some epochs."""
        self._sums.update(sums)

    def forget(self, epochs: Iterable[int]) -> None:
        """Forgets the last exchanges of some epochs, which are trained again."""
        self._means.forget(epochs)

    def means_of(self, record: Record) -> dict[str, Any]:
        """Returns the means of an exchange alone, for the events of the run."""
        return self._means.of(record.epoch, record.sums)

    def logs_of(self, record: Record) -> dict[str, float] | None:
        """Returns the metrics of the epoch after an exchange, None if unknown."""
        sums = record.sums
        if sums is None or len(sums) < self._states.size:
            sums = self._sums.get(record.epoch)
        if sums is None:
            return None
        return self._states.results(self._model, self._kept + sums)

    def end_epoch(self, sums: Sums) -> dict[str, Any]:
        """Returns the metrics of a complete epoch; the model has their states then."""
        counted = self._kept + sums
        logs = self._states.results(self._model, counted)
        # A validation continues metric states, as in Keras.
        self._states.write_kept(self._model, counted)
        return logs

    def names(self) -> list[str]:
        """Returns the names of the metrics; it compiles their computation."""
        return list(self._states.results(self._model, np.zeros(self._states.size)))

    # ----------------------------------------------------------- checkpoints

    def kept(self, *, is_over: bool) -> Sequence[float]:
        """Returns the states from which a resumed run continues.

        Args:
            is_over: The present epoch has ended.
        """
        if not self._states.has_kept:
            return ()
        if is_over:
            return self._states.read_kept(self._model).tolist()
        return self._kept.tolist()

    def restore(self, kept: Sequence[float]) -> None:
        """The inverse of `kept`, for the model as well."""
        if len(kept):
            self._kept = np.asarray(kept, np.float64)
            self._states.write_kept(self._model, self._kept)
