"""Metrics of epochs, put together as Keras keeps them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def merge_epochs(epochs: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Turns one mapping an epoch into one list a metric, as `History.history` is.

    A metric that an epoch does not have, such as `val_loss` under
    `validation_freq=2`, adds nothing for it, as in Keras.

    Args:
        epochs: Metrics by name, one mapping for each epoch, in order.

    Example:
        >>> merge_epochs([{"loss": 2.0}, {"loss": 1.0, "val_loss": 1.5}])
        {'loss': [2.0, 1.0], 'val_loss': [1.5]}
    """
    history: dict[str, list[Any]] = {}
    for metrics in epochs:
        for name, value in metrics.items():
            history.setdefault(name, []).append(value)
    return history


def best_epoch(
    epochs: Iterable[Mapping[str, Any]], monitor: str
) -> tuple[int, float] | None:
    """Finds the epoch with the best value of a metric; None when no epoch has it.

    Metrics of the kind "higher is better" are known by name as in Keras' own
    callbacks: accuracies, AUC and F measures; all others are better when lower.

    Args:
        epochs: Metrics by name, one mapping for each epoch, in order.
        monitor: The metric, such as "val_loss".

    Returns:
        Number of the epoch, 0 for the first, and the value; the first of equals.

    Example:
        >>> best_epoch([{"val_loss": 0.5}, {"val_loss": 0.4}], "val_loss")
        (1, 0.4)
    """
    sign = -1.0 if is_higher_better(monitor) else 1.0
    values = [(e, m[monitor]) for e, m in enumerate(epochs) if _is_number(m, monitor)]
    if not values:
        return None
    return min(values, key=lambda pair: sign * pair[1])


def is_higher_better(metric: str) -> bool:
    """Tells by its name whether a metric grows as a model gets better.

    Example:
        >>> is_higher_better("val_accuracy"), is_higher_better("val_loss")
        (True, False)
    """
    name = metric.lower().removeprefix("val_")
    starts = ("auc", "f1", "fbeta", "fmeasure", "precision", "recall", "r2")
    return "acc" in name or name.startswith(starts)


def _is_number(metrics: Mapping[str, Any], name: str) -> bool:
    return isinstance(metrics.get(name), (int, float))
