"""The F1 score of classifiers, from what a model predicts."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np


def f1_of(y: Any, scores: Any, *, average: Literal["binary", "macro"]) -> float:
    """Returns the F1 score of predictions.

    Args:
        y: Classes as whole numbers, or one-hot, `(n,)`, `(n, 1)` or `(n, classes)`.
        scores: What the model predicts: one probability, or one for each class.
        average: "binary" for the score of class 1, "macro" for the mean of all.

    Example:
        >>> f1_of([1, 1, 0, 0], [[0.9], [0.2], [0.1], [0.8]], average="binary")
        0.5
    """
    truth, guess = _classes(y), _classes(scores)
    labels = [1] if average == "binary" else np.union1d(truth, guess).tolist()
    return float(np.mean([_f1(truth == label, guess == label) for label in labels]))


def _classes(values: Any) -> Any:
    """Class numbers; a single column is a class, or the probability of class 1."""
    array = np.asarray(values)
    if array.ndim > 1 and array.shape[-1] > 1:
        return array.argmax(axis=-1).reshape(-1)
    flat = array.reshape(-1)
    return (flat > 0.5).astype(int) if flat.dtype.kind == "f" else flat


def _f1(truth: Any, guess: Any) -> float:
    found = np.sum(truth & guess)
    total = np.sum(truth) + np.sum(guess)
    return float(2 * found / total) if total else 0.0
