"""Warnings about a model's results, given before the run. Pure."""

from __future__ import annotations

from shoal.facts import ModelFacts
from shoal.strategies.base import Overshoot, Strategy


def metric_warnings(model: ModelFacts) -> list[str]:
    """Returns warnings about metrics that the history leaves out."""
    found: list[str] = []
    if model.unmergeable_metrics:
        found.append(
            f"metrics {', '.join(model.unmergeable_metrics)} cannot be merged from "
            "several workers or exchanges; training leaves them out, validation shows "
            "them exactly."
        )
    if model.lost_logs:
        found.append(
            f"{', '.join(model.lost_logs)}, which train_step logs, are not single "
            "numbers and are not shown."
        )
    return found


def optimizer_warnings(model: ModelFacts) -> list[str]:
    """Returns warnings about optimizers whose state is not returned.

    Example:
        >>> model = ModelFacts(name="m", parameters=3, statistics=0, optimizer="SGD",
        ...     unseen_optimizers=("Adam 'adam'",))
        >>> optimizer_warnings(model)[0].partition(",")[0]
        "train_step of 'm' applies Adam 'adam'"
    """
    if not model.unseen_optimizers:
        return []
    return [
        f"train_step of {model.name!r} applies {', '.join(model.unseen_optimizers)}, "
        "which the model does not hold: each worker has a copy, and its state does not "
        "come back. Assign it to an attribute of the model."
    ]


STEADY, STEADY_LOST = "diloco", 0.0
"""The strategy that stays, and the points that it lost with 16 workers there."""


def overshoot_warnings(
    strategy: Strategy, model: ModelFacts, workers: int
) -> list[str]:
    """Returns warnings about workers whose changes are too long together.

    Example:
        >>> from shoal.strategies import Downpour
        >>> model = ModelFacts(name="m", parameters=3, statistics=0, optimizer="Adam",
        ...     normalising=("Adam",))
        >>> overshoot_warnings(Downpour(), model, 4)[0].partition(",")[0]
        'downpour adds the changes of 4 workers over 5 steps to one center'
        >>> overshoot_warnings(Downpour(), model, 2)
        []
    """
    found = strategy.overshoot(workers)
    if found is None:
        return []
    if workers > 2 and model.normalising:
        lost = ", ".join(f"{points:g} with {n}" for n, points in found.lost.items())
        return [
            f"{strategy.name} {found.why}, and steps of {', '.join(model.normalising)} "
            "are as long for small gradients as for large ones. Points of accuracy "
            f"lost on MNIST with Adam: {lost} workers; {STEADY} lost {STEADY_LOST:g} "
            f"with 16. Choose strategy={STEADY!r}, or multiply the learning rate by "
            f"{found.rate:.3g}."
        ]
    if not found.is_known:
        return []
    return [
        f"{strategy.name} {found.why}, and is known to overshoot there with "
        f"{workers} workers. {found.advice}."
    ]


FEW_STEPS = 300
"""Steps of a worker in a whole run below which averaged workers have lost accuracy."""
FEW_WORKERS = 4
"""Workers up to which a center that moves beyond them leaves moving averages behind."""
LONG_RUN = 1_000
"""Steps of plain Keras from which on a run counts as more than a trial."""


def has_few_steps(workers: int, steps: int) -> bool:
    """Whether workers take few steps in a run, in which plain Keras takes many.

    Args:
        workers: Number of workers.
        steps: Steps of a worker in the whole run.
    """
    return steps < FEW_STEPS and workers * steps >= LONG_RUN


def few_steps_warnings(strategy: Strategy, workers: int, steps: int) -> list[str]:
    """Returns warnings about workers that take few steps one after the other.

    An average of n workers is less noisy than one, and has moved no further: where a
    run is short, no rule of averaging makes up for the steps.

    Args:
        strategy: Strategy of the run.
        workers: Number of workers.
        steps: Steps of a worker in the whole run.

    Example:
        >>> from shoal.strategies import AsyncDiLoCo
        >>> found = few_steps_warnings(AsyncDiLoCo(), 16, 85)
        >>> found[0].partition(":")[0]
        'each of 16 workers takes 85 steps in the whole run, plain Keras takes 1,360'
        >>> few_steps_warnings(AsyncDiLoCo(), 4, 340)
        []
    """
    alone = workers * steps
    is_averaged = strategy.scales_rate_from is not None
    if not (is_averaged and has_few_steps(workers, steps)):
        return []
    return [
        f"each of {workers} workers takes {steps:,} steps in the whole run, plain "
        f"Keras takes {alone:,}: averaged workers have lost accuracy with fewer than "
        f"{FEW_STEPS}, as an average moves no further than one of them. Train for "
        f"more epochs, with a smaller batch_size, or with {alone // FEW_STEPS} workers."
    ]


def moving_average_warnings(
    strategy: Strategy, model: ModelFacts, workers: int, *, are_estimated: bool
) -> list[str]:
    """Returns warnings about moving averages of layers that fit other weights.

    They are means of those of the workers, and the center moves beyond the workers.
    With few workers windows are long, and so is that way (decision 43).

    Args:
        strategy: Strategy of the run.
        model: Facts about the model.
        workers: Number of workers.
        are_estimated: Whether the run estimates them anew.

    Example:
        >>> from shoal.strategies import DiLoCo
        >>> model = ModelFacts(name="m", parameters=3, statistics=2, optimizer="SGD",
        ...     has_moving_averages=True)
        >>> told = [moving_average_warnings(DiLoCo(), model, n, are_estimated=False)
        ...     for n in (1, 2, 16)]
        >>> [len(texts) for texts in told]
        [0, 1, 0]
    """
    is_far = strategy.moves_beyond and 1 < workers <= FEW_WORKERS
    if are_estimated or not (is_far and model.has_moving_averages):
        return []
    return [
        "the model has layers with moving averages, such as BatchNormalization, and "
        f"{strategy.name} moves the weights away from those of its workers, to which "
        "the averages belong. They are not estimated anew here, as the layers or the "
        "training step are not Keras' own, or the data is read in its own order. With "
        "2 workers on CIFAR-10 that lost 3 to 6 points of accuracy. Choose aeasgd or "
        'local_sgd, or estimate them after training: see "Choose a strategy".'
    ]


def divergence_warning(
    strategy: Strategy,
    found: Overshoot,
    *,
    least: float,
    now: float,
    rate: float | None,
) -> str:
    """Returns what a user is told of a run that diverges.

    Args:
        strategy: Strategy of the run.
        found: Why it overshoots.
        least: Lowest mean loss of some exchanges.
        now: Mean loss of the latest.
        rate: Learning rate of the workers, None if there is not a single one.

    Example:
        >>> from shoal.strategies import Downpour
        >>> found = Downpour().overshoot(4)
        >>> text = divergence_warning(Downpour(), found, least=0.5, now=2, rate=0.004)
        >>> text.partition(":")[0], text.rpartition("or ")[2]
        ('downpour diverges', 'compile with learning_rate=0.001.')
    """
    lower = f"multiply the learning rate by {found.rate:.3g}"
    if rate is not None:
        lower = f"compile with learning_rate={rate * found.rate:.3g}"
    return (
        f"{strategy.name} diverges: the loss of the last exchanges is {now:.3g}, and "
        f"was {least:.3g} before. It {found.why}. The run goes on; for a better one "
        f"choose strategy={STEADY!r}, or {lower}."
    )


def metric_notes(model: ModelFacts) -> list[str]:
    """Returns notes about metrics that differ from Keras'.

    Example:
        >>> model = ModelFacts(name="m", parameters=3, statistics=0, optimizer="SGD",
        ...     step_logs=("twice",))
        >>> metric_notes(model)[0].partition(":")[0]
        'twice, which train_step logs beyond the metrics'
    """
    if not model.step_logs:
        return []
    return [
        f"{', '.join(model.step_logs)}, which train_step logs beyond the metrics: "
        "shown is the mean over the epoch's samples, not the last batch as in Keras"
    ]


def state_warnings(model: ModelFacts, workers: int) -> list[str]:
    """Returns warnings about recurrent layers' states with several workers."""
    if not model.is_stateful or workers == 1:
        return []
    return [
        f"{model.name} has stateful layers: each worker keeps the state of the batches "
        "that it is given, which need not follow each other in the data. Train with "
        "strategy='single' and shuffle=False where the order of batches matters."
    ]


def gradient_warnings(model: ModelFacts, strategy: str) -> list[str]:
    """Returns warnings about gradients that differ a little from plain Keras'.

    Args:
        model: Model whose losses decide it.
        strategy: Name of the strategy that exchanges gradients.
    """
    found: list[str] = []
    is_unknown = model.has_own_loss or not model.masks
    if model.has_masks and is_unknown and model.reductions != ("sum",):
        found.append(_of_own(model, strategy))
    found += [
        f"the loss {which} of {model.name} is one number for a whole batch, and no "
        "sum or mean over its samples as far as a few rows tell: under "
        f"{strategy} it is computed for each worker's part of a batch, and the mean "
        "taken, so that steps differ from Keras'. Let it give one number for each "
        "sample, or choose a strategy that exchanges weights, for example 'local_sgd'."
        for which in model.odd_losses
    ]
    if model.hides_reduction:
        found.append(
            f"train_step of {model.name!r} has a loss of its own, and whether that is "
            "a mean or a sum over the batch could not be seen: random numbers are "
            "drawn for rows, several losses are added, or the model is too large to "
            f"try. {strategy} averages gradients of parts of a batch, so with a sum "
            "steps would be smaller than Keras'. Make sure that it is a mean, or take "
            "it from self.compute_loss."
        )
    return found


def _of_own(model: ModelFacts, strategy: str) -> str:
    is_weighted = "mean_with_sample_weight" in model.reductions
    return (
        f"{model.name} masks entries, and its loss is of its own making: Keras' losses "
        f"are divided by the entries that are left, {strategy} weighs each worker by "
        f"its {'sample weights' if is_weighted else 'rows'}; steps differ a little "
        "where shares have more or fewer of them."
    )
