"""A cluster in one process: seeded, single-threaded, with workers of unequal speed.

This file decides when messages of simulated workers arrive. Everything else is the
strategy's own verbs, called as the engine calls them, so that a strategy can be
tried before any process is started. Time is a number here, never a clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias, cast, final

import numpy as np
import numpy.typing as npt

from shoal.strategies import Facts, RoundStrategy, ServerStrategy, Strategy
from shoal.testing.problems import LeastSquares
from shoal.vectors import Vector

Rows: TypeAlias = npt.NDArray[np.int64]
Schedule: TypeAlias = Callable[[float], float]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """Result of a simulated run.

    Args:
        center: The final center, float32.
        losses: Loss of the center, at the end of each epoch.
        committed: Samples covered by messages that were applied.
        steps: Optimizer steps taken by all workers together.
        exchanges: Messages applied.
        largest_staleness: Largest staleness of a message.
        learning_rate: Learning rate at the final run clock, committed / batch_size.

    Example:
        >>> from shoal.strategies import Downpour
        >>> outcome = simulate(
        ...     Downpour(),
        ...     LeastSquares.seeded(),
        ...     workers=2,
        ...     epochs=3,
        ...     learning_rate=0.1,
        ... )
        >>> len(outcome.losses), outcome.losses[-1] < outcome.losses[0]
        (3, True)
    """

    center: Vector
    losses: tuple[float, ...]
    committed: int
    steps: int
    exchanges: int
    largest_staleness: int
    learning_rate: float


@final
@dataclass(kw_only=True, eq=False)
class _Worker:
    """One simulated worker: its vectors, and its present window."""

    local: Vector
    anchor: Vector
    velocity: Vector
    speed: float
    version: int = 0
    window: tuple[Rows, ...] = ()


def lookahead_step(
    local: Vector, velocity: Vector, momentum: float, step: Callable[[Vector], Vector]
) -> tuple[Vector, Vector]:
    """Takes one Nesterov step, v := mu v + s(x + mu v); x := x + v.

    Args:
        local: Weights x.
        velocity: Velocity v.
        momentum: Factor mu; 0 for a plain step.
        step: Weights -> the inner optimizer's step s there, -learning_rate * gradient.

    Returns:
        The new (local, velocity).

    Example:
        >>> x, v = np.array([1.0], "f4"), np.array([0.5], "f4")
        >>> lookahead_step(x, v, 0.5, lambda at: -0.25 * at)
        (array([0.9375], dtype=float32), array([-0.0625], dtype=float32))
    """
    if momentum == 0:
        return local + step(local), velocity
    drift: Vector = velocity * np.float32(momentum)
    velocity = drift + step(local + drift)
    return local + velocity, velocity


def simulate(
    strategy: Strategy,
    problem: LeastSquares,
    *,
    workers: int,
    epochs: int,
    learning_rate: float | Schedule,
    batch_size: int = 4,
    seed: int = 0,
) -> Outcome:
    """Trains on a problem with SGD and simulated workers of unequal speed.

    Args:
        strategy: Strategy; a period of 0 becomes the steps of one worker in an epoch.
        problem: Problem to solve, from weights of zero.
        workers: Number of workers. The slowest takes about three times as long as the
            fastest.
        epochs: Passes over the rows.
        learning_rate: A number, or a function of the run clock (committed samples /
            batch_size).
        batch_size: Rows of one optimizer step: of all workers if the strategy
            exchanges gradients, else of each worker.
        seed: Seed of orders and speeds; the same seed gives the same outcome.

    Example:
        >>> from shoal.strategies import AEASGD
        >>> problem = LeastSquares.seeded()
        >>> outcome = simulate(
        ...     AEASGD(), problem, workers=3, epochs=40, learning_rate=0.5
        ... )
        >>> outcome.committed == 40 * problem.rows, outcome.losses[-1] < 1e-3
        (True, True)
    """
    if strategy.period == 0:
        whole = math.ceil(problem.rows / (batch_size * workers))
        strategy = replace(strategy, period=whole)
    cluster = _SimulatedRun(strategy, problem, workers, batch_size, learning_rate, seed)
    for epoch in range(epochs):
        cluster.train_epoch(epoch)
    return cluster.outcome()


class _SimulatedRun:
    """The server and its workers during one simulated run."""

    def __init__(
        self,
        strategy: Strategy,
        problem: LeastSquares,
        workers: int,
        batch_size: int,
        learning_rate: float | Schedule,
        seed: int,
    ) -> None:
        self._strategy = strategy
        self._problem = problem
        self._batch_size = batch_size
        self._seed = seed
        self._random = np.random.default_rng([seed, 1])
        self._rate = (
            learning_rate if callable(learning_rate) else lambda clock: learning_rate
        )
        self._center = np.zeros(problem.size, np.float32)
        self._state = strategy.init(problem.size)
        self._workers = [
            _Worker(
                local=strategy.adopt(self._center),
                anchor=self._center.copy(),
                velocity=np.zeros(problem.size, np.float32),
                speed=1.0 + 2.0 * rank / max(1, workers - 1),
            )
            for rank in range(workers)
        ]
        self._now = 0.0
        self._losses: list[float] = []
        self._committed = self._steps = self._exchanges = self._updates = 0
        self._largest_staleness = 0

    def outcome(self) -> Outcome:
        """Returns the outcome."""
        return Outcome(
            center=self._center.copy(),
            losses=tuple(self._losses),
            committed=self._committed,
            steps=self._steps,
            exchanges=self._exchanges,
            largest_staleness=self._largest_staleness,
            learning_rate=self._rate(self._committed / self._batch_size),
        )

    def train_epoch(self, epoch: int) -> None:
        """Exchanges every row of one epoch, the last short window included."""
        random = np.random.default_rng([self._seed, 2, epoch])
        order = random.permutation(self._problem.rows)
        if self._strategy.exchanges == "gradients":
            self._train_in_step(order)
        elif isinstance(self._strategy, RoundStrategy):
            self._train_rounds(order)
        else:
            self._train_on_arrival(order)
        self._losses.append(self._problem.loss(self._center))

    def _batches(self, order: Rows, size: int) -> Iterator[Rows]:
        for start in range(0, len(order), size):
            yield order[start : start + size]

    def _windows(self, order: Rows) -> Iterator[tuple[Rows, ...]]:
        batches = list(self._batches(order, self._batch_size))
        for start in range(0, len(batches), self._strategy.period):
            yield tuple(batches[start : start + self._strategy.period])

    def _train_on_arrival(self, order: Rows) -> None:
        """Applies each window when its worker has finished it, the fastest first."""
        windows = self._windows(order)
        due: list[tuple[float, int]] = []
        for rank in range(len(self._workers)):
            self._begin(rank, windows, due)
        while due:
            self._now, rank = heapq.heappop(due)
            self._apply(rank)
            self._begin(rank, windows, due)

    def _begin(
        self,
        rank: int,
        windows: Iterator[tuple[Rows, ...]],
        due: list[tuple[float, int]],
    ) -> None:
        worker = self._workers[rank]
        worker.window = next(windows, ())
        if worker.window:
            jitter = self._random.uniform(0.8, 1.2)
            heapq.heappush(
                due, (self._now + len(worker.window) * worker.speed * jitter, rank)
            )

    def _train_rounds(self, order: Rows) -> None:
        """Merges a window of each worker; one without a window is excused."""
        windows = self._windows(order)
        while True:
            found: dict[int, tuple[Rows, ...]] = {}
            for rank, window in zip(range(len(self._workers)), windows, strict=False):
                found[rank] = window
            if not found:
                return
            for rank, window in found.items():
                self._workers[rank].window = window
            self._merge(list(found))

    def _train_in_step(self, order: Rows) -> None:
        """Splits each batch among all workers, who take the step together."""
        for batch in self._batches(order, self._batch_size):
            shares = np.array_split(batch, len(self._workers))
            messages: dict[int, Vector] = {}
            facts: dict[int, Facts] = {}
            for rank, share in enumerate(shares):
                if len(share):
                    local = self._workers[rank].local
                    total = self._problem.gradient(local, share) * np.float32(
                        len(share)
                    )
                    messages[rank] = self._strategy.push(total, local, 1)
                    facts[rank] = self._facts(samples=len(share), steps=1, staleness=1)
            rounds = cast(RoundStrategy, self._strategy)
            replies = rounds.merge(self._center, self._state, messages, facts)
            step = -np.float32(self._rate(self._committed / self._batch_size))
            # A rank without rows sends nothing, and takes the step with the rest.
            anyone = next(iter(replies))
            for rank, worker in enumerate(self._workers):
                reply = replies.get(rank, replies[anyone])
                sent = messages.get(rank, messages[anyone])
                mean, _ = self._strategy.pull(sent, sent, worker.anchor, reply)
                move: Vector = step * mean
                worker.local = worker.local + move
            self._center[:] = self._workers[0].local
            self._commit(len(batch), len(messages), len(messages))

    def _train_window(self, worker: _Worker) -> tuple[int, int]:
        """Takes the local steps of a window; returns its (samples, steps)."""
        samples = sum(len(batch) for batch in worker.window)
        clock = self._committed / self._batch_size
        for number, batch in enumerate(worker.window):
            rate = -np.float32(self._rate(clock + number))
            worker.local, worker.velocity = lookahead_step(
                worker.local,
                worker.velocity,
                self._strategy.local_momentum,
                lambda at, rows=batch, rate=rate: (
                    rate * self._problem.gradient(at, rows)
                ),
            )
        return samples, len(worker.window)

    def _facts(self, *, samples: int, steps: int, staleness: int) -> Facts:
        return Facts(
            workers=len(self._workers),
            staleness=staleness,
            steps=steps,
            samples=samples,
            updates=self._updates,
        )

    def _apply(self, rank: int) -> None:
        """Applies one message of one worker, like the server of an asynchronous run."""
        strategy = cast(ServerStrategy, self._strategy)
        worker = self._workers[rank]
        samples, steps = self._train_window(worker)
        staleness = self._updates - worker.version + 1
        facts = self._facts(samples=samples, steps=steps, staleness=staleness)
        message = strategy.push(worker.local, worker.anchor, steps)
        reply = strategy.apply(self._center, self._state, message, facts).copy()
        self._take(worker, reply)
        self._largest_staleness = max(self._largest_staleness, staleness)
        self._commit(samples, steps, 1)
        worker.version = self._updates

    def _merge(self, ranks: list[int]) -> None:
        """Merges one round, like the server of a synchronous run."""
        strategy = cast(RoundStrategy, self._strategy)
        messages: dict[int, Vector] = {}
        facts: dict[int, Facts] = {}
        for rank in ranks:
            worker = self._workers[rank]
            samples, steps = self._train_window(worker)
            messages[rank] = strategy.push(worker.local, worker.anchor, steps)
            facts[rank] = self._facts(samples=samples, steps=steps, staleness=1)
        replies = strategy.merge(self._center, self._state, messages, facts)
        for rank, reply in replies.items():
            self._take(self._workers[rank], reply.copy())
        self._commit(
            sum(int(fact.samples) for fact in facts.values()),
            sum(fact.steps for fact in facts.values()),
            len(messages),
        )

    def _take(self, worker: _Worker, reply: Vector) -> None:
        worker.local, worker.anchor = self._strategy.pull(
            worker.local, worker.local, worker.anchor, reply
        )

    def _commit(self, samples: int, steps: int, messages: int) -> None:
        self._committed += samples
        self._steps += steps
        self._exchanges += messages
        self._updates += 1
