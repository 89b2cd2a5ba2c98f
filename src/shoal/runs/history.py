"""The best epoch of a run, from the metrics of all. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shoal.facts import Monitor


def best_epoch(
    epochs: Iterable[Mapping[str, Any]], monitor: Monitor
) -> tuple[int, float] | None:
    """Finds the epoch with the best value of a metric; None when no epoch has it.

    Args:
        epochs: Metrics by name, one mapping for each epoch, in order.
        monitor: The metric, and the direction in which it improves.

    Returns:
        Number of the epoch, 0 for the first, and the value; the first of equals.

    Example:
        >>> epochs = [{"val_loss": 0.5}, {"val_loss": 0.4}, {"val_loss": float("nan")}]
        >>> best_epoch(epochs, Monitor(name="val_loss"))
        (1, 0.4)
    """
    name = monitor.name
    values = [(e, m[name]) for e, m in enumerate(epochs) if _is_number(m, name)]
    if not values:
        return None
    return max(values, key=lambda pair: (monitor.score(pair[1]), -pair[0]))


def _is_number(metrics: Mapping[str, Any], name: str) -> bool:
    return isinstance(metrics.get(name), (int, float))
