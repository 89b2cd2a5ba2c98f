"""The scheme `Emperor`: it lowers the rate where the loss stands still."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

from shoal.data.located import is_frame
from shoal.errors import ConfigError
from shoal.plan.request import require_whole
from shoal.spark import shuffling
from shoal.spark.precaching import precache
from shoal.spark.trainer import Trainer

FACTOR = 10.0


@final
class Emperor:
    """Trains with a trainer, a few epochs at a time, and evaluates in between.

    Where the loss has moved less than `loss_threshold` since the evaluation before, the
    rate of the workers' optimizer is divided by ten. Workers leave their slots while
    the loss is evaluated, so that `evaluate_loss` may ask Spark. The rows are
    written once. Each part of the training begins with a new optimizer.

    Args:
        optimizer: The trainer. It has its model and numbers back afterwards.
        evaluate_loss: Function of a model that returns its loss.
        num_epoch: Passes over the rows in all, at least 1.
        evaluation_frequency: Passes between two evaluations, at least 1.
        loss_threshold: Change of the loss, at least 0, below which the rate is
            lowered.

    Raises:
        ConfigError: A value cannot be used.
    """

    def __init__(
        self,
        optimizer: Trainer,
        evaluate_loss: Callable[[Any], float],
        num_epoch: int = 15,
        evaluation_frequency: int = 5,
        loss_threshold: float = 0.005,
    ) -> None:
        self.optimizer, self.evaluate_loss = optimizer, evaluate_loss
        self.num_epoch = require_whole("num_epoch", num_epoch, 1)
        self.evaluation_frequency = require_whole(
            "evaluation_frequency", evaluation_frequency, 1
        )
        if not 0 <= loss_threshold < math.inf:
            raise ConfigError(
                f"loss_threshold={loss_threshold!r} cannot be used. Expected a number "
                "of at least 0. Correct it, or leave it out."
            )
        self.loss_threshold = loss_threshold
        self.losses: list[float] = []
        """Losses that were evaluated, in order."""
        self.rates: list[float] = []
        """Rates of the workers' optimizer, for each part of the training."""
        self.histories: list[Any] = []
        """Histories of the parts."""

    def train(self, dataframe: Any, shuffle: bool = False) -> Any:
        """Trains a copy of the trainer's model; returns it, compiled.

        Args:
            dataframe: DataFrame with the columns.
            shuffle: Whether rows are put into a random order before.
        """
        trainer = self.optimizer
        before = trainer.keras_model, trainer.num_epoch, trainer.worker_rate
        self.losses, self.rates, self.histories = [], [], []
        rows = shuffling.shuffle(dataframe) if shuffle else dataframe
        kept = precache(rows) if is_frame(rows) and not rows.is_cached else None
        try:
            return self._train(rows if kept is None else kept)
        finally:
            trainer.keras_model, trainer.num_epoch, trainer.worker_rate = before
            if kept is not None:
                kept.unpersist()

    def _train(self, rows: Any) -> Any:
        trainer, left = self.optimizer, self.num_epoch
        while left:
            trainer.num_epoch = min(self.evaluation_frequency, left)
            left -= trainer.num_epoch
            self.rates.append(trainer.get_worker_rate())
            trainer.keras_model = trainer.train(rows)
            self.histories.append(trainer.history)
            self.losses.append(float(self.evaluate_loss(trainer.keras_model)))
            if has_stalled(self.losses, self.loss_threshold):
                trainer.worker_rate = self.rates[-1] / FACTOR
        return trainer.keras_model


def has_stalled(losses: list[float], threshold: float) -> bool:
    """Whether the last loss differs little from the one before.

    Example:
        >>> has_stalled([0.5], 0.1), has_stalled([0.5, 0.45], 0.1)
        (False, True)
    """
    return len(losses) > 1 and abs(losses[-1] - losses[-2]) < threshold
