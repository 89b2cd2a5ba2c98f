"""What all simulated runs share: a seed, a kind, and how often each fault comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One simulated run.

    Args:
        seed: Seed of the schedule.
        kind: Kind of the run, such as the name of its strategy.
        trouble: How often each kind of trouble may come; see `Schedule`.
    """

    seed: int
    kind: str
    trouble: Counter[str] = field(default_factory=Counter[str])


def kind_of(seed: int, kind: str | None, kinds: Sequence[str]) -> str:
    """The requested kind, else that of the seed: all kinds come in turn."""
    return kind or kinds[seed % len(kinds)]
