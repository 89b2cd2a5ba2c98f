"""Decides how the workers' learning rate follows their number. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from shoal.errors import ConfigError, PlanError
from shoal.facts import ModelFacts
from shoal.plan.request import Request
from shoal.registry import did_you_mean

FACTORS: Mapping[str, Callable[[int], float]] = {
    "none": lambda workers: 1.0,
    "sqrt": math.sqrt,
    "linear": float,
}
"""Number of workers -> factor of their learning rate, by the value of `scale_rate`."""

WARMUP_EPOCHS = 1
"""Epochs over which the rate grows to its factor: at once it may leave good weights."""


SGD_FROM = 8
"""Workers from which on the rate of SGD is scaled by default. With fewer nothing was
gained where momentum is used, and up to 0.4 points were lost."""


def usual_scale(request: Request, model: ModelFacts, workers: int) -> str:
    """Returns the default of `scale_rate`.

    Args:
        request: The request.
        model: Facts about the model.
        workers: Number of workers that will run.

    Example:
        >>> from shoal.strategies import DynSGD, LocalSGD
        >>> sgd = ModelFacts(name="m", parameters=3, statistics=0, optimizer="SGD",
        ...     is_sgd=True)
        >>> asked = [Request(strategy=LocalSGD()), Request(strategy=DynSGD())]
        >>> [usual_scale(one, sgd, n) for one in asked for n in (4, 16)]
        ['none', 'sqrt', 'none', 'none']
    """
    strategy = request.strategy
    if strategy.scales_rate and model.is_adaptive:
        return "sqrt"
    is_scaled = strategy.scales_sgd and request.scales_sgd and model.is_sgd
    return "sqrt" if is_scaled and workers >= SGD_FROM else "none"


def choose_rate(request: Request, model: ModelFacts, workers: int) -> tuple[float, int]:
    """Returns the factor of the workers' learning rate, and the epochs until it holds.

    A mean of n workers is as little noisy as a step of a batch n times as large, and at
    equal samples they take n times fewer steps one after the other. For adaptive
    optimizers the step that fits such a batch is the square root of n times as long
    (Malladi et al., 2022, arXiv:2205.10287). For SGD it was measured.

    Args:
        request: The request.
        model: Facts about the model.
        workers: Number of workers that will run.

    Raises:
        ConfigError: `scale_rate` is none of `FACTORS`.
        PlanError: The workers of the strategy take no steps of their own that are
            averaged.

    Example:
        >>> from shoal.strategies import LocalSGD
        >>> request = Request(strategy=LocalSGD())
        >>> adam = ModelFacts(name="m", parameters=3, statistics=0, optimizer="Adam",
        ...     is_adaptive=True)
        >>> choose_rate(request, adam, 4)
        (2.0, 1)
    """
    strategy = request.strategy
    wanted = request.scale_rate or usual_scale(request, model, workers)
    if wanted == "none":
        return strategy.rate_scaling(workers)
    if wanted not in FACTORS:
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
