"""How many workers of a round are enough to close it. Pure."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, TypeAlias

from shoal.errors import ConfigError, PlanError
from shoal.plan.request import Request, plain

Quorum: TypeAlias = "int | float | None"
"""A number of workers, or a share of them below 1; None for `usual_quorum`."""


def check_quorum(quorum: object) -> None:
    """Refuses what is neither a number of workers nor a share of them.

    Raises:
        ConfigError: It is not, whatever the run.

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
    """All but one worker in four, and but one of three; one of two is no quorum.

    Example:
        >>> [usual_quorum(workers) for workers in (1, 2, 3, 4, 8, 16)]
        [1, 2, 2, 3, 6, 12]
    """
    return workers - max(1, workers // 4) if workers > 2 else workers


def choose_quorum(request: Request, workers: int, asked: int) -> int:
    """Returns how many workers of a round are enough, 0 for all.

    Args:
        request: What was asked for.
        workers: That will run.
        asked: Workers that were asked for, at least as many.

    Raises:
        PlanError: A quorum was given, and there are no rounds that could have one, or
            not so many workers.

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
    # A share of 0.7 of 10 is 7, whatever the last bit of the product.
    share = quorum if isinstance(quorum, int) else math.ceil(quorum * workers - 1e-9)
    if share >= workers:
        return 0
    if request.deterministic or request.cluster == "inline":
        _refuse_chance(request)
    return share


def _refuse_strategy(request: Request) -> None:
    """Those that have no rounds, or whose workers may not miss one."""
    name = request.strategy.name
    why = (
        "applies messages as they arrive, nobody waits for anybody"
        if request.strategy.is_asynchronous
        else "takes each step together, and a worker that misses one has other weights"
    )
    raise PlanError(
        f"quorum={request.quorum!r} with {name}. Expected a strategy whose rounds "
        f"exchange weights: {name} {why}. Leave quorum out, or choose local_sgd, "
        "easgd or diloco."
    )


def _refuse_chance(request: Request) -> None:
    """Who is late differs from run to run; in one process nobody is."""
    what = "deterministic=True" if request.deterministic else "cluster='inline'"
    why = (
        "a round would close without whoever happens to be late"
        if request.deterministic
        else "workers take turns in this process, nobody is late"
    )
    raise PlanError(
        f"quorum={request.quorum!r} with {what}. Expected rounds that wait for all "
        f"workers: {why}. Leave one of the two out."
    )
