"""Sorts the logs of a user's `train_step` besides the metrics of its model.

Metrics have states, which add up over workers. Any other log is a number of one
step. Keras shows that of the last step of an epoch; with several workers there is
no last one, so Shoal shows the mean over the epoch's samples. The same holds for a loss
that a `train_step` computes and logs without updating the metric of that name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple


class StepLogs(NamedTuple):
    """Names of a `train_step`'s logs, without those of metrics that it updates.

    Args:
        numbers: Names of single numbers.
        others: Names of other values, such as arrays.
    """

    numbers: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def step_logs(logs: Mapping[str, Any], known: Collection[str]) -> StepLogs:
    """Sorts the logs of a step, except for those of metrics.

    Args:
        logs: Name -> array, or symbol of one.
        known: Names of the results of metrics that the step updates.
    """
    names = sorted(name for name in logs if name not in known)
    numbers = tuple(name for name in names if _is_number(logs[name]))
    return StepLogs(numbers, tuple(name for name in names if name not in numbers))


def idle_metrics(model: Any, before: Sequence[Any], after: Sequence[Any]) -> set[str]:
    """Returns names of metrics whose states a step returns unchanged."""
    pairs = iter(zip(before, after, strict=True))
    found: set[str] = set()
    for metric in model.metrics:
        states = [next(pairs) for _ in metric.variables]
        if states and all(old is new for old, new in states):
            found.add(metric.name)
    return found


def _is_number(log: Any) -> bool:
    return getattr(log, "shape", None) == () and "complex" not in str(log.dtype)
