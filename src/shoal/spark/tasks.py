"""Kinds of predictions: the loss of an output decides, without Spark.

A crossentropy means classification. Its predictions are a class and probabilities,
which are made of what the model returns; other losses mean numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, final

BINARY = frozenset({"binary_crossentropy", "binary_focal_crossentropy"})
CATEGORICAL = frozenset(
    {
        "categorical_crossentropy",
        "categorical_focal_crossentropy",
        "sparse_categorical_crossentropy",
    }
)


@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """What a prediction of one output is.

    Args:
        is_classification: Whether it is a class; else numbers.
        is_binary: Whether each number is the probability of one of two classes.
        from_logits: Whether the model returns logits in place of probabilities.
    """

    is_classification: bool
    is_binary: bool = False
    from_logits: bool = False


NUMBERS = Task(is_classification=False)
CLASSES = Task(is_classification=True)


def task_of(loss: Any) -> Task:
    """Returns the task of an output.

    Args:
        loss: Its loss, as for `compile`; None for none.

    Example:
        >>> task_of("mse").is_classification
        False
        >>> task_of("sparse_categorical_crossentropy")
        Task(is_classification=True, is_binary=False, from_logits=False)
        >>> import keras
        >>> task_of(keras.losses.BinaryCrossentropy(from_logits=True))
        Task(is_classification=True, is_binary=True, from_logits=True)
    """
    name = _name(loss)
    if name not in BINARY | CATEGORICAL:
        return NUMBERS
    return Task(
        is_classification=True, is_binary=name in BINARY, from_logits=_has_logits(loss)
    )


def wished(task: Task, wish: str) -> Task:
    """Returns the task that the user asks for.

    Args:
        task: What the loss says.
        wish: "classification" or "regression", or "auto" for what the loss says.

    Example:
        >>> wished(NUMBERS, "classification"), wished(CLASSES, "regression") == NUMBERS
        (Task(is_classification=True, is_binary=False, from_logits=False), True)
    """
    if wish == "regression":
        return NUMBERS
    return CLASSES if wish == "classification" and task == NUMBERS else task


def _name(loss: Any) -> str:
    """Returns the name of a loss, in words of Keras' functions."""
    if isinstance(loss, str):
        import keras

        try:
            loss = keras.losses.get(loss)
        except ValueError:  # of the user's own
            return ""
    name = getattr(loss, "__name__", None) or type(loss).__name__
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _has_logits(loss: Any) -> bool:
    config = getattr(loss, "get_config", None)
    return bool(config and config().get("from_logits"))


def losses_of(loss: Any, outputs: Sequence[str]) -> list[Any]:
    """Returns the loss of each output.

    Args:
        loss: `loss` of `compile`: one, one for each output, or by name.
        outputs: Names of the outputs; empty if nobody declares them.

    Example:
        >>> losses_of({"b": "mse"}, ["a", "b"])
        [None, 'mse']
        >>> losses_of("mse", ["a", "b"]), losses_of(["mae"], ["a"])
        (['mse', 'mse'], ['mae'])
    """
    count = max(1, len(outputs))
    if isinstance(loss, Mapping):
        by_name = cast("Mapping[str, Any]", loss)
        if len(by_name) == count == 1:
            return list(by_name.values())
        return [by_name.get(name) for name in outputs] or [None]
    if isinstance(loss, list | tuple):
        listed = list(cast("Sequence[Any]", loss))
        return (listed + [None] * count)[:count]
    return [loss] * count


def tasks_of(model: Any, outputs: Sequence[str]) -> tuple[Task, ...]:
    """Returns the task of each output of a Keras model, compiled or not."""
    loss = getattr(model, "loss", None) if getattr(model, "compiled", False) else None
    return tuple(task_of(one) for one in losses_of(loss, outputs))
