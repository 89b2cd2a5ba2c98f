"""Metrics say themselves which way they get better; names of a history find them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from shoal.models.directions import metric_directions
from shoal.models.inspection import prepare
from tests.api.problems import line, linear, two_headed, two_targets


def directions(model: Any, x: Any, y: Any) -> dict[str, str]:
    prepare(model, (x, y))
    return metric_directions(model)


def own(y: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.abs(y - y_pred))


def test_by_metric_and_not_by_name() -> None:
    error = keras.metrics.MeanSquaredError(name="accuracy_error")
    metrics = [error, "mae", keras.metrics.R2Score(), "cosine_similarity", own]
    found = directions(linear(metrics=metrics), *line(4))
    assert found == {
        "accuracy_error": "down", "cosine_similarity": "up", "loss": "",
        "mae": "down", "own": "", "r2_score": "up",
    }  # fmt: skip


def test_outputs_prefix_the_names_of_their_metrics() -> None:
    x, y = two_targets(8)
    found = directions(two_headed(), x, y)
    assert {n: d for n, d in found.items() if "loss" not in n} == {
        "kind_accuracy": "up",
        "sign_accuracy": "up",
        next(n for n in found if n.startswith("sign_auc")): "up",
    }


def test_names_that_keras_numbers() -> None:
    model = linear(
        metrics=[own],
        weighted_metrics=[keras.metrics.CosineSimilarity(name="own")],
    )
    prepare(model, (np.ones((2, 2), "f4"), np.ones((2, 1), "f4")))
    found = metric_directions(model)
    assert (found["own"], found["weighted_own"]) == ("", "up")
