"""Validation of epochs: at once, or by a process of its own, whose scores come late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, final

from shoal.training.driver_options import DriverOptions
from shoal.training.evaluator import Evaluator, Score
from shoal.training.user_model import UserModel


@final
class EpochValidation:
    """Validates the epochs that are to be validated.

    Args:
        options: Options of `fit`.
        user: The user's model.
        watching: Makes a context in which changes of the model's states are noted.
        on_score: Called with each late score.

    Attributes:
        evaluator: The validation process, if there is one.
    """

    def __init__(
        self,
        options: DriverOptions,
        user: UserModel,
        watching: Callable[[], AbstractContextManager[None]],
        on_score: Callable[[Score], None],
    ) -> None:
        self._options, self._user = options, user
        self._watching, self._on_score = watching, on_score
        self.evaluator: Evaluator | None = None

    def is_due(self, epoch: int) -> bool:
        """Whether an epoch is to be validated."""
        freq = self._options.validation_freq
        if isinstance(freq, int):
            return (epoch + 1) % freq == 0
        return epoch + 1 in freq

    def logs(self, epoch: int, callbacks: Any) -> dict[str, Any]:
        """Returns the results of an epoch, if it is validated and they are known.

        Args:
            epoch: The epoch that has ended.
            callbacks: Callbacks that are told of the validation.
        """
        if not self.is_due(epoch):
            return {}
        if self.evaluator is not None:
            self._take(self.evaluator.ask(epoch, self._user.moved()))
        elif self._options.validate is not None:
            with self._watching():
                found = self._options.validate(callbacks=callbacks)
            return named(found)
        return {}

    @property
    def waiting(self) -> list[int]:
        """The epochs whose scores are pending."""
        return [] if self.evaluator is None else self.evaluator.waiting

    def start(self) -> None:
        """Starts the validation process, if there is one: it imports meanwhile."""
        if self.evaluator is not None:
            self.evaluator.start()

    def poll(self) -> None:
        """Takes the scores that have come."""
        if self.evaluator is not None:
            self._take(self.evaluator.poll())

    def wait(self, on_wait: Callable[[int], None]) -> None:
        """Waits for pending scores, one by one.

        A score that has come is kept, even if the next one fails.

        Args:
            on_wait: Called with the epoch whose score it waits for.
        """
        while self.evaluator is not None and (waiting := self.waiting):
            on_wait(waiting[0])
            self._take(self.evaluator.drain(len(waiting) - 1))

    def close(self) -> None:
        """Ends the validation process, if there is one."""
        if self.evaluator is not None:
            self.evaluator.close()

    def _take(self, scores: Sequence[Score]) -> None:
        for score in scores:
            self._on_score(score)


def named(results: Any) -> dict[str, Any]:
    """Returns results under the names that a history has them."""
    return {f"val_{name}": value for name, value in results.items()}
