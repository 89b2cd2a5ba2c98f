"""Laws of whole runs, in the simulated cluster: this file decides 1, 8, 9 and 11."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from shoal.strategies import Strategy
from shoal.testing.exchange import near, same
from shoal.testing.problems import LeastSquares
from shoal.testing.simulation import simulate
from shoal.vectors import Vector

WORKERS = 4
SPREAD = 4
"""No simulated worker falls behind by more updates than this times the workers."""
EPOCHS = 1200
REMAINING = 1e-3
"""Largest remaining share of the initial distance to the optimum after EPOCHS."""


def equals_plain_training(strategy: Strategy) -> None:
    """One worker with period 1 takes the steps of plain SGD (to 1e-5)."""
    problem = LeastSquares.seeded(rows=30, size=5)
    plain = replace(strategy, period=1)
    expected: Vector = np.zeros(problem.size, np.float32)
    for epochs in (1, 2, 3):
        random = np.random.default_rng([7, 2, epochs - 1])
        order = random.permutation(problem.rows)
        for start in range(0, problem.rows, 4):
            rows = order[start : start + 4]
            step: Vector = np.float32(-0.3) * problem.gradient(expected, rows)
            expected += step
        outcome = simulate(
            plain, problem, workers=1, epochs=epochs, learning_rate=0.3, seed=7
        )
        near(outcome.center, expected, f"center after {epochs} epochs")


def commits_every_sample(strategy: Strategy) -> None:
    """Every sample of an epoch is exchanged, with a short last window if needed."""
    problem = LeastSquares.seeded(rows=50, size=3)
    short = strategy
    if strategy.period != 1:
        # 50 rows are 13 batches of 4, the last of 2; 13 batches are 3 windows of 5.
        short = replace(strategy, period=5)
    workers = strategy.max_workers or 2
    outcome = simulate(short, problem, workers=workers, epochs=3, learning_rate=0.1)
    same(outcome.committed, 3 * problem.rows, "samples committed")
    if strategy.exchanges == "weights":
        windows = math.ceil(13 / short.period)
        same(outcome.steps, 3 * 13, "optimizer steps")
        same(outcome.exchanges, 3 * windows, "messages")


def reaches_the_optimum(strategy: Strategy) -> None:
    """Below its learning-rate bound it solves least squares that has no residual.

    Workers differ in speed by a factor of three; periods are cut to 4 at most, to
    keep the law fast. The bound uses a staleness that is checked
    to be at least the observed one.
    """
    problem = LeastSquares.seeded(rows=64, size=4)
    quick = replace(strategy, period=min(strategy.period or 4, 4))
    workers = strategy.max_workers or WORKERS
    staleness = 1 if workers == 1 or not quick.is_asynchronous else SPREAD * workers
    bound = quick.learning_rate_bound(curvature=problem.curvature, staleness=staleness)
    outcome = simulate(
        quick, problem, workers=workers, epochs=EPOCHS, learning_rate=0.9 * bound
    )
    same(outcome.largest_staleness <= staleness, True, "staleness as assumed")
    left = problem.distance(outcome.center)
    same(left < REMAINING, True, f"distance to the optimum is {left:.2g}, small")


def schedules_end_where_plain_training_ends(strategy: Strategy) -> None:
    """A cosine schedule at the run clock reaches its end, for 1, 2 and 4 workers."""
    problem = LeastSquares.seeded(rows=48, size=3)
    length = 2 * problem.rows / 4

    def cosine(clock: float) -> float:
        return 0.1 * (1 + math.cos(math.pi * min(clock / length, 1.0)))

    for workers in (1, 2, 4):
        if workers <= (strategy.max_workers or workers):
            outcome = simulate(
                strategy, problem, workers=workers, epochs=2, learning_rate=cosine
            )
            same(outcome.learning_rate, cosine(length), f"rate, {workers} workers")
