"""The best model of a run: which epoch has it, and its weights in the run folder.

Validation in a process of its own gives an epoch's score when later epochs have begun:
then the weights of that epoch are put into the model for a moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from shoal.facts import Monitor
from shoal.models.no_tensorflow import no_tensorflow
from shoal.runs.base import Run
from shoal.training.evaluator import Score
from shoal.training.user_model import UserModel


@final
class BestModel:
    """Saves the model after each epoch that is better than all before.

    Args:
        model: The user's model.
        user: The same model, whose weights can be exchanged.
        run: Record of the run.

    Attributes:
        value: Value of the best epoch as the monitor compares it, None without one.
    """

    def __init__(self, model: Any, user: UserModel, run: Run) -> None:
        self._model, self._user, self._run = model, user, run
        self.value: float | None = None

    def offer(self, monitor: Monitor, logs: Mapping[str, float]) -> None:
        """Saves the model as it is if its epoch is the best so far.

        Args:
            monitor: The metric that decides.
            logs: Results of the epoch.
        """
        if self._is_best(monitor, logs):
            self._save()

    def offer_earlier(
        self, monitor: Monitor, logs: Mapping[str, float], score: Score
    ) -> None:
        """Saves the weights of an earlier epoch if it is the best so far.

        The model has its present weights again afterwards.

        Args:
            monitor: The metric that decides.
            logs: Results of that epoch.
            score: Its late score, with its weights.
        """
        if not self._is_best(monitor, logs):
            return
        now = self._user.moved()
        self._user.put(score.weights)
        try:
            self._save()
        finally:
            self._user.put(now)

    def _is_best(self, monitor: Monitor, logs: Mapping[str, float]) -> bool:
        """Whether an epoch is the best so far; it becomes the one to beat."""
        if monitor.name not in logs:
            return False
        value = monitor.score(logs[monitor.name])
        if self.value is not None and value <= self.value:
            return False
        self.value = value
        return True

    def _save(self) -> None:
        with no_tensorflow():
            self._run.save_model(self._model, "best")
