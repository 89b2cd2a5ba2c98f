"""Decides how many workers suffice to close a round. Pure."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from shoal.errors import ConfigError, PlanError
from shoal.plan.request import Request, plain


def check_quorum(quorum: object) -> None:
    """Refuses values that are neither a number of workers nor a share of them.

    Raises:
        ConfigError: The value is invalid for any run.

    Example:
        >>> check_quorum(3), check_quorum(0.75), check_quorum(None)
        (None, None, None)
    """
    number: Any = plain(quorum)
    is_count = type(number) is int and number >= 1
    is_share = not isinstance(number, int) and (
        isinstance(number, Real) and 0 < float(number) <= 1
    )
    if number is not None and not (is_count or is_share):
        raise ConfigError(
            f"quorum={quorum!r} cannot be used. Expected a number of workers of at "
            "least 1, or a share of them such as 0.75. Leave it out to let one worker "
            "in four be late."
        )


def usual_quorum(workers: int) -> int:
    """Returns the default: all but one worker in four, two of three; no quorum for two.

    Example:
        >>> [usual_quorum(workers) for workers in (1, 2, 3, 4, 8, 16)]
        [1, 2, 2, 3, 6, 12]
    """
    return workers - max(1, workers // 4) if workers > 2 else workers


def choose_quorum(request: Request, workers: int, asked: int) -> int:
    """Returns how many workers suffice for a round, 0 for all.

    Args:
        request: The request.
        workers: Number of workers that will run.
        asked: Number of requested workers, at least as many.

    Raises:
        PlanError: A quorum was given, but the strategy has no such rounds, or there are
            fewer workers.

    Example:
        >>> from shoal.strategies import LocalSGD
        >>> choose_quorum(Request(strategy=LocalSGD()), workers=4, asked=4)
        3
        >>> choose_quorum(Request(strategy=LocalSGD(), quorum=0.5), workers=4, asked=4)
        2
    """
    quorum, strategy = plain(request.quorum), request.strategy
    is_offered = not strategy.is_asynchronous and strategy.exchanges == "weights"
    if quorum is None:
        is_fixed = request.deterministic or request.cluster == "inline"
        found = usual_quorum(workers) if is_offered and not is_fixed else workers
        return found if found < workers else 0
    if not is_offered:
        _refuse_strategy(request)
    if isinstance(quorum, int) and quorum > asked:
        raise PlanError(
            f"quorum={quorum} with {asked} worker(s). Expected at most as many as "
            "there are. Lower it, or give a share of the workers such as quorum=0.75."
        )
    # A share of 0.7 of 10 is 7, in spite of rounding errors in the product.
    share = quorum if isinstance(quorum, int) else math.ceil(quorum * workers - 1e-9)
    if share >= workers:
        return 0
    if request.deterministic or request.cluster == "inline":
        _refuse_chance(request)
    return share


def _refuse_strategy(request: Request) -> None:
    """Refuses strategies without rounds, or whose workers may not miss one."""
    name = request.strategy.name
    why = (
        "applies messages as they arrive, no worker waits for another"
        if request.strategy.is_asynchronous
        else "takes each step together, and a worker that misses one has other weights"
    )
    raise PlanError(
        f"quorum={request.quorum!r} with {name}. Expected a strategy whose rounds "
        f"exchange weights: {name} {why}. Leave quorum out, or choose local_sgd, "
        "easgd or diloco."
    )


def _refuse_chance(request: Request) -> None:
    """Refuses a quorum where results must repeat, or where no worker can be late."""
    what = "deterministic=True" if request.deterministic else "cluster='inline'"
    why = (
        "a round would close without the workers that happen to be late"
        if request.deterministic
        else "workers take turns in this process, none is late"
    )
    raise PlanError(
        f"quorum={request.quorum!r} with {what}. Expected rounds that wait for all "
        f"workers: {why}. Leave one of the two out."
    )
