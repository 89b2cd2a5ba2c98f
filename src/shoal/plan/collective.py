"""Decides where gradients are averaged: at the server, or by the workers. Pure.

Later code never sees "auto".
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.backends import BACKENDS
from shoal.errors import ConfigError, PlanError
from shoal.facts import ModelFacts
from shoal.plan.gpus import Place
from shoal.plan.request import Request
from shoal.registry import did_you_mean, is_known

COLLECTIVES = ("auto", "native", "server", "shared")
MOST_SHARED_BYTES = 32 << 20
"""Limit of the bytes of all workers' gradients. Each worker reads all of them, and has
room for two of its own and a mean; with longer ones the server is as fast."""


def choose_collective(
    request: Request, model: ModelFacts, workers: int, places: Sequence[Place]
) -> str:
    """Returns "server", "native" or "shared".

    Args:
        request: The request.
        model: Model to train.
        workers: Number of workers that will run.
        places: Their GPUs; empty if they compute on the CPU.

    Raises:
        ConfigError: `collective` is unknown.
        PlanError: The requested collective is not available.

    Example:
        >>> from shoal.strategies import AllReduce
        >>> model = ModelFacts(name="m", parameters=3, statistics=0, optimizer="SGD")
        >>> choose_collective(Request(strategy=AllReduce()), model, 2, ())
        'shared'
        >>> request = Request(strategy=AllReduce(), deterministic=True)
        >>> choose_collective(request, model, 2, ())
        'server'
    """
    asked, backend = request.collective, model.backend
    if not is_known(asked, COLLECTIVES):
        raise ConfigError(did_you_mean("collective", asked, COLLECTIVES))
    obstacle = _obstacle(request)
    if asked == "native":
        obstacle = obstacle or why_no_group(backend)
    if asked in ("native", "shared") and obstacle:
        expected = "all_reduce on processes of this machine"
        if asked == "native":
            expected += f" with a backend whose workers form a group: {_able()}"
        raise PlanError(
            f"collective={asked!r} is not available: {obstacle}. Expected {expected}. "
            "Leave collective out: gradients are then averaged as is best."
        )
    if workers < 2 or obstacle:
        return "server"
    if asked != "auto":
        return asked
    if places:
        is_better = library_of(backend, places) == "nccl" and not why_no_group(backend)
        return "native" if is_better else "server"
    is_short = 4 * model.parameters * workers <= MOST_SHARED_BYTES
    return "shared" if is_short and request.servers == 1 else "server"


def _able() -> str:
    return ", ".join(name for name, entry in BACKENDS.items() if entry.group)


def _obstacle(request: Request) -> str:
    """Returns why workers of such a run form no group, empty if they can."""
    if request.strategy.exchanges != "gradients":
        return f"{request.strategy.name} exchanges weights, which only a server merges"
    if request.cluster == "inline":
        return f"workers on cluster={request.cluster!r} are not processes"
    if request.cluster != "local":
        return f"workers on cluster={request.cluster!r} have no folder to meet in"
    if request.deterministic:
        return "with deterministic=True sums are made in one order, at the server"
    return ""


def why_no_group(backend: str) -> str:
    """Returns why workers of a backend form no native group, empty if they can.

    Example:
        >>> why_no_group("torch"), why_no_group("jax")
        ('', 'jax forms groups that end with their first member')
    """
    entry = BACKENDS.get(backend)
    return "" if entry is None or entry.group else f"{backend} {entry.no_group}"


def library_of(backend: str, places: Sequence[Place]) -> str:
    """Returns the library of a group: NCCL needs a GPU for each worker.

    Example:
        >>> library_of("torch", ())
        'gloo'
    """
    entry = BACKENDS.get(backend)
    has_own = bool(places) and all(place.workers == 1 for place in places)
    return "nccl" if has_own and entry is not None and entry.has_nccl else "gloo"
