"""Estimates a model's work for one sample, from its layers. Nothing is computed.

This file decides how often each kernel is applied: once, at each position of an output,
or at each time step. `plan` compares the result with the cost of an exchange.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from shoal.facts import Multiplications


class _Extent(NamedTuple):
    """Where a layer is applied.

    Args:
        positions: Positions of its output, beside channels.
        times: Time steps of its input.
        is_recurrent: Whether they follow each other.
    """

    positions: int = 1
    times: int = 1
    is_recurrent: bool = False


def multiplications_of(model: Any, x: Any) -> Multiplications:
    """Returns the multiplications of weights for one sample.

    Layers without a graph, as in a subclassed model, do not tell how large their
    outputs are: convolutions then count at each position of the input, others once.

    Args:
        model: A built model.
        x: A few rows of its input.
    """
    leaves = import_module("keras").tree.flatten(x)
    inner = [math.prod(leaf.shape[1:-1]) for leaf in leaves if leaf is not None]
    found: dict[int, Multiplications] = {}
    _visit(model, _Extent(), max(inner, default=1), found)
    return Multiplications(*map(sum, zip(*found.values(), strict=True)))


def _visit(
    layer: Any, outer: _Extent, usual: int, found: dict[int, Multiplications]
) -> None:
    """Adds the work of a layer, and of the layers within it.

    Args:
        layer: The layer.
        outer: Extent of the layer around it.
        usual: Positions of a convolution without a graph.
        found: Receives the work of each layer, by its identity.
    """
    if id(layer) in found:  # it is shared, or holds the model that holds it
        return
    layers = import_module("keras").layers
    is_convolution = hasattr(layer, "kernel_size")
    extent = _extent_of(layer, outer)
    if isinstance(layer, layers.RNN):
        extent = extent._replace(positions=extent.times, is_recurrent=True)
    elif outer.is_recurrent:
        extent = outer
    elif is_convolution and _shape(layer, "output") is None:
        extent = extent._replace(positions=usual)
    own = [*layer._trainable_variables, *layer._non_trainable_variables]
    kernels = sum(
        math.prod(v.shape) for v in own if len(v.shape) > 1 and v.name != "bias"
    )
    work = 0 if isinstance(layer, layers.Embedding) else kernels * extent.positions
    kind = "dense"
    if extent.is_recurrent or is_convolution:
        kind = "recurrent" if extent.is_recurrent else "convolved"
    found[id(layer)] = Multiplications(**{kind: work})
    for part in layer._layers:
        _visit(part, extent, usual, found)


def _extent_of(layer: Any, outer: _Extent) -> _Extent:
    """Returns where a layer is applied, by its own graph or that around it."""
    output, given = _shape(layer, "output"), _shape(layer, "input")
    times = outer.times if given is None or len(given) < 2 else given[1] or 1
    if output is None:
        return _Extent(outer.positions, times)
    axes = output[1:-1]
    if getattr(layer, "data_format", "") == "channels_first":
        axes = output[2:]
    return _Extent(math.prod(n or 1 for n in axes), times)


def _shape(layer: Any, which: str) -> Sequence[int | None] | None:
    """Returns the shape of a layer's first input or output; None if it has no graph."""
    keras = import_module("keras")
    try:
        tensors = keras.tree.flatten(getattr(layer, which))
        return tuple(tensors[0].shape)
    except Exception:  # without a graph, or the user's own property
        return None
