"""The direction in which each metric improves, read from the metrics."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.models.metrics import MetricStates


def metric_directions(model: Any) -> dict[str, str]:
    """Returns the metrics of a model by their names in a history, with directions.

    Keras' metrics know their own, and its callbacks use it too.

    Args:
        model: A compiled model whose metrics are built.

    Returns:
        Name -> "up", "down", or "" if the metric does not say.

    Example:
        >>> import keras
        >>> from shoal.models.inspection import prepare
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> hits = keras.metrics.TruePositives(name="hits")
        >>> model.compile("sgd", "mse", metrics=["auc", hits])
        >>> prepare(model, (np.ones((3, 2), "f4"), np.ones((3, 1), "f4")))
        >>> metric_directions(model)
        {'auc': 'up', 'hits': '', 'loss': ''}
    """
    states = MetricStates.of(model)
    owners = _owners(model)
    return {
        name: str(getattr(owners.get(name), "_direction", ""))
        for name in states.results(model, np.zeros(states.size))
    }


def _owners(model: Any) -> dict[str, Any]:
    """Returns metrics by their names in a history, with prefixes of outputs."""
    owners = {str(metric.name): metric for metric in model.metrics}
    compiled = getattr(model, "_compile_metrics", None)
    if compiled is not None and compiled.built:
        groups = [*compiled._flat_metrics, *compiled._flat_weighted_metrics]
        metrics = [metric for group in groups if group for metric in group.metrics]
        # Keras names and numbers them in this order; see CompileMetrics.result.
        names = list(compiled.result())
        if len(names) == len(metrics):
            owners.update(zip(names, metrics, strict=True))
    return owners
