"""Keras' `Normalization.adapt` over data that does not fit in memory.

This file decides who reads which rows, and the final state of the layer; the
arithmetic is in `moments`. Readers are threads: they save waiting for storage,
and decoding files releases Python's lock. Processes were measured and are slower.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, cast, final

import cloudpickle
import numpy as np
import numpy.typing as npt

from shoal.data import trees
from shoal.data.chunks import MEMORY_BYTES, ArrayChunk, ChunkedSource
from shoal.data.files import FileSource
from shoal.data.located import FileArguments
from shoal.data.moments import Moments, merge
from shoal.data.reading import Reading
from shoal.data.sources import Source
from shoal.data.training import training_data, unpack_batch
from shoal.errors import ConfigError, DataError

WHERE = "data of adapt"
PIECE_BYTES = 8 << 20
"""Bytes of inputs that are made float64 at a time."""
FILE_READERS = 4
"""Files that are read at a time: all cores decode one, several are waited for."""
_AHEAD = 2


def adapt(  # noqa: PLR0913 - what fit takes about files and streams
    layer: Any,
    source: Any,
    *,
    input: str | int | None = None,
    features: Any = None,
    label: Any = None,
    preprocess: Any = None,
    on_bad_file: str = "raise",
    steps_per_epoch: int | None = None,
    workers: int | None = None,
) -> None:
    r"""Sets mean and variance of a `Normalization` layer from all rows of a source.

    Leaves the layer as `layer.adapt` would with all rows in one array, and takes data
    that does not fit in memory: chunks are read one after another. Choose
    `layer.adapt` for arrays; it is the same. Call it before the model is trained,
    as with Keras: the layer's numbers travel to workers with the model.

    Chunks are summed in float64 and merged in their order, so that the result is the
    same for any number of readers.

    Args:
        layer: A `keras.layers.Normalization`, built or not, with any `axis`.
        source: Data as for x of `fit`: arrays, path or URL of files, `PyDataset`,
            `tf.data.Dataset`, torch `DataLoader`, a generator, a source of Shoal.
            Generators are used up by it, as by Keras.
        input: Which of several inputs: a key of a dict, an index of a list.
        features: Columns of files, as for `fit`; targets are then not read.
        label: Label of files, as for `fit`.
        preprocess: Reader of files, as for `fit`.
        on_bad_file: Treatment of bad files, as for `fit`.
        steps_per_epoch: Batches to read, at least 1, for data in batches; default None
            means all. Needed for generators.
        workers: Threads that read, at least 1; each holds a chunk. Default None means
            4 for files and 1 otherwise. More threads help if reading waits.

    Raises:
        ConfigError: The layer is another one, has numbers already, or would keep
            the rows apart; or an argument is wrong.
        DataError: The data cannot be read, or has numbers that are not finite. The
            layer is then as it was.

    Example:
        >>> import keras, pathlib, shoal.data
        >>> _ = pathlib.Path("a.csv").write_text("size,age\n1,10\n3,10\n5,40\n")
        >>> layer = keras.layers.Normalization()
        >>> shoal.data.adapt(layer, "a.csv", features=["size", "age"])
        >>> np.asarray(layer.mean).tolist(), np.round(layer.variance, 3).tolist()
        ([[3.0, 20.0]], [[2.6670000553131104, 200.0]])
    """
    _check(layer, workers)
    files = FileArguments(
        features=features, label=label, preprocess=preprocess, on_bad_file=on_bad_file
    ).without_targets(source)
    # In float64: values that came as float64 keep their digits.
    reading = Reading(steps_per_epoch=steps_per_epoch, floatx="float64", where=WHERE)
    found = source
    if isinstance(source, Source):
        files.refuse(WHERE)
        if isinstance(source, FileSource):
            found = source.with_floatx("float64")
    else:
        found, _ = training_data(source, floatx="float64", files=files, reading=reading)
    scan = _Scan.of(layer, found, input)
    with found.serving():
        moments = merge(scan.parts(found, workers))
    if not np.isfinite(moments.squares).all():
        places = np.argwhere(~np.isfinite(moments.squares))
        raise DataError(
            f"{scan.name} has numbers that are not finite ({WHERE}), first at place "
            f"{places[0].tolist()} of {moments.mean.shape}. Expected finite numbers: "
            "one NaN makes every output of the layer NaN. "
            "Fill or leave out what is missing before the data is read."
        )
    if not layer.built:
        layer.build((None, *scan.row_shape))
    layer.adapt_mean.assign(moments.mean)
    layer.adapt_variance.assign(moments.variance)
    layer.finalize_state()


def _check(layer: Any, workers: int | None) -> None:
    """Refuses layers that cannot be adapted here."""
    import keras

    normalization: Any = keras.layers.Normalization
    if not isinstance(layer, normalization):
        raise ConfigError(
            f"layer={type(layer).__name__} cannot be adapted here. Expected a "
            "keras.layers.Normalization: mean and variance merge over parts of the "
            "data, vocabularies and bins do not. Call layer.adapt(...) with arrays."
        )
    if layer.input_mean is not None:
        raise ConfigError(
            f"the layer {layer.name!r} was made with mean= and variance=. Expected a "
            "layer that learns them from data. Leave both out, or do not adapt it."
        )
    if workers is not None and workers < 1:
        raise ConfigError(
            f"workers={workers!r} ({WHERE}). Expected a whole number of at least 1. "
            "Leave it out for the default."
        )


@final
@dataclass(frozen=True, kw_only=True)
class _Scan:
    """The part of every batch that is read.

    Args:
        place: Index of the input among all inputs of a row.
        name: Name of the input, for messages.
        row_shape: Shape of a row of the input.
        keep: Axes with a mean for each position, counted with the rows.
        piece_rows: Rows that are made float64 at a time.
    """

    place: int
    name: str
    row_shape: tuple[int, ...]
    keep: tuple[int, ...]
    piece_rows: int

    @classmethod
    def of(cls, layer: Any, source: Source, chosen: str | int | None) -> _Scan:
        """Finds the input, and the axes that the layer keeps."""
        x = unpack_batch(source.take(slice(0, 1)))[0]
        place, name, row = _input(x, chosen)
        keep = _kept_axes(layer, row.shape, name)
        kept = tuple(row.shape[axis] for axis in keep)
        if layer.built and tuple(layer.adapt_mean.shape) != kept:
            raise DataError(
                f"{name} has rows of shape {row.shape[1:]} ({WHERE}), but the layer "
                f"{layer.name!r} was built for {tuple(layer.adapt_mean.shape)} along "
                f"axis={layer.axis}. Expected rows like those. "
                "Adapt a new layer, or name another input."
            )
        row_bytes = max(8, row.size * 8)
        return cls(
            place=place,
            name=name,
            row_shape=row.shape[1:],
            keep=keep,
            piece_rows=max(1, PIECE_BYTES // row_bytes),
        )

    def parts(self, source: Source, workers: int | None) -> Iterator[Moments]:
        """Yields the moments of all rows, in their order."""
        if not isinstance(source, ChunkedSource):
            for rows in self._pieces(len(source)):
                yield self._look(source.take(rows))
            return
        readers = _readers(source, workers)
        if readers == 1:
            for number in range(len(source.chunk_rows)):
                yield self.chunk(source, number)
            return
        yield from _in_threads(source, readers, self.chunk)

    def chunk(self, source: ChunkedSource, number: int) -> Moments:
        """Computes the moments of one chunk."""
        chunk, count = source.read(number, 0), source.chunk_rows[number]
        if isinstance(chunk, ArrayChunk):  # others cannot be cut without a copy
            inputs = self._of(chunk.rows)
            parts = (Moments.of(inputs[r], self.keep) for r in self._pieces(count))
            return merge(parts)
        rows = (np.arange(r.start, r.stop) for r in self._pieces(count))
        return merge(self._look(chunk.take(offsets)) for offsets in rows)

    def _pieces(self, rows: int) -> Iterator[slice]:
        for start in range(0, rows, self.piece_rows):
            yield slice(start, min(rows, start + self.piece_rows))

    def _look(self, batch: Any) -> Moments:
        return Moments.of(self._of(batch), self.keep)

    def _of(self, batch: Any) -> npt.NDArray[Any]:
        return trees.leaves(unpack_batch(batch)[0])[self.place]


def _input(x: Any, chosen: str | int | None) -> tuple[int, str, npt.NDArray[Any]]:
    """Returns index, name and rows of the chosen input."""
    named = list(trees.named_leaves(x, "x"))
    wanted = "x" if chosen is None else f"x[{chosen!r}]"
    for place, (name, rows) in enumerate(named):
        if name == wanted or (chosen is None and len(named) == 1):
            return place, name, rows
    names = ", ".join(name for name, _ in named)
    raise ConfigError(
        f"input={chosen!r} names none of the inputs ({WHERE}), which are {names}. "
        "Expected the key or the place of one: a layer is adapted to one input. "
        "Pass it as input=, or leave input out where there is one."
    )


def _kept_axes(layer: Any, shape: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Returns the axes with a mean for each position, from 1."""
    axes = cast("tuple[int, ...]", layer.axis)
    rank = len(shape)
    keep = tuple(sorted({axis + rank if axis < 0 else axis for axis in axes}))
    if all(0 < axis < rank for axis in keep):
        return keep
    raise ConfigError(
        f"axis={axes} of the layer {layer.name!r} does not fit {name}, whose batches "
        f"have shape {(None, *shape[1:])} ({WHERE}). Expected axes from 1 to "
        f"{rank - 1} or negative ones that mean these: axis 0 are the rows, which "
        "have one mean together. Make it Normalization(axis=None) for one mean of all."
    )


def _readers(source: ChunkedSource, workers: int | None) -> int:
    """Returns the number of reading threads that the memory for chunks allows."""
    if workers is None:
        workers = FILE_READERS if isinstance(source, FileSource) else 1
    rows = source.chunk_rows
    if not source.travels_alone or len(rows) == 1:
        return 1
    largest = max(1, max(rows) * source.size_bytes // len(source))
    return max(1, min(workers, len(rows), MEMORY_BYTES // largest))


def _in_threads(
    source: ChunkedSource,
    readers: int,
    look: Callable[[ChunkedSource, int], Moments],
) -> Iterator[Moments]:
    """Yields the results of `look` for each chunk, in order; a few are read ahead."""
    # A source is read by one thread at a time: each has its own, as a worker has.
    free: SimpleQueue[ChunkedSource] = SimpleQueue()
    free.put(source)
    packed = cloudpickle.dumps(source) if readers > 1 else b""
    for _ in range(readers - 1):
        free.put(cloudpickle.loads(packed))

    def looked(number: int) -> Moments:
        own = free.get()
        try:
            return look(own, number)
        finally:
            free.put(own)

    with ExitStack() as stack:
        threads = ThreadPoolExecutor(readers, thread_name_prefix="shoal-adapt")
        stack.callback(threads.shutdown, cancel_futures=True)
        coming: deque[Future[Moments]] = deque()
        for number in range(len(source.chunk_rows)):
            coming.append(threads.submit(looked, number))
            if len(coming) > _AHEAD * readers:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
