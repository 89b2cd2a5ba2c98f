"""What `strategy="auto"` means: from facts to a strategy, a period and a reason. Pure.

The rules come from measurements (decisions 36 and 37): they are tried in order, and
the first one that applies decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, final

from shoal.errors import PlanError
from shoal.facts import MachineFacts, ModelFacts
from shoal.plan.cautions import has_few_steps
from shoal.plan.collective import choose_collective, library_of
from shoal.plan.gpus import places
from shoal.plan.pace import exchange_s, link_s, step_s
from shoal.plan.refusals import refuse
from shoal.plan.request import Request
from shoal.strategies import (
    AEASGD,
    AllReduce,
    AsyncDiLoCo,
    DiLoCo,
    LocalSGD,
    Single,
    Strategy,
)
from shoal.strategies.auto import Auto
from shoal.strategies.base import LEAST_EXCHANGES

EXCHANGE_SHARE = 0.05
"""Share of a worker's time that exchanges should take at most."""
STEP_SHARE = 0.1
"""The same for an exchange at every step, for which the curve is that of Keras."""
FEW = 4
"""Workers from which late changes need the momentum of async_diloco."""
FEW_OF_AVERAGES = 16
"""The same for models with moving averages, with which aeasgd loses less: measured."""
FEWEST_STEPS = 10
"""Steps of a worker and epoch, below which there is no room for a period."""
MOST_PERIOD = 500
"""Steps between two rounds of the paper of DiLoCo."""


@final
@dataclass(frozen=True, kw_only=True)
class Situation:
    """The facts from which a strategy is chosen.

    Args:
        workers: Number of workers.
        same_curve: Whether the curve of plain Keras was asked for.
        is_equal: Whether workers are equally fast and stay to the end.
        is_ordered: Whether the run must be repeatable, or has rounds with a quorum.
        refusal: Why gradients cannot be averaged; "" if they can.
        library: Library by which workers of GPUs average gradients at little cost, ""
            for none.
        step_s: Estimated seconds of a step of one worker with a whole batch; 0 if
            unknown.
        exchange_s: Estimated seconds of an exchange.
        steps: Steps of a worker in an epoch.
        epochs: Epochs of the run.
        period: Period that the user asked for, 0 for none.
        has_moving_averages: Whether layers keep moving averages, which fit the center
            only if it does not move beyond its workers.

    Example:
        >>> choose(Situation(workers=2, step_s=0.001, exchange_s=0.002)).strategy
        DiLoCo(period=50, outer_learning_rate=0.7, outer_momentum=0.8)
    """

    workers: int
    same_curve: bool = False
    is_equal: bool = True
    is_ordered: bool = False
    refusal: str = ""
    library: str = ""
    step_s: float = 0.0
    exchange_s: float = 0.0
    steps: int = 1_000
    epochs: int = 1
    period: int = 0
    has_moving_averages: bool = False


class Choice(NamedTuple):
    """A strategy, and why it is right."""

    strategy: Strategy
    reason: str


def situation_of(
    asked: Auto,
    request: Request,
    model: ModelFacts,
    machine: MachineFacts,
    *,
    workers: int,
    rows: int,
    batch: int,
) -> Situation:
    """Returns the facts of a request.

    Args:
        asked: What the user said.
        request: The request.
        model: Facts about the model.
        machine: Facts about where it runs.
        workers: Number of workers.
        rows: Samples of an epoch.
        batch: Samples of a worker's step.
    """
    averaged = replace(request, strategy=AllReduce())
    here = places(machine.gpus, workers) if request.cluster == "local" else ()
    is_fast = (
        request.collective == "auto"
        and choose_collective(averaged, model, workers, here) == "native"
    )
    has_gpus = machine.gpus or machine.gpus_each
    cores = max(1, machine.threads_of(workers))
    is_far = len(machine.nodes) > 1
    parameters = model.parameters + model.statistics
    return Situation(
        workers=workers,
        same_curve=asked.same_curve,
        is_equal=_are_equal(asked, request, machine),
        is_ordered=request.deterministic or request.quorum is not None,
        refusal=_refusal(averaged, model, workers, machine),
        library=library_of(model.backend, here) if is_fast else "",
        step_s=0.0 if has_gpus else step_s(model.multiplications, batch, cores),
        exchange_s=(link_s if is_far else exchange_s)(parameters, workers),
        steps=math.ceil(rows / (workers * batch)),
        epochs=request.epochs - request.initial_epoch,
        period=asked.period,
        has_moving_averages=model.has_moving_averages,
    )


def _are_equal(asked: Auto, request: Request, machine: MachineFacts) -> bool:
    """Whether workers are equally fast, as far as can be seen, and stay."""
    if asked.equal_workers is not None:
        return asked.equal_workers
    given = request.workers
    if isinstance(given, tuple) and given[0] < given[-1]:
        return False
    return len({(node.cores, node.gpus) for node in machine.nodes}) <= 1


def _refusal(
    averaged: Request, model: ModelFacts, workers: int, machine: MachineFacts
) -> str:
    """Returns why gradients of such a run cannot be averaged, "" if they can."""
    for name in ("overlap", "quorum"):
        if getattr(averaged, name):
            return f"{name}={getattr(averaged, name)}"
    try:
        refuse(averaged, model, workers, machine)
    except PlanError as error:
        return str(error).partition(". ")[0]
    return ""


def choose(facts: Situation) -> Choice:
    """Returns the strategy for a situation.

    Example:
        >>> choose(Situation(workers=1)).reason
        'one worker has nobody to exchange with: each step is that of plain Keras'
    """
    if facts.same_curve:
        return Choice(AllReduce(), "the curve of plain Keras was asked for")
    if facts.workers == 1:
        alone = "one worker has nobody to exchange with: each step is that of plain"
        return Choice(Single() if facts.refusal else AllReduce(), f"{alone} Keras")
    if not facts.refusal:
        why = _why_each_step(facts)
        if why:
            return Choice(AllReduce(), f"{why}, and the curve is that of plain Keras")
    strategy, why = _of_weights(facts)
    period = facts.period or _period(facts, strategy.period)
    found = replace(strategy, period=period)
    return Choice(found, f"{_cost(facts)}; {why}, every {period:,} steps")


def _why_each_step(facts: Situation) -> str:
    """Returns why an exchange at every step is right; "" if it is not."""
    if facts.library:
        return f"gradients are averaged by {facts.library}, which costs little"
    if facts.steps < FEWEST_STEPS:
        return f"an epoch has only {facts.steps} steps of a worker"
    if has_few_steps(facts.workers, in_run := facts.steps * facts.epochs):
        return f"the run has only {in_run} steps of a worker, too few for an average"
    # The batch of a step is shared by all workers then.
    one_s = facts.step_s / facts.workers
    if one_s and facts.exchange_s <= STEP_SHARE * one_s:
        return (
            f"an exchange takes about {_ms(facts.exchange_s)}, little against a step "
            f"of {_ms(one_s)}"
        )
    return ""


def _of_weights(facts: Situation) -> tuple[Strategy, str]:
    """Returns a strategy that exchanges weights, and why it and not another one."""
    if facts.is_equal or facts.is_ordered:
        who = "equal" if facts.is_equal else "ordered"
        why = f"{facts.workers} {who} workers meet in rounds"
        if facts.has_moving_averages:
            return LocalSGD(), f"{why}, of which it loses least with moving averages"
        return DiLoCo(), why
    few = FEW_OF_AVERAGES if facts.has_moving_averages else FEW
    strategy = AEASGD() if facts.workers < few else AsyncDiLoCo()
    return strategy, f"{facts.workers} unequal workers do not wait"


def _period(facts: Situation, usual: int) -> int:
    """Returns the steps between two exchanges.

    As usual, more where exchanges are long, and fewer in short epochs.
    """
    least = 1
    if facts.step_s:
        steps = facts.exchange_s / max(EXCHANGE_SHARE * facts.step_s, 1e-12)
        least = math.ceil(min(steps, MOST_PERIOD))
    most = max(1, facts.steps // LEAST_EXCHANGES)
    return min(max(usual, least), most, MOST_PERIOD)


def _cost(facts: Situation) -> str:
    """Returns why not every step is exchanged."""
    if facts.refusal:
        return f"gradients cannot be averaged ({facts.refusal})"
    if not facts.step_s:
        return "what a step takes is not known"
    return (
        f"an exchange takes about {_ms(facts.exchange_s)}, too much for every step of "
        f"{_ms(facts.step_s)}"
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2g} ms"
