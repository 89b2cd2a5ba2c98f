"""From the data arguments of `fit` to a source to train on and one to validate on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

from shoal.data import trees
from shoal.data.adapting import source_of
from shoal.data.arrays import FIT, Column, check_lengths, named_columns
from shoal.data.chunks import GROUP_BYTES, ChunkedSource, ShapesDiffer
from shoal.data.generators import FedSource
from shoal.data.located import FileArguments, is_frame, is_location, open_located
from shoal.data.reading import Reading
from shoal.data.sources import ArraySource, Source, default_floatx
from shoal.data.spooled import SpooledSource
from shoal.data.streams import refuse_streams
from shoal.data.tensors import as_arrays
from shoal.data.weighted import ClassWeighted
from shoal.data.weights import check_class_weight, class_weights, weights_per_output
from shoal.errors import ConfigError, DataError

VALIDATION = "validation_data of fit"
WHOLE_BYTES = GROUP_BYTES
"""Bytes up to which data in chunks is scored from memory."""


def training_data(  # noqa: PLR0913 - the arguments of fit
    x: trees.Tree,
    y: trees.Tree = None,
    sample_weight: trees.Tree = None,
    *,
    class_weight: Mapping[int, float] | None = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    floatx: str | None = None,
    files: FileArguments | None = None,
    reading: Reading | None = None,
    validation_steps: int | None = None,
) -> tuple[Source, ArraySource | ChunkedSource | None]:
    """Reads the data arguments of `fit`, with the meaning they have in Keras.

    Args:
        x: Inputs: array, or dict, list or tuple of arrays; rows first.
        y: Targets, in any nesting, or None.
        sample_weight: One array, or one for each output, nested as `y`.
        class_weight: Class -> weight, for a single `y` of integer or one-hot labels.
        validation_split: Share of the rows, in [0, 1), cut from the end before any
            shuffling; not used when there is `validation_data`.
        validation_data: `x`, `(x, y)` or `(x, y, sample_weight)`, or None.
        floatx: Dtype in which floats are read; default None means Keras' floatx.
        files: Arguments about files, if x names some.
        reading: Options for data in batches: for how long and for how many workers.
        validation_steps: Batches of a validation, at least 1.

    Returns:
        The source to train on, and the one to validate on, None for nothing.

    Raises:
        DataError: An array is missing, ragged, not numeric, or of another length.
        ConfigError: `validation_split` leaves one side empty, or `class_weight` does
            not fit the other arguments.

    Example:
        >>> import numpy as np
        >>> train, validation = training_data(
        ...     np.ones((10, 3)), np.arange(10), validation_split=0.2
        ... )
        >>> len(train), len(validation), validation.take(slice(0, 2))[1]
        (8, 2, array([8, 9]))
    """
    kind = floatx or default_floatx()
    files, reading = files or FileArguments(), reading or Reading()
    held_reading = replace(
        Reading.of_steps(validation_steps, VALIDATION, "validation_steps"),
        store=reading.store,
        is_away=reading.is_away,
        port=reading.port,
        progress=reading.progress,
        generator_gb=reading.generator_gb,
    )
    data = (x, y, sample_weight)
    chunked = _in_chunks(data, files, reading)
    if chunked is not None:
        if validation_split:
            raise ConfigError(
                f"validation_split={validation_split} with {chunked.kind}. Expected "
                "arrays, whose last rows can be cut off. Pass validation_data."
            )
        if class_weight is not None:
            chunked = ClassWeighted(chunked, class_weight, kind)
        return chunked, _held_out(validation_data, files, held_reading)
    files.refuse(FIT)
    if validation_data is None and validation_split:
        data, held_out = split(data, validation_split, kind)
        train = weighted_source(data, class_weight, kind)
        return train, weighted_source(held_out, None, kind)
    train = weighted_source(data, class_weight, kind)
    return train, _held_out(validation_data, files, held_reading)


def _in_chunks(
    data: tuple[Any, Any, Any], files: FileArguments, reading: Reading
) -> ChunkedSource | None:
    """Returns a source of data that is read in chunks, None for arrays."""
    if is_frame(data[0]):
        from shoal.data.spark import open_frame

        return open_frame(*data, files, reading)
    if is_location(data[0]):
        return open_located(*data, files, reading)
    found = source_of(*data, reading=reading)
    if found is not None:
        files.refuse(reading.where)
    return found


def held_out(
    data: Any,
    files: FileArguments | None = None,
    steps: int | None = None,
    generator_gb: float | None = None,
) -> ArraySource | ChunkedSource | None:
    """Reads `validation_data` of `fit` by itself.

    Args:
        data: The argument of `fit`.
        files: Arguments about files, if it names some.
        steps: Batches of a validation.
        generator_gb: See `Reading`.
    """
    reading = Reading.of_steps(steps, VALIDATION, "validation_steps", generator_gb)
    return _held_out(data, files or FileArguments(), reading)


def _held_out(
    data: Any, files: FileArguments, reading: Reading
) -> ArraySource | ChunkedSource | None:
    """Returns the source to validate on."""
    if data is None:
        return None
    if is_location(data) or is_frame(data):
        return scored_source((data, None, None), files=files, reading=reading)
    # The arguments about files are about x, then.
    return scored_source(unpack(data), reading=reading)


def scored_source(
    data: tuple[Any, Any, Any],
    *,
    files: FileArguments | None = None,
    reading: Reading | None = None,
    is_served: bool = False,
) -> ArraySource | ChunkedSource:
    """Returns the rows to score, in their order.

    Large data in chunks stays in chunks: if only this process can read it,
    and no caller serves it, it is written to disk once. Small data is read here, whole:
    it is scored faster from memory.

    Args:
        data: x, y and sample_weight, each as for `fit`.
        files: Arguments about files, if x names some.
        reading: Options for data in batches.
        is_served: Whether the caller enters `serving`, and reads it once.

    Raises:
        DataError: Data is missing, bad, or cannot be used.
        ConfigError: An argument is wrong.
    """
    reading = reading or Reading()
    chunked = _in_chunks(data, files or FileArguments(), reading)
    if chunked is None:
        return weighted_source(data, None, reading.floatx, reading.where)
    if chunked.size_bytes > WHOLE_BYTES:
        if isinstance(chunked, FedSource) and not is_served:
            return SpooledSource.of_source(chunked)
        return chunked
    try:
        rows = unpack_batch(chunked.take(slice(None)))
    except ShapesDiffer:  # its batches are scored one by one
        if isinstance(chunked, FedSource) and not is_served:
            return SpooledSource.of_source(chunked)
        return chunked
    return ArraySource(*rows, floatx=reading.floatx, where=reading.where)


def unpack_batch(rows: Any) -> tuple[Any, Any, Any]:
    """The inverse of how Keras packs x, y and sample weights.

    Example:
        >>> unpack_batch(("inputs", "targets"))
        ('inputs', 'targets', None)
    """
    return unpack(rows) if isinstance(rows, tuple) else (rows, None, None)


def weighted_source(
    data: tuple[Any, Any, Any],
    class_weight: Mapping[int, float] | None,
    floatx: str | None = None,
    where: str = FIT,
) -> ArraySource:
    """Builds a source from (x, y, sample_weight), weights as Keras forms them.

    Args:
        data: The parts x, y and sample_weight, each as for `fit`.
        class_weight: Class weights, as for `fit`.
        floatx: Dtype in which floats are read; default None means Keras' floatx.
        where: Origin of the data, for messages.

    Example:
        >>> import numpy as np
        >>> source = weighted_source((np.ones(3), np.arange(3), None), {2: 9.0})
        >>> source.take(slice(1, 3))[2]
        array([1., 9.], dtype=float32)
    """
    x, y, weights = map(as_arrays, data)
    # First, because x may hold the targets that later checks would miss.
    refuse_streams(x, "x", where)
    kind = floatx or default_floatx()
    if weights is not None:
        weights = weights_per_output(y, weights, where)
    if class_weight is not None:
        check_class_weight(class_weight, y, has_sample_weight=weights is not None)
        column = named_columns(y, "y", kind, where)
        weights = class_weights(column.values, class_weight, kind)
    return ArraySource(x, y, weights, floatx=kind, where=where)


def unpack(data: Any) -> tuple[Any, Any, Any]:
    """Reads `validation_data`: x, `(x,)`, `(x, y)` or `(x, y, sample_weight)`.

    Raises:
        ConfigError: It has another number of parts.

    Example:
        >>> unpack(("inputs", "targets"))
        ('inputs', 'targets', None)
    """
    if not isinstance(data, (list, tuple)):
        return data, None, None
    parts: list[Any] = list(data)
    if not 1 <= len(parts) <= 3:
        raise ConfigError(
            f"validation_data has {len(parts)} parts. "
            "Expected x, (x, y) or (x, y, sample_weight). "
            "Put several inputs or outputs into one list or dict."
        )
    x, y, sample_weight = (*parts, None, None)[:3]
    return x, y, sample_weight


def split(
    data: tuple[Any, Any, Any], fraction: float, floatx: str
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Cuts the last `fraction` of the rows off, as Keras' `validation_split`.

    Raises:
        ConfigError: `fraction` is outside (0, 1), or one side would be empty.
        DataError: The data is not arrays, or their lengths differ.
    """
    is_number: bool = isinstance(fraction, Real)  # the user's own value
    if not is_number or not 0 < fraction < 1:
        raise ConfigError(
            f"validation_split={fraction!r} is not a share of the data. "
            "Expected a number of at least 0 and below 1. "
            "Pass 0.1 to hold out the last tenth of the rows."
        )
    names = ("x", "y", "sample_weight")
    columns = tuple(
        named_columns(part, name, floatx)
        for part, name in zip(data, names, strict=True)
    )
    named = [
        found
        for part, name in zip(columns, names, strict=True)
        for found in trees.named_leaves(part, name)
    ]
    if not named:
        raise DataError(
            f"x is None ({FIT}). Expected at least one array of inputs. "
            "Pass the inputs of the model as x."
        )
    rows = check_lengths(named)
    at = math.floor(rows * (1.0 - fraction))
    if at in (0, rows):
        raise ConfigError(
            f"validation_split={fraction} of {rows} samples leaves one side empty. "
            "Expected samples to train on and samples to validate on. "
            "Pass validation_data, or another share."
        )
    return _cut(columns, slice(0, at)), _cut(columns, slice(at, rows))


def _cut(columns: tuple[Any, ...], rows: slice) -> tuple[Any, Any, Any]:
    """Returns the same rows of every column: views if no dtype needs a cast."""

    def of(column: Column) -> Any:
        return column.values[rows]

    x, y, sample_weight = (trees.map_leaves(of, part) for part in columns)
    return x, y, sample_weight
