"""Estimates what steps and exchanges cost on processors, to decide about workers. Pure.

This file decides how many workers `workers="auto"` means where every step is exchanged,
and how many steps a worker takes before it reports while it has no partner. All cores
share the step of one worker already; several workers pay only where steps are long
against an exchange, or where one process leaves cores idle. The constants were measured
(decision 34): their ratios matter, not the speed of a machine.
"""

from __future__ import annotations

from shoal.facts import DataFacts, MachineFacts, ModelFacts, Multiplications
from shoal.plan.request import Request

BACKWARD = 3.0  # a training step multiplies three times as often as a prediction
RATES = Multiplications(
    dense=30_000_000_000, convolved=14_000_000_000, recurrent=17_000_000_000
)
"""Multiplications in a second that a worker with one core does in a step."""
SHARED = (1.75, 1.2, 1.0)
"""Speed of one worker on two cores against one core, by the same kinds."""
EXCHANGE_S = 1.5e-3
"""Seconds of an exchange without the time that grows with its bytes."""
EXCHANGE_S_EACH = 1.3e-9
"""Seconds of an exchange for each weight and worker."""
LINK_BYTES_S = 125e6
"""Bytes in a second of a link between machines: 1 Gbit/s."""
LEAST_GAIN = 1.15
"""Times as fast that several workers must be, by estimates that are rough."""
MOST_STEPS = 128
WINDOW_S = 0.1
WINDOW_BYTES = 32 << 20
"""Limits of a window without an exchange: steps, seconds, and bytes of its rows."""


def step_s(work: Multiplications, rows: float, cores: int = 1) -> float:
    """Returns the estimated seconds of a step of one worker.

    Args:
        work: Work of a sample.
        rows: Samples of the step.
        cores: Cores of the worker.

    Example:
        >>> step_s(Multiplications(dense=1_000_000), 1000)
        0.1
    """
    found = 0.0
    for count, rate, shared in zip(work, RATES, SHARED, strict=True):
        # Each doubling of the cores helps by the same factor, which is generous.
        faster = shared ** (max(1, cores).bit_length() - 1)
        found += BACKWARD * rows * count / (rate * faster)
    return found


def exchange_s(parameters: int, workers: int) -> float:
    """Returns the estimated seconds by which an exchange makes a step longer."""
    return EXCHANGE_S + EXCHANGE_S_EACH * parameters * workers


def link_s(parameters: int, workers: int) -> float:
    """Returns the estimated seconds of an exchange between machines.

    All workers share the link of the server, which carries vectors both ways.

    Example:
        >>> link_s(1_000_000, 4)
        0.1295
    """
    return EXCHANGE_S + 4 * parameters * workers / LINK_BYTES_S


def is_chosen(request: Request, machine: MachineFacts) -> bool:
    """Whether the number of workers follows from these estimates."""
    return (
        request.workers == "auto"
        and request.cluster == "local"
        and request.strategy.exchanges == "gradients"
        and not machine.gpus
    )


def fastest(
    work: Multiplications, parameters: int, rows: int, *, most: int, cores: int
) -> int:
    """Returns the number of workers that take a common step fastest.

    Args:
        work: Work of a sample.
        parameters: Number of weights, whose gradients are exchanged.
        rows: Samples of a step of all workers.
        most: Limit on workers.
        cores: Usable cores.

    Example:
        >>> fastest(Multiplications(dense=380_000), 380_000, 64, most=4, cores=4)
        1
        >>> fastest(Multiplications(convolved=9_000_000), 80_000, 64, most=2, cores=2)
        2
    """
    alone = step_s(work, rows, cores)
    times = {
        n: step_s(work, rows / n, max(1, cores // n)) + exchange_s(parameters, n)
        for n in range(2, most + 1)
    }
    best = min(times, key=lambda n: times[n], default=1)
    return best if times and alone > LEAST_GAIN * times[best] else 1


def alone_steps(
    request: Request,
    model: ModelFacts,
    data: DataFacts,
    machine: MachineFacts,
    *,
    batch: int,
    steps: int,
) -> int:
    """Returns the steps that the only worker of a run takes before it reports them.

    Args:
        request: The request.
        model: Facts about the model.
        data: Facts about the data.
        machine: Facts about where it runs.
        batch: Samples of a step.
        steps: Steps of an epoch.

    Returns:
        0 if each step goes through the server: `on_nan` promises to act on single
        steps, inline workers take turns, and some windows cannot be compiled.
    """
    is_offered = request.strategy.exchanges == "gradients" and request.on_nan is None
    can_compile = machine.has_compiler or machine.gpus or not model.needs_compiler
    if not is_offered or request.cluster == "inline" or not can_compile:
        return 0
    row_bytes = data.size_bytes / max(1, data.rows)
    limits = [MOST_STEPS, steps, WINDOW_BYTES / max(1.0, batch * row_bytes)]
    if not machine.gpus:
        one_s = step_s(model.multiplications, batch, machine.cores)
        limits.append(WINDOW_S / one_s if one_s else MOST_STEPS)
    return max(1, int(min(limits)))
