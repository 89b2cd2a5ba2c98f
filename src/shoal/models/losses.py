"""Reads how a model's losses count samples: what a mean over workers must know."""

from __future__ import annotations

from importlib import import_module
from typing import Any

USUAL = "sum_over_batch_size"


def reductions(model: Any) -> tuple[str, ...]:
    """How each loss of a compiled model reduces over the batch, each way once.

    Example:
        >>> import keras, numpy as np
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", keras.losses.MeanSquaredError(reduction=None))
        >>> model._symbolic_build(data_batch=(np.ones((3, 2)), np.ones((3, 1))))
        >>> reductions(model)
        ('none',)
    """
    compiled: Any = model._compile_loss
    losses = getattr(compiled, "_flat_losses", None) or []
    found = [getattr(entry.loss, "reduction", USUAL) for entry in losses]
    known = {"mean": USUAL, "auto": USUAL}
    return tuple(sorted({known.get(r, r) or "none" for r in found}))


def has_own_loss(model: Any) -> bool:
    """Whether the user's code stands between the losses and the gradient."""
    kind = import_module("keras").Model
    names = ("train_step", "compute_loss")
    return any(getattr(type(model), n) is not getattr(kind, n) for n in names)


def has_masks(model: Any, x: Any) -> bool:
    """Whether outputs carry masks, by which losses leave entries out.

    Nothing is computed, and models without a layer that makes masks are not looked
    at any further.

    Args:
        model: Built.
        x: A few rows of input.
    """
    if not any(_makes_masks(layer) for layer in model._flatten_layers()):
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
    except Exception:  # code of the user's; a worker would show what it raises
        return False
    return any(found)


def _makes_masks(layer: Any) -> bool:
    """Whether a layer makes masks, or might: others of Keras' only hand them on."""
    keras = import_module("keras")
    is_own = type(layer).__module__.partition(".")[0] == "keras"
    if isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False):
        return True
    made = type(layer).compute_mask is not keras.Layer.compute_mask
    return made and not is_own and not isinstance(layer, keras.Model)


def weight_arrays(sample_weight: Any) -> int:
    """Counts different arrays among what `fit` was given as weights.

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
    """Arrays as the symbols that Keras traces a model with."""
    keras = import_module("keras")

    def symbol(array: Any) -> Any:
        if array is None:
            return None
        return keras.KerasTensor(tuple(array.shape), str(array.dtype))

    return keras.tree.map_structure(symbol, rows)
