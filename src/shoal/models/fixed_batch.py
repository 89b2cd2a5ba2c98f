"""Models that take batches of one size only: their size, and checks against it.

Inputs declare it (`keras.Input(batch_shape=...)`), and so do stateful recurrent
layers, whose states have a row for each row of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

from shoal.errors import PlanError
from shoal.facts import SAMPLE_ROWS


def fixed_batch(model: Any) -> int:
    """Returns the rows that every batch of a model must have; 0 for any number.

    Example:
        >>> import keras
        >>> inputs = keras.Input(batch_shape=(8, 5, 2))
        >>> fixed_batch(keras.Sequential([inputs, keras.layers.LSTM(3, stateful=True)]))
        8
    """
    sizes: list[Any] = []
    functional = getattr(model, "_functional", None) or model
    for tensor in import_module("keras").tree.flatten(
        getattr(functional, "_inputs", None) or []
    ):
        sizes.append(tensor.shape[0])
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False) and layer.built:
            sizes += [
                v.shape[0] for v in getattr(layer, "states", None) or [] if v.shape
            ]
    size = max((int(size) for size in sizes if size), default=0)
    return 0 if size and _takes_others(functional, size) else size


def _takes_others(functional: Any, size: int) -> bool:
    """Whether layers take batches of another size than the inputs declare.

    Keras writes the first batch it sees into the inputs of a Sequential, and
    enforces nothing.
    """
    keras = import_module("keras")
    inputs = getattr(functional, "_inputs_struct", None)
    if inputs is None:
        return False
    others = keras.tree.map_structure(
        lambda t: keras.KerasTensor((size + 1, *t.shape[1:]), dtype=t.dtype), inputs
    )
    try:
        spec_of = import_module("keras.src.backend").compute_output_spec
        spec_of(functional, others, training=False)
    except Exception:  # layers refuse in different ways
        return False
    return True


def sample_rows(model: Any) -> int:
    """Returns how many rows are read to try a model."""
    return fixed_batch(model) or SAMPLE_ROWS


def check_steps(
    model: Any,
    edges: Sequence[int],
    *,
    step: str,
    data: str,
    size: str,
    count: str,
) -> None:
    """Refuses steps of other rows than a model takes, before Keras would.

    A model with a step of its own may take any rows, and is not checked.

    Args:
        model: A built model.
        edges: Starts of the steps, and the end of the last one.
        step: Method of the model that takes them.
        data: Name of the argument with the rows, for the message.
        size: Name of the argument with the rows of a step.
        count: Name of the argument with the number of steps.

    Raises:
        PlanError: A step has other rows.
    """
    if getattr(type(model), step) is not getattr(import_module("keras").Model, step):
        return
    fixed = fixed_batch(model)
    sizes = [stop - start for start, stop in pairwise(edges)]
    odd = [place for place, rows in enumerate(sizes) if rows != fixed]
    if not fixed or not odd:
        return
    which = f"model {model.name!r} has a fixed batch size of {fixed}, and"
    first = odd[0]
    if 0 < first == len(sizes) - 1:
        raise PlanError(
            f"{which} the last of {edges[-1]:,} rows of {data} make a step of "
            f"{sizes[-1]}. Expected whole steps, as the model takes no others. "
            f"Pass {edges[first]:,} rows, or {count}={first}."
        )
    raise PlanError(
        f"{which} {data} makes a step of {sizes[first]} rows. Expected {fixed} in "
        f"each. Pass {size}={fixed}, or data that comes in such batches; or build the "
        "model with keras.Input(shape), which fixes none."
    )
