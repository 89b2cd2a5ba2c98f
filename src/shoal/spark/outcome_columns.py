"""Columns of predictions, made by the JVM of what a model returned.

This file decides what is a double, and what a vector. A class is the place of the
largest probability, the first one of equal ones.
"""

from __future__ import annotations

from math import prod

from pyspark.ml.functions import array_to_vector
from pyspark.sql import Column
from pyspark.sql import functions as F

from shoal.spark.arrays import position
from shoal.spark.model_shapes import Shape
from shoal.spark.tasks import Task


def prediction(task: Task, shape: Shape | None, numbers: Column) -> Column:
    """Returns the prediction: a double, or a vector where there are several.

    Args:
        task: Kind of the output.
        shape: Shape of a row of it, None if nobody knows.
        numbers: Array of double with what the model returned, flat.
    """
    if not task.is_classification:
        return numbers[0] if _size(shape) == 1 else array_to_vector(numbers)
    if _is_binary(task, shape):
        limit = 0.0 if task.from_logits else 0.5
        classes = F.transform(numbers, lambda one: _double(one > limit))
        return classes[0] if _size(shape) == 1 else array_to_vector(classes)
    places = _places(shape)
    if places == 1:
        return _largest(numbers)
    width = (shape or (1,))[-1] or 1
    starts = F.sequence(F.lit(1), F.lit((places - 1) * width + 1), F.lit(width))
    classes = F.transform(
        starts, lambda start: _largest(F.slice(numbers, start, width))
    )
    return array_to_vector(classes)


def probability(task: Task, shape: Shape | None, numbers: Column) -> Column:
    """Returns the vector of probabilities of a classification.

    Args:
        task: Kind of the output.
        shape: Shape of a row of it, None if nobody knows.
        numbers: Array of double with what the model returned, flat.
    """
    if _is_binary(task, shape):
        found = _sigmoid(numbers) if task.from_logits else numbers
        if _size(shape) == 1:
            found = F.array(1 - found[0], found[0])
    elif task.from_logits and _places(shape) == 1:
        found = _softmax(numbers)
    else:
        found = numbers
    return array_to_vector(found)


def raw(task: Task, shape: Shape | None, numbers: Column) -> Column:
    """Returns a vector of what the model returned."""
    del task, shape
    return array_to_vector(numbers)


def _size(shape: Shape | None) -> int | None:
    """Returns how many numbers a row has; None if nobody knows."""
    if shape is None or any(one is None for one in shape):
        return None
    return prod(one or 1 for one in shape)


def _places(shape: Shape | None) -> int:
    """Returns for how many positions of a sequence there is a class."""
    return prod(one or 1 for one in (shape or (1,))[:-1])


def _is_binary(task: Task, shape: Shape | None) -> bool:
    return task.is_binary or _size(shape) == 1


def _double(condition: Column) -> Column:
    return condition.cast("double")


def _largest(numbers: Column) -> Column:
    return _double(position(numbers, F.array_max(numbers)) - 1)


def _sigmoid(numbers: Column) -> Column:
    return F.transform(numbers, lambda one: 1 / (1 + F.exp(-one)))


def _softmax(numbers: Column) -> Column:
    largest = F.array_max(numbers)
    powers = F.transform(numbers, lambda one: F.exp(one - largest))
    total = F.aggregate(powers, F.lit(0.0), lambda sum_, one: sum_ + one)
    return F.transform(powers, lambda one: one / total)
