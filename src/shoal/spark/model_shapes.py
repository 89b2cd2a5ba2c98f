"""Names of a Keras model's inputs, and shapes of its outputs."""

from __future__ import annotations

from typing import Any

from shoal.spark.predicting import output_names

Shape = tuple[int | None, ...]


def input_names(model: Any) -> tuple[str, ...]:
    """Returns the names of a model's inputs.

    It is empty for models of a class of the user's, whose inputs nobody declares.
    """
    functional = getattr(model, "_functional", None) or model
    struct: Any = getattr(functional, "_inputs_struct", None)
    if isinstance(struct, dict):
        return tuple(sorted(struct))
    return tuple(one.name for one in getattr(functional, "_inputs", None) or ())


def output_shapes(model: Any) -> list[Shape | None]:
    """Returns the shapes of a row of each output; None where nobody declares them.

    Example:
        >>> import keras
        >>> output_shapes(keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)]))
        [(3,)]
    """
    import keras

    count = max(1, len(output_names(model)))
    try:
        shapes = keras.tree.map_shape_structure(keras.KerasTensor, model.output_shape)
    except (AttributeError, NotImplementedError, TypeError):
        shapes = _computed(model)
    found: list[Any] = [
        None if leaf is None else tuple(leaf.shape[1:])
        for leaf in keras.tree.flatten(shapes)
    ]
    return found if len(found) == count else [None] * count


def _computed(model: Any) -> Any:
    """Traces a model of the user's own, which was called on data before."""
    import keras

    shapes = getattr(model, "_build_shapes_dict", None) or {}
    try:
        given = keras.tree.map_shape_structure(keras.KerasTensor, [*shapes.values()])
        return model.compute_output_spec(*given)
    except Exception:  # the user's code
        return None
