"""The request that `plan` chooses. This file decides what a user may say about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NoReturn, final

from shoal.strategies.base import RoundStrategy


@final
@dataclass(frozen=True, kw_only=True)
class Auto(RoundStrategy):
    """Lets `plan` choose strategy and period from facts, and say why.

    Choose it where you would have to try several: the facts are the number of workers,
    the steps that each of them takes, whether they are equal, and the estimated time of
    a step and of an exchange. It is no rule of its own: `plan.strategy` is the strategy
    that was chosen, `plan.choice` the reason. `downpour` and `eamsgd` are never chosen.

    Args:
        same_curve: Whether the curve must be that of plain Keras; default False. True
            means `AllReduce`.
        equal_workers: Whether workers are equally fast and stay to the end; default
            None: they are, unless machines differ or their number may change.
        period: Local optimizer steps between two exchanges, at least 1; default 0: they
            are chosen. It does not apply where each step is exchanged.

    Messages: those of the strategy that is chosen.

    Raises:
        ConfigError: A field has another type than its default.

    Example:
        >>> import shoal
        >>> shoal.strategies.get("auto:same_curve=true").same_curve
        True
    """

    name: ClassVar[str] = "auto"
    exchanges: ClassVar[Literal["weights", "gradients"]] = "gradients"
    """What it may become: facts about gradients have to be read."""

    same_curve: bool = False
    equal_workers: bool | None = None
    period: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        is_known = self.equal_workers is None or isinstance(self.equal_workers, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        self._require(is_known, "equal_workers", "is True, False or None")

    def push(self, *_: object, **__: object) -> NoReturn:
        """Raises: a plan replaces this strategy."""
        raise AssertionError("strategy='auto' was not replaced by a plan")

    merge = pull = push
