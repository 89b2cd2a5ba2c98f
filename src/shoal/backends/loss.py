"""Losses of Keras when each worker computes a part of a batch.

This file decides how losses that sum over the batch are scaled, so that the mean over
workers is their sum, and how much a part weighs where masks leave entries out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import keras
from keras.src.losses.loss import apply_mask

from shoal.backends.base import ComputeSpec


@contextmanager
def scaled_loss(model: Any, spec: ComputeSpec, scale: Any) -> Generator[list[Any]]:
    """Context in which losses that sum over the batch are multiplied by a number.

    Args:
        model: A built and compiled model.
        spec: Tells which losses sum over the batch.
        scale: Rows of the step divided by the rows of this part.

    Yields:
        The divisors of the losses of `compile`, filled once they are computed.
    """
    masses: list[Any] = []

    def scaled(loss: Any) -> Callable[..., Any]:
        def call(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            if spec.has_masks:
                masses.append(entries(spec, y_pred, sample_weight))
            value = loss(y_true, y_pred, sample_weight)
            return value * scale if spec.is_summed else value

        return call

    with _replaced(model, scaled), _scaled_extras(model, spec, scale):
        yield masses


def mass_of(model: Any, spec: ComputeSpec, data: Any, outputs: Any) -> Any:
    """Returns the divisor of the losses for outputs with masks; computes no loss.

    Args:
        model: A built and compiled model.
        spec: How it is computed.
        data: Data, as `train_step` gets it.
        outputs: Outputs of the model for these rows.
    """
    masses: list[Any] = []

    def looking(_: Any) -> Callable[..., Any]:
        def call(_: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            masses.append(entries(spec, y_pred, sample_weight))
            return keras.ops.zeros(())

        return call

    _, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    with _replaced(model, looking), keras.StatelessScope():
        model._compile_loss(y, outputs, weights)
    return masses[0]


def entries(spec: ComputeSpec, y_pred: Any, sample_weight: Any) -> Any:
    """Returns the divisor of a loss whose mask leaves entries out."""
    mask = keras.src.backend.get_keras_mask(y_pred)
    if mask is None:
        raise ValueError("outputs that have no mask any more")
    if spec.mass == "entries":
        return keras.ops.sum(keras.ops.cast(mask, "float32"))
    weights = sample_weight
    if weights is not None:
        # A new array: on torch Keras' `apply_mask` changes its argument.
        weights = keras.ops.convert_to_tensor(weights, dtype="float32") * 1.0
    kind = "mean_with_sample_weight"
    mask = keras.ops.convert_to_tensor(mask)
    return keras.ops.sum(apply_mask(weights, mask, dtype="float32", reduction=kind))


@contextmanager
def _replaced(model: Any, make: Callable[[Any], Callable[..., Any]]) -> Generator[None]:
    """Context in which another function replaces each loss of `compile`."""
    compiled: Any = model._compile_loss
    before = getattr(compiled, "_flat_losses", None)
    if before is None:
        yield
        return
    compiled._flat_losses = [entry._replace(loss=make(entry.loss)) for entry in before]
    try:
        yield
    finally:
        compiled._flat_losses = before


@contextmanager
def _scaled_extras(model: Any, spec: ComputeSpec, scale: Any) -> Generator[None]:
    """Scales losses that layers add as sums; means and weight losses stay unchanged."""
    if not spec.summed:
        yield
        return
    aggregate, numbers = model._aggregate_additional_loss, itertools.count()

    def scaled(loss: Any) -> Any:
        # Keras asks for the losses one after the other, in their order.
        place = next(numbers) % len(model.losses)
        value = aggregate(loss)
        return value * scale if place in spec.summed else value

    # Not by assignment: Keras tracks what is assigned to a model.
    object.__setattr__(model, "_aggregate_additional_loss", scaled)
    try:
        yield
    finally:
        object.__delattr__(model, "_aggregate_additional_loss")
