"""Decides how the workers' learning rate follows their number. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from shoal.errors import ConfigError, PlanError
from shoal.plan.request import Request
from shoal.registry import did_you_mean, is_known

FACTORS: Mapping[str, Callable[[int], float]] = {
    "none": lambda workers: 1.0,
    "sqrt": math.sqrt,
    "linear": float,
}
"""Number of workers -> factor of their learning rate, by the value of `scale_rate`."""

WARMUP_EPOCHS = 1
"""Epochs over which the rate grows to its factor: at once it may leave good weights."""


def usual_scale(request: Request, *, is_adaptive: bool) -> str:
    """Returns the default of `scale_rate`.

    Args:
        request: The request.
        is_adaptive: Whether the learning rate is the length of a step.

    Example:
        >>> from shoal.strategies import Downpour, LocalSGD
        >>> asked = [Request(strategy=LocalSGD()), Request(strategy=Downpour())]
        >>> [usual_scale(request, is_adaptive=True) for request in asked]
        ['sqrt', 'none']
    """
    return "sqrt" if request.strategy.scales_rate and is_adaptive else "none"


def choose_rate(
    request: Request, workers: int, *, is_adaptive: bool
) -> tuple[float, int]:
    """Returns the factor of the workers' learning rate, and the epochs until it holds.

    A mean of n workers is as little noisy as a step of a batch n times as large, and at
    equal samples they take n times fewer steps one after the other. For adaptive
    optimizers the step that fits such a batch is the square root of n times as long
    (Malladi et al., 2022, arXiv:2205.10287).

    Args:
        request: The request.
        workers: Number of workers that will run.
        is_adaptive: Whether the learning rate is the length of a step.

    Raises:
        ConfigError: `scale_rate` is none of `FACTORS`.
        PlanError: The workers of the strategy take no steps of their own that are
            averaged.

    Example:
        >>> from shoal.strategies import LocalSGD
        >>> request = Request(strategy=LocalSGD())
        >>> [choose_rate(request, 4, is_adaptive=known) for known in (True, False)]
        [(2.0, 1), (1.0, 0)]
    """
    strategy = request.strategy
    wanted = request.scale_rate or usual_scale(request, is_adaptive=is_adaptive)
    if wanted == "none":
        return strategy.rate_scaling(workers)
    if not is_known(wanted, FACTORS):
        raise ConfigError(did_you_mean("scale_rate", wanted, list(FACTORS)))
    if strategy.exchanges == "gradients":
        raise PlanError(
            f"scale_rate={wanted!r} with {strategy.name}, whose workers take one step "
            "together. Expected a strategy that exchanges weights, such as diloco. "
            "Leave it out, or for a larger batch_size write "
            "strategy='all_reduce:scale_learning_rate=true'."
        )
    if strategy.is_independent:
        raise PlanError(
            f"scale_rate={wanted!r} with {strategy.name}, which averages nothing. "
            "Expected a strategy that exchanges weights, such as diloco. "
            "Leave one of the two out."
        )
    factor = FACTORS[wanted](workers)
    return factor, 0 if factor == 1 else WARMUP_EPOCHS
