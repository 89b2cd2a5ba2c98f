"""Reads how a model's losses count samples, for the mean over workers."""

from __future__ import annotations

from importlib import import_module
from typing import Any

USUAL = "sum_over_batch_size"


def own_loss_of(model: Any) -> str:
    """Returns the user's code between the losses and the gradient, or ""."""
    kind = import_module("keras").Model
    names = ("train_step", "compute_loss")
    own = [n for n in names if getattr(type(model), n) is not getattr(kind, n)]
    return own[0] if own else ""


def is_plain(model: Any) -> bool:
    """Whether all parts of a model's loss are Keras' own, with declared weights.

    Then nothing has to be found out: there is no mask, no loss of one number for the
    batch, and none that a layer adds.
    """
    if own_loss_of(model) or not _is_of_keras(type(model)):
        return False
    compiled: Any = model._compile_loss
    losses = [entry.loss for entry in getattr(compiled, "_flat_losses", None) or []]
    layers = [layer for layer in model._flatten_layers() if layer is not model]
    return all(map(_is_usual_loss, losses)) and not any(
        makes_masks(layer) or not _is_of_keras(type(layer)) or _adds_losses(layer)
        for layer in layers
    )


def _is_of_keras(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] == "keras"


def _is_usual_loss(loss: Any) -> bool:
    function = getattr(loss, "fn", None)
    is_whole = getattr(function, "__name__", "") in ("dice", "tversky")
    is_known = function is None or _is_of_keras(function)
    return _is_of_keras(type(loss)) and is_known and not is_whole


def _adds_losses(layer: Any) -> bool:
    is_regular = getattr(layer, "activity_regularizer", None) is not None
    return is_regular or type(layer).__name__ == "ActivityRegularization"


def has_masks(model: Any, x: Any) -> bool:
    """Whether outputs carry masks, by which losses leave entries out.

    Nothing is computed, and models without a layer that makes masks are not examined
    further.

    Args:
        model: A built model.
        x: A few rows of input.
    """
    if not any(makes_masks(layer) for layer in model._flatten_layers()):
        return False
    keras = import_module("keras")
    backend = import_module("keras.src.backend")
    found: list[bool] = []

    def look(rows: Any) -> Any:
        outputs = model(rows, training=False)
        leaves = keras.tree.flatten(outputs)
        found.extend(backend.get_keras_mask(leaf) is not None for leaf in leaves)
        return outputs

    try:
        backend.compute_output_spec(look, symbols(x))
    except Exception:  # the user's code; a worker would report its error
        return False
    return any(found)


def makes_masks(layer: Any) -> bool:
    """Whether a layer makes masks, or might: Keras' other layers only pass them on."""
    keras = import_module("keras")
    is_own = type(layer).__module__.partition(".")[0] == "keras"
    if isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False):
        return True
    made = type(layer).compute_mask is not keras.Layer.compute_mask
    return made and not is_own and not isinstance(layer, keras.Model)


def weight_arrays(sample_weight: Any) -> int:
    """Counts the different arrays among the weights given to `fit`.

    Example:
        >>> import numpy as np
        >>> one, other = np.ones(3), np.zeros(3)
        >>> [weight_arrays(w) for w in (None, one, [one, one], {"a": one, "b": other})]
        [0, 1, 1, 2]
    """
    if sample_weight is None:
        return 0
    leaves = import_module("keras").tree.flatten(sample_weight)
    return len({id(leaf) for leaf in leaves})


def symbols(rows: Any) -> Any:
    """Returns arrays as the symbols with which Keras traces a model."""
    keras = import_module("keras")

    def symbol(array: Any) -> Any:
        if array is None:
            return None
        return keras.KerasTensor(tuple(array.shape), str(array.dtype))

    return keras.tree.map_structure(symbol, rows)
