"""The laws every strategy is tested against: one table, open to plug-in authors.

This file decides which strategies a law concerns. Three facts decide it: whether
the strategy exchanges anything, its kind, and its `promises`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from shoal.strategies import ADAG, DiLoCo, DynSGD, RoundStrategy, Strategy, get
from shoal.testing import exchange_laws, training_laws


@final
@dataclass(frozen=True, kw_only=True)
class Law:
    """A property that must hold for a strategy.

    Args:
        number: Number of the law in the documentation, 1 to 11.
        check: Raises AssertionError if the law is broken.
        concerns: Returns whether the law applies to a strategy.

    Example:
        >>> LAWS[0].number, LAWS[0].concerns(get("downpour"))
        (1, True)
    """

    number: int
    check: Callable[[Any], None]
    concerns: Callable[[Strategy], bool]

    @property
    def name(self) -> str:
        """Returns a name for test ids: "law09_reaches_the_optimum"."""
        return f"law{self.number:02d}_{self.check.__name__}"

    @property
    def sentence(self) -> str:
        """Returns the statement of the law."""
        return (self.check.__doc__ or self.name).splitlines()[0]


def _promised(promise: str) -> Callable[[Strategy], bool]:
    return lambda strategy: promise in strategy.promises


def _is(*kinds: type[Strategy]) -> Callable[[Strategy], bool]:
    return lambda strategy: isinstance(strategy, kinds)


def _all(strategy: Strategy) -> bool:
    return True


def _shares(strategy: Strategy) -> bool:
    return not strategy.is_independent


def _keeps_no_anchor(strategy: Strategy) -> bool:
    return not strategy.needs_anchor


def _speaks_of_changes(strategy: Strategy) -> bool:
    return strategy.message_is_change or strategy.reply_is_change


def _shares_weights(strategy: Strategy) -> bool:
    return not strategy.is_independent and strategy.exchanges == "weights"


LAWS: tuple[Law, ...] = tuple(
    Law(number=number, check=check, concerns=concerns)
    for number, check, concerns in (
        (1, training_laws.equals_plain_training, _promised("plain")),
        (2, exchange_laws.conserves, _promised("conserves")),
        (3, exchange_laws.ignores_order, _is(RoundStrategy)),
        (3, exchange_laws.repeats_nothing, _promised("mean")),
        (3, exchange_laws.weightless_rounds_are_finite, _is(RoundStrategy)),
        (4, exchange_laws.equals_downpour, _is(DynSGD, ADAG)),
        (5, exchange_laws.equals_local_sgd, _is(DiLoCo)),
        (6, exchange_laws.ones_stay_ones, _all),
        (7, exchange_laws.survives_checkpoint, _all),
        (7, exchange_laws.changes_only_center_and_state, _all),
        (7, exchange_laws.keeps_steps_taken_meanwhile, _shares_weights),
        (7, exchange_laws.changes_of_zero_change_nothing, _speaks_of_changes),
        (8, exchange_laws.delivers_short_windows, _all),
        (8, exchange_laws.divides_by_steps_taken, _is(ADAG)),
        (8, training_laws.commits_every_sample, _shares),
        (9, training_laws.reaches_the_optimum, _shares),
        (10, exchange_laws.works_on_segments, _all),
        (10, exchange_laws.writes_in_place_the_same, _all),
        (10, exchange_laws.needs_no_anchor, _keeps_no_anchor),
        (11, training_laws.schedules_end_where_plain_training_ends, _shares),
    )
)
"""Laws 1 to 11, in order; a number may have several checks."""


def strategy_laws(strategy: str | Strategy | type[Strategy]) -> tuple[Law, ...]:
    """Returns the laws that concern a strategy, to parametrise a test with.

    Args:
        strategy: A name, a class whose fields all have defaults, or an object.

    Example:
        >>> [law.number for law in strategy_laws("aeasgd")]
        [2, 6, 7, 7, 7, 7, 8, 8, 9, 10, 10, 10, 11]
    """
    found = get(strategy)
    return tuple(law for law in LAWS if law.concerns(found))


def check_strategy(strategy: str | Strategy | type[Strategy]) -> list[str]:
    """Checks all laws that concern a strategy; the whole test of a plug-in.

    Args:
        strategy: A name, a class whose fields all have defaults, or an object.

    Returns:
        The names of the laws that were checked.

    Raises:
        AssertionError: It breaks laws; the message names each, with the values found.

    Example:
        >>> from shoal.strategies import Downpour
        >>> check_strategy(Downpour(period=2))[0]
        'law01_equals_plain_training'
    """
    found = get(strategy)
    laws = strategy_laws(found)
    broken: list[str] = []
    for law in laws:
        try:
            law.check(found)
        except Exception as error:
            # Writing into a read-only vector is a ValueError, and breaks a law as well.
            broken.append(
                f"{law.name}: {law.sentence}\n{type(error).__name__}: {error}"
            )
    if broken:
        raise AssertionError(
            f"{found.name} breaks {len(broken)} of {len(laws)} laws.\n\n"
            + "\n\n".join(broken)
        )
    return [law.name for law in laws]
