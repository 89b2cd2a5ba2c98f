"""What a loss of Keras becomes where each worker computes a part of a batch.

This file decides how losses that sum over the batch are scaled, so that the mean over
workers is their sum, and what a part weighs where masks leave entries out.
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
    """Within this, losses that sum over the batch are multiplied by a number.

    Args:
        model: Built and compiled.
        spec: Says which of its losses do.
        scale: Rows of the step over those of this part of it.

    Yields:
        What the losses of `compile` are divided by, once they were computed.
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
    """What the losses are divided by, of outputs with their masks; no loss is computed.

    Args:
        model: Built and compiled.
        spec: How it is run.
        data: As `train_step` gets it.
        outputs: Of the model, for these rows.
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
    """What a loss is divided by that a mask leaves entries out of."""
    mask = keras.src.backend.get_keras_mask(y_pred)
    if mask is None:
        raise ValueError("outputs that have no mask any more")
    if spec.mass == "entries":
        return keras.ops.sum(keras.ops.cast(mask, "float32"))
    weights = sample_weight
    if weights is not None:
        # A new array: on torch Keras' `apply_mask` changes the one that it is given.
        weights = keras.ops.convert_to_tensor(weights, dtype="float32") * 1.0
    kind = "mean_with_sample_weight"
    mask = keras.ops.convert_to_tensor(mask)
    return keras.ops.sum(apply_mask(weights, mask, dtype="float32", reduction=kind))


@contextmanager
def _replaced(model: Any, make: Callable[[Any], Callable[..., Any]]) -> Generator[None]:
    """Something else is called in place of each loss of `compile`."""
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
    """Of what layers add sums are scaled; means, and losses of weights, are not."""
    if not spec.summed:
        yield
        return
    aggregate, numbers = model._aggregate_additional_loss, itertools.count()

    def scaled(loss: Any) -> Any:
        # Keras asks for one after the other, in their order.
        place = next(numbers) % len(model.losses)
        value = aggregate(loss)
        return value * scale if place in spec.summed else value

    # Not by assignment: Keras tracks what is assigned to a model.
    object.__setattr__(model, "_aggregate_additional_loss", scaled)
    try:
        yield
    finally:
        object.__delattr__(model, "_aggregate_additional_loss")
