"""What every simulated run is about: a number, a kind, and what breaks how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One simulated run.

    Args:
        seed: Of the schedule.
        kind: Of the run, such as the name of its strategy.
        trouble: How often each kind of trouble may come; see `Schedule`.
    """

    seed: int
    kind: str
    trouble: Counter[str] = field(default_factory=Counter[str])


def kind_of(seed: int, kind: str | None, kinds: Sequence[str]) -> str:
    """The kind that was asked for, else that of the seed: all come in turns."""
    return kind or kinds[seed % len(kinds)]
