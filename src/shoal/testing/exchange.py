"""A test bench for one exchange: calls the verbs and compares their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import numpy as np

from shoal.strategies import Facts, RoundStrategy, ServerStrategy, State, Strategy
from shoal.vectors import Vector

SIZE = 12
WORKERS = 3
Vectors = dict[int, Vector]


@final
@dataclass(kw_only=True, eq=False)
class ExchangeCase:
    """A center and its workers in the middle of a run, with read-only inputs.

    Vectors that the contract forbids to change are made read-only, so that
    a strategy that changes one fails at that place.

    Args:
        strategy: Strategy under test.
        seed: Seed of all vectors.
        workers: Number of workers.
        size: Length of the vectors.
    """

    strategy: Strategy
    seed: int = 0
    workers: int = WORKERS
    size: int = SIZE
    center: Vector = field(init=False)
    state: State = field(init=False)
    local: Vectors = field(init=False)
    anchor: Vectors = field(init=False)
    updates: int = 0

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        self.center = random.standard_normal(self.size).astype(np.float32)
        self.state = self.strategy.init(self.size)
        self.anchor = {r: sealed(self.center.copy()) for r in range(self.workers)}
        self.local = dict(self.anchor)
        self._random = random

    def wander(self) -> None:
        """Moves every worker as training would."""
        for rank, local in self.local.items():
            step = self._random.standard_normal(self.size).astype(np.float32)
            self.local[rank] = sealed(local + step)

    def push(self, steps: int = 2) -> Vectors:
        """Returns every worker's message."""
        return {
            rank: sealed(self.strategy.push(local, self.anchor[rank], steps))
            for rank, local in self.local.items()
        }

    def facts(self, samples: Mapping[int, float] | None = None) -> dict[int, Facts]:
        """Returns facts for one exchange of every worker."""
        return {
            rank: Facts(
                workers=self.workers,
                staleness=1 + rank,
                steps=2,
                samples=(samples or {}).get(rank, 8.0),
                updates=self.updates,
            )
            for rank in self.local
        }

    def serve(self, messages: Vectors, facts: Mapping[int, Facts]) -> Vectors:
        """Runs the server's verb; returns a copy of each reply."""
        replies = serve(self.strategy, self.center, self.state, messages, facts)
        rounds = isinstance(self.strategy, RoundStrategy)
        self.updates += 1 if rounds else len(messages)
        return replies

    def exchange(self) -> None:
        """Pushes, serves and pulls for every worker."""
        replies = self.serve(self.push(), self.facts())
        for rank, reply in replies.items():
            local = self.local[rank]
            pulled = self.strategy.pull(local, local, self.anchor[rank], reply)
            self.local[rank], self.anchor[rank] = (sealed(v) for v in pulled)


def sealed(vector: Vector) -> Vector:
    """Returns a read-only view of a vector."""
    view = vector.view()
    view.flags.writeable = False
    return view


def serve(
    strategy: Strategy,
    center: Vector,
    state: State,
    messages: Vectors,
    facts: Mapping[int, Facts],
) -> Vectors:
    """Merges a round, or applies its messages in turn; returns copied replies."""
    if isinstance(strategy, RoundStrategy):
        replies = strategy.merge(center, state, messages, facts)
        same(set(replies), set(messages), "a reply for every rank")
        return {rank: sealed(reply.copy()) for rank, reply in replies.items()}
    if not isinstance(strategy, ServerStrategy):
        raise AssertionError(
            f"{strategy.name} is neither a ServerStrategy nor a RoundStrategy. "
            "A strategy must be one of them. Subclass the one that fits."
        )
    return {
        rank: sealed(strategy.apply(center, state, message, facts[rank]).copy())
        for rank, message in messages.items()
    }


def same(found: object, expected: object, what: str) -> None:
    """Raises unless two plain values are equal."""
    if found != expected:
        raise AssertionError(f"{what}: found {found!r}, expected {expected!r}")


def equal(found: Vector, expected: Vector, what: str) -> None:
    """Raises unless two vectors are equal bit for bit."""
    np.testing.assert_array_equal(found, expected, err_msg=what, strict=True)


def near(found: Vector, expected: Vector, what: str, atol: float = 1e-5) -> None:
    """Raises unless two vectors of about unit size are equal to float tolerance."""
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=atol, err_msg=what)
