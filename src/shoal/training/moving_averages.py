"""Moving averages of `BatchNormalization`, estimated anew for the present weights.

Workers send the averages of what they saw, which belong to their own weights. Where
weights of several workers are mixed, averages are estimated here instead: the mean of
the statistics of some batches of the training data, as the layers see them in
training. This file decides which rows that are, and that nothing else changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from shoal.data import trees
from shoal.data.chunks import ChunkedSource
from shoal.data.sources import Batch, Source
from shoal.interruption import check
from shoal.models.inspection import averaging_layers
from shoal.models.randomness import random_state_kept

Values: TypeAlias = list[tuple[Any, npt.NDArray[Any]]]
"""Variables, and what they are to hold."""

MOST_ROWS = 2048
"""Rows that are shown to the model. The error of a mean is 2 % of a deviation then."""
MOST_BYTES = 128 << 20
"""Memory of these rows, which stay for the whole run."""
FEW_CHUNKS = 16
"""Chunks that are read for them, if these have as many rows."""


@final
class MovingAverages:
    """Estimates the moving averages of a model from training rows.

    The rows do not count as trained. They lie evenly in the data, so that each batch
    has rows of all its parts, and they are read once.

    Args:
        model: The user's model.
        source: Source of the training data.
        batch_size: Rows of a batch in training, on which variances depend.
    """

    def __init__(self, model: Any, source: Source, batch_size: int) -> None:
        self._model, self._source, self._batch_size = model, source, batch_size
        # Now: a layer that a callback makes trainable stays frozen on workers.
        self._layers = averaging_layers(model)
        self._batches: list[Batch] = []
        self._show: Callable[[Batch], Any] | None = None

    def estimate(self) -> None:
        """Sets the averages to those of the model's present weights.

        Raises:
            DataError: Rows cannot be read.
            KeyboardInterrupt: After Ctrl-C, between two batches; nothing has changed.
        """
        with random_state_kept():  # code of the model and of the data may draw
            self._estimate()

    def _estimate(self) -> None:
        if self._show is None:
            self._batches = read_batches(self._source, self._batch_size)
            self._show = in_training(self._model)
        # Seeds of dropout and states of the user's own are as before, too.
        before = [(v, np.array(v.numpy())) for v in _states(self._model)]
        try:
            means = self._means(self._show, self._shares(self._show, before))
        finally:
            _assign(before)
        _assign(means)

    def _means(self, show: Callable[[Batch], Any], shares: Sequence[float]) -> Values:
        """Returns each average and the mean of its statistic over the batches."""
        averages = [
            (v, share)
            for layer, share in zip(self._layers, shares, strict=True)
            for v in _averages(layer)
            if share
        ]
        totals: list[Any] = [0.0] * len(averages)
        for batch in self._batches:
            self._fill(0.0)
            show(batch)
            check()
            for place, (average, share) in enumerate(averages):
                # A layer has computed m * 0 + (1 - m) * the statistic of the batch.
                totals[place] += np.asarray(average.numpy(), np.float64) / share
        return [
            (average, (total / len(self._batches)).astype(average.dtype))
            for (average, _), total in zip(averages, totals, strict=True)
        ]

    def _shares(self, show: Callable[[Batch], Any], before: Values) -> list[float]:
        """Returns what share of each layer's averages one batch replaces; 0: none.

        A layer that a model calls k times updates them k times, and one that it calls
        with `training=False` never.

        Args:
            show: Shows the model a batch.
            before: States from which it draws the same numbers each time.
        """
        found: list[list[Any]] = []
        for start in (0.0, 1.0):
            _assign(before)
            self._fill(start)
            show(self._batches[0])
            found.append([np.array(x.moving_mean.numpy(), "f8") for x in self._layers])
        kept = [float(np.mean(one - zero)) for zero, one in zip(*found, strict=True)]
        momenta = [float(layer.momentum) for layer in self._layers]
        return [_share(m, k) for m, k in zip(momenta, kept, strict=True)]

    def _fill(self, value: float) -> None:
        for layer in self._layers:
            for average in _averages(layer):
                average.assign(np.full(average.shape, value, average.dtype))


def _share(momentum: float, kept: float) -> float:
    """Returns the share that a batch replaces, from what it was seen to keep.

    Example:
        >>> _share(0.9, 0.9000001), round(_share(0.9, 0.81), 2), _share(0.9, 1.0)
        (0.09999999999999998, 0.19, 0.0)
    """
    if not 0.0 < momentum < 1.0:
        return 1.0 - round(kept)
    # The number of calls is whole, and what was seen is rounded.
    calls = round(math.log(max(kept, 1e-30)) / math.log(momentum))
    return 1.0 - momentum ** max(0, calls)


def read_batches(source: Source, batch_size: int) -> list[Batch]:
    """Reads inputs that lie evenly in a source, as batches of equal size.

    Args:
        source: Source of the rows.
        batch_size: Rows of a batch; fewer only if the source has fewer.

    Raises:
        DataError: Rows cannot be read.
    """
    rows = len(source)
    size = min(batch_size, rows)
    each = max(1, source.size_bytes // max(1, rows))
    most = min(rows, MOST_ROWS, MOST_BYTES // each)
    count = max(1, most // size)
    places = _spread(source, count * size).reshape(size, count)
    # One call for all: a source keeps no chunk open between two.
    found = source.take(np.sort(places, axis=None))
    inputs = import_module("keras").utils.unpack_x_y_sample_weight(found)[0]
    # Neighbours go to different batches: data may be sorted.
    return [
        trees.map_leaves(lambda array, b=b: array[b::count], inputs)
        for b in range(count)
    ]


def _spread(source: Source, wanted: int) -> npt.NDArray[np.int64]:
    """Returns numbers of rows, evenly spread over the source or over some chunks."""
    rows = len(source)
    if not isinstance(source, ChunkedSource):
        return _evenly(rows, wanted)
    sizes = source.chunk_rows
    needed = -(-wanted * len(sizes) // rows)
    chosen = _evenly(len(sizes), min(len(sizes), max(FEW_CHUNKS, needed)))
    chunks = np.repeat(np.arange(len(sizes)), sizes)
    found = np.flatnonzero(np.isin(chunks, chosen))
    return found[_evenly(len(found), wanted)]


def _evenly(rows: int, wanted: int) -> npt.NDArray[np.int64]:
    """Returns so many numbers below `rows`, in order; some repeat if it has fewer."""
    return np.arange(wanted, dtype=np.int64) * rows // wanted


def in_training(model: Any) -> Callable[[Batch], Any]:
    """Returns a function that computes a model's outputs as in training.

    It changes what a layer changes in training, and no weights.
    """
    keras: Any = import_module("keras")

    class InTraining(keras.Model):
        def __init__(self) -> None:
            super().__init__(autocast=False)
            self.inner = model

        def build(self, input_shape: Any) -> None:
            """Does nothing: the model is built, and Keras warns without this."""

        def call(self, inputs: Any) -> Any:
            # Keras needs something to return: outputs may have any structure.
            outputs = self.inner(inputs, training=True)
            return [keras.ops.sum(o) for o in keras.tree.flatten(outputs)]

    shown = InTraining()
    shown.run_eagerly = bool(model.run_eagerly)
    return shown.predict_on_batch


def _states(model: Any) -> list[Any]:
    """Returns what showing a batch may change: no weights that are frozen.

    Some layers write their trained weights as well. On JAX that stays in the program.
    """
    own = [v for layer in model._flatten_layers() for v in layer._trainable_variables]
    weights = {id(v) for v in own}
    states = [v for v in model.non_trainable_variables if id(v) not in weights]
    is_pure = import_module("keras").config.backend() == "jax"
    return states if is_pure else [*states, *model.trainable_variables]


def _assign(values: Values) -> None:
    for variable, value in values:
        variable.assign(value)


def _averages(layer: Any) -> Sequence[Any]:
    return layer.moving_mean, layer.moving_variance
