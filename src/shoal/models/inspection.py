"""Reads from a Keras model the facts that a plan needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from traceback import walk_tb
from typing import Any

import numpy as np

from shoal.errors import ConfigError, DataError, a_kind
from shoal.facts import ModelFacts
from shoal.models.directions import metric_directions
from shoal.models.fixed_batch import fixed_batch
from shoal.models.fresh import plain_constants
from shoal.models.loss_kinds import read_losses
from shoal.models.losses import has_masks, own_loss_of, symbols, weight_arrays
from shoal.models.metrics import build_metrics, unmergeable
from shoal.models.multiplications import multiplications_of
from shoal.models.trial import try_step
from shoal.optimizers import (
    is_adaptive,
    normalising,
    optimizers_of,
    rate_of,
    step_of,
)
from shoal.vectors import (
    FLOATS,
    exchanged_variables,
    local_variables,
    statistic_variables,
)


def find_model(model: Any) -> tuple[Any, Callable[[], Any] | None]:
    """Returns the Keras model, and its maker if the argument is a callable.

    Args:
        model: A Keras model, or a callable without arguments that returns one.

    Raises:
        ConfigError: `model` is neither.
    """
    kind = import_module("keras").Model
    if isinstance(model, kind):
        return model, None
    trainer = import_module("keras.src.trainers.trainer").Trainer
    if isinstance(model, trainer):
        raise ConfigError(
            f"model is {a_kind(model)}, a Keras trainer that is not a "
            "keras.Model. Expected a keras.Model: it can be sent to workers and saved, "
            "a layer with the trainer mixed in cannot. "
            f"Write class {type(model).__name__}(keras.Model), with the layers inside."
        )
    if not callable(model):
        raise ConfigError(
            f"model is {a_kind(model)}. Expected a compiled Keras model, or "
            "a function without arguments that returns one. Pass the model itself."
        )
    made = model()
    if not isinstance(made, kind):
        raise ConfigError(
            f"the callable given as model returned {a_kind(made)}. "
            "Expected a compiled Keras model. Let it return the model."
        )
    return made, model


def prepare(model: Any, sample: Any) -> None:
    """Builds model, metrics and optimizer, as the first step of Keras' fit would.

    Args:
        model: A compiled model.
        sample: A few rows, as `train_step` gets them.

    Raises:
        ConfigError: The model is not compiled, or Keras refuses its arguments.
        DataError: The model does not take such rows.
    """
    if not getattr(model, "compiled", False) or not _can_be_trained(model):
        raise ConfigError(
            f"the model {getattr(model, 'name', model)!r} is not compiled with an "
            "optimizer and a loss. Shoal trains with both, as Keras' fit does. "
            "Call model.compile(optimizer, loss, metrics=[...]) first."
        )
    _forget_old_metrics(model)
    x, y, weights = import_module("keras").utils.unpack_x_y_sample_weight(sample)
    try:
        with plain_constants():
            build_metrics(model, x=x, y=y, sample_weight=weights)
    except Exception as error:
        if y is not None and _is_of_compile(error):
            raise ConfigError(
                f"the model {model.name!r} cannot be trained as it was compiled: "
                f"{_told(error)} Received {_compiled_with(model)} and y of "
                f"{_shapes(y)}. Expected losses and metrics that Keras knows, nested "
                "as y. Call model.compile again with such."
            ) from error
        raise DataError(
            f"the model {model.name!r} cannot take the data: {_told(error)} "
            f"Received x of {_shapes(x)} and y of {_shapes(y)}. Give arrays of the "
            "shapes that model.fit would take, compile with a loss and metrics that "
            f"take such y, or correct the code that raised.{_no_targets(y)}"
        ) from error
    if model.optimizer is not None and not model.optimizer.built:
        with plain_constants():
            model.optimizer.build(model.trainable_variables)


def _can_be_trained(model: Any) -> bool:
    """Whether there is an optimizer; Keras on JAX trains with the model's own only."""
    is_jax = import_module("keras").backend.backend() == "jax"
    return model.optimizer is not None or (not is_jax and bool(optimizers_of(model)))


def _no_targets(y: Any) -> str:
    """Returns the remedy if the data has no targets, else an empty string."""
    if y is not None:
        return ""
    return (
        " There are no targets: pass y, or let data sets and files hold them (label= "
        "names a column; NPZ files have them under the key 'y')."
    )


def _is_of_compile(error: Exception) -> bool:
    """Whether Keras raised it while it made losses and metrics of its arguments."""
    frames = (frame.f_code for frame, _ in walk_tb(error.__traceback__))
    return any(
        code.co_name == "build" and code.co_filename.endswith("compile_utils.py")
        for code in frames
    )


def _compiled_with(model: Any) -> str:
    """Returns the losses and metrics given to `compile`, as a user writes them."""
    given = getattr(getattr(model, "_compile_config", None), "config", None) or {}
    names = ("loss", "loss_weights", "metrics", "weighted_metrics")
    return ", ".join(f"{n}={given[n]!r}" for n in names if given.get(n) is not None)


def _forget_old_metrics(model: Any) -> None:
    """Removes metrics of an earlier `compile`, which Keras would keep showing."""
    given = getattr(getattr(model, "_compile_config", None), "config", None)
    if given is None or getattr(model, "_compile_metrics", None) is None:
        return
    if not (given.get("metrics") or given.get("weighted_metrics")):
        model._compile_metrics = None


def build(model: Any, rows: Any) -> None:
    """Builds a model for prediction, by calling it on a few rows.

    Raises:
        DataError: The model does not take such rows.
    """
    if model.built:
        return
    x = import_module("keras").utils.unpack_x_y_sample_weight(rows)[0]
    try:
        model(x, training=False)
    except Exception as error:
        raise DataError(
            f"the model {model.name!r} cannot take the data: {_told(error)} "
            f"Received x of {_shapes(x)}. "
            "Give arrays of the shapes that model.predict would take."
        ) from error


def check_inputs(model: Any, rows: Any) -> None:
    """Refuses inputs that a model cannot predict from; computes nothing.

    A model with a `predict_step` of its own may take any form, and is not checked.

    Args:
        model: A built model.
        rows: A few rows, as `predict_step` gets them.

    Raises:
        DataError: Layers do not take the inputs.
    """
    keras = import_module("keras")
    if type(model).predict_step is not keras.Model.predict_step:
        return
    spec_of = import_module("keras.src.backend").compute_output_spec
    x, _, _ = keras.utils.unpack_x_y_sample_weight(symbols(rows))
    try:
        spec_of(model, x, training=False)
    except Exception as error:
        raise DataError(
            f"the model {model.name!r} cannot take x: {_told(error)} "
            f"Received x of {_shapes(x)}. "
            "Give arrays of the shapes that model.predict would take."
        ) from error


def check_rows(model: Any, rows: Any, what: str) -> None:
    """Refuses rows on which a prepared model cannot be evaluated; computes nothing.

    A model with a `test_step` of its own may take any form, and is not checked.

    Args:
        model: A prepared model.
        rows: A few rows, as `test_step` gets them.
        what: The argument they come from, for the message.

    Raises:
        DataError: Layers, loss or metrics do not take the rows.
    """
    keras = import_module("keras")
    if type(model).test_step is not keras.Model.test_step:
        return
    spec_of = import_module("keras.src.backend").compute_output_spec
    x, y, weights = keras.utils.unpack_x_y_sample_weight(symbols(rows))
    try:
        found = spec_of(model, x, training=False)
        spec_of(model._compute_loss, x, y, found, sample_weight=weights, training=False)
        spec_of(model.compute_metrics, x, y, found, sample_weight=weights)
    except Exception as error:
        raise DataError(
            f"the model {model.name!r} cannot take {what}: {_told(error)} "
            f"Received x of {_shapes(x)} and y of {_shapes(y)}. "
            "Give arrays of the shapes that model.evaluate would take."
        ) from error


def read_model(
    model: Any,
    sample: Any,
    *,
    weights: Any = None,
    has_monitor: bool = False,
    exchanges_gradients: bool = False,
) -> ModelFacts:
    """Reads the facts of a prepared model.

    Args:
        model: A prepared model.
        sample: A few rows, as `train_step` gets them.
        weights: Sample weights, as passed to `fit`.
        has_monitor: Whether the directions of its metrics will be needed.
        exchanges_gradients: Whether its gradients are to be averaged.
    """
    keras = import_module("keras")
    trainable = exchanged_variables(model)
    x, y, weighted = keras.utils.unpack_x_y_sample_weight(sample)
    trial, losses = (
        try_step(model, sample, exchanges_gradients=exchanges_gradients),
        read_losses(model, sample),
    )
    logs = trial.logs
    averages = _with_moving_averages(model)
    return ModelFacts(
        name=model.name,
        parameters=sum(int(np.prod(v.shape)) for v in trainable),
        statistics=sum(int(np.prod(v.shape)) for v in statistic_variables(model)),
        has_moving_averages=bool(averages),
        can_estimate_averages=averages == averaging_layers(model)
        and not own_loss_of(model),
        local_bytes=sum(np.asarray(v.numpy()).nbytes for v in local_variables(model)),
        optimizer=", ".join(type(o).__name__ for o in optimizers_of(model)),
        normalising=normalising(model),
        is_adaptive=is_adaptive(model),
        reductions=losses.reductions,
        summed=losses.summed,
        odd_losses=losses.odd,
        masks=losses.masks,
        has_own_loss=bool(own_loss_of(model)),
        has_masks=has_masks(model, x),
        weight_arrays=weight_arrays(weights) or int(weighted is not None),
        unmergeable_metrics=() if y is None else unmergeable(model, y, x=x),
        step_logs=logs.numbers,
        lost_logs=logs.others,
        applies=trial.applies,
        applied=trial.applied,
        unseen_optimizers=trial.unseen,
        changed_beside=trial.beside,
        sums_gradients=trial.is_sum,
        hides_reduction=trial.is_unseen,
        refused_dtypes=tuple(
            f"{v.path}: {v.dtype}" for v in trainable if str(v.dtype) not in FLOATS
        ),
        fixed_batch=fixed_batch(model),
        is_stateful=any(getattr(x, "stateful", False) for x in model._flatten_layers()),
        backend=keras.backend.backend(),
        needs_compiler=keras.backend.backend() == "torch" and bool(model.jit_compile),
        metrics={**metric_directions(model), **dict.fromkeys(logs.numbers, "")}
        if has_monitor
        else {},
        multiplications=multiplications_of(model, x),
    )


def averaging_layers(model: Any) -> list[Any]:
    """Returns the layers whose moving averages can be estimated from rows.

    These are Keras' `BatchNormalization` and subclasses that compute as it does, if
    not frozen.
    """
    kind = import_module("keras").layers.BatchNormalization
    return [
        layer
        for layer in _with_moving_averages(model)
        if getattr(type(layer), "call", None) is kind.call
        and not getattr(layer, "renorm", False)
    ]


def _with_moving_averages(model: Any) -> list[Any]:
    return [
        layer
        for layer in model._flatten_layers()
        if getattr(layer, "moving_mean", None) is not None and layer.trainable
    ]


def learning_rate_of(model: Any) -> float | None:
    """Returns the learning rate of a model's first optimizer; None without one."""
    return rate_of(optimizers_of(model)[0])


def present_rate(model: Any) -> float | None:
    """Returns the rate of the next step, of a schedule as well; None if unknown."""
    try:
        keras = import_module("keras")
        rate = float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
    except Exception:  # an optimizer or a schedule of the user's own
        return None
    return rate if np.isfinite(rate) else None


def step_variable(model: Any) -> Any:
    """Returns the first optimizer's step count, the basis of `iterations`."""
    return step_of(optimizers_of(model)[0])


def _told(error: Exception) -> str:
    """Returns an error's kind and text as one sentence, without colour codes."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).rstrip(". \n")
    return f"{type(error).__name__}: {text}."


def _shapes(tree: Any) -> str:
    """Returns the shapes of arrays without their number of rows."""
    keras = import_module("keras")
    leaves = [leaf for leaf in keras.tree.flatten(tree) if leaf is not None]
    shapes = [("rows", *np.shape(leaf)[1:]) for leaf in leaves]
    return " and ".join(str(shape).replace("'", "") for shape in shapes) or "None"
