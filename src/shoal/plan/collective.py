"""Where gradients are averaged: at the server, or by the workers themselves. Pure.

This file decides it once; nothing behind the plan knows of "auto".
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.backends import BACKENDS
from shoal.errors import ConfigError, PlanError
from shoal.plan.gpus import Place
from shoal.plan.request import Request
from shoal.registry import did_you_mean

COLLECTIVES = ("auto", "native", "server")


def choose_collective(
    request: Request, backend: str, workers: int, places: Sequence[Place]
) -> str:
    """Returns "server" or "native".

    Args:
        request: What was asked for.
        backend: Of the model.
        workers: How many will run.
        places: Their GPUs; none where they compute on the CPU.

    Raises:
        ConfigError: `collective` is unknown.
        PlanError: "native" is asked for where workers cannot have a group.

    Example:
        >>> from shoal.strategies import AllReduce
        >>> choose_collective(Request(strategy=AllReduce()), "torch", 2, ())
        'server'
    """
    asked = request.collective
    if asked not in COLLECTIVES:
        raise ConfigError(did_you_mean("collective", asked, COLLECTIVES))
    obstacle = _obstacle(request, backend)
    if asked == "native" and obstacle:
        raise PlanError(
            f"collective='native' cannot be had: {obstacle}. Expected all_reduce on "
            f"processes with a backend whose workers form a group: {_able()}. Leave "
            "collective out: gradients are then averaged through the server."
        )
    is_better = library_of(backend, places) == "nccl"
    is_wanted = asked == "native" or (asked == "auto" and bool(places) and is_better)
    return "native" if is_wanted and not obstacle and workers > 1 else "server"


def _able() -> str:
    return ", ".join(name for name, entry in BACKENDS.items() if entry.group)


def _obstacle(request: Request, backend: str) -> str:
    """Why workers of such a run have no group, empty where they can."""
    if request.strategy.exchanges != "gradients":
        return f"{request.strategy.name} exchanges weights, which only a server merges"
    if request.cluster == "inline":
        return f"workers on cluster={request.cluster!r} are no processes"
    if request.cluster != "local":
        return f"workers on cluster={request.cluster!r} have no folder to meet in"
    if request.deterministic:
        return "with deterministic=True sums are made in one order, at the server"
    entry = BACKENDS.get(backend)
    return "" if entry is None or entry.group else f"{backend} {entry.no_group}"


def library_of(backend: str, places: Sequence[Place]) -> str:
    """What adds in a group: NCCL wants a GPU for each worker.

    Example:
        >>> library_of("torch", ())
        'gloo'
    """
    entry = BACKENDS.get(backend)
    has_own = bool(places) and all(place.workers == 1 for place in places)
    return "nccl" if has_own and entry is not None and entry.has_nccl else "gloo"
