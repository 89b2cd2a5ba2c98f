"""The F1 score of classifiers, from a model's predictions."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np


def f1_of(y: Any, scores: Any, *, average: Literal["binary", "macro"]) -> float:
    """Returns the F1 score of predictions.

    Args:
        y: Classes as whole numbers, or one-hot, `(n,)`, `(n, 1)` or `(n, classes)`.
        scores: Predictions of the model: one probability, or one for each class.
        average: "binary" for the score of class 1, "macro" for the mean of all.

    Example:
        >>> f1_of([1, 1, 0, 0], [[0.9], [0.2], [0.1], [0.8]], average="binary")
        0.5
    """
    truth, guess = _labels(y), _guesses(scores)
    labels = [1] if average == "binary" else np.union1d(truth, guess).tolist()
    return float(np.mean([_f1(truth == label, guess == label) for label in labels]))


def _labels(y: Any) -> Any:
    """Returns class numbers of labels; whole numbers may be stored as floats."""
    array = np.asarray(y)
    if array.ndim > 1 and array.shape[-1] > 1:
        return array.argmax(axis=-1).reshape(-1)
    return np.rint(array.reshape(-1).astype("float64")).astype(int)


def _guesses(scores: Any) -> Any:
    """Returns class numbers of scores; one column is the probability of class 1."""
    array = np.asarray(scores)
    if array.ndim > 1 and array.shape[-1] > 1:
        return array.argmax(axis=-1).reshape(-1)
    return (array.reshape(-1).astype("float64") > 0.5).astype(int)


def _f1(truth: Any, guess: Any) -> float:
    found = np.sum(truth & guess)
    total = np.sum(truth) + np.sum(guess)
    return float(2 * found / total) if total else 0.0
