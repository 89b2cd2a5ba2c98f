"""The work of a scoring process: it claims chunks of rows and writes their results.

Chunks are claimed by locking a byte of a shared file. The system releases the locks of
a dead process, so its chunk is free for the next process, and no list of assignments
has to be kept.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any, TypeAlias, final

import numpy as np

from shoal.data import trees
from shoal.data.arrays import Column
from shoal.data.blob import blob_size, write_blob
from shoal.data.chunks import ShapesDiffer
from shoal.data.read_ahead import ReadAhead
from shoal.data.sources import Source
from shoal.launchers.shared import map_inherited
from shoal.launchers.titles import title
from shoal.models.metrics import MetricStates
from shoal.models.travel import unpack
from shoal.training.callback_list import safe_points, whole
from shoal.training.streaming import take_forwards

DONE = 1

Compute: TypeAlias = Callable[[Any, Any, int], trees.Tree]
"""(model, rows as Keras packs them, batch_size) -> nested arrays."""
Join: TypeAlias = Callable[[Sequence[trees.Tree]], trees.Tree]


@final
@dataclass(frozen=True, kw_only=True)
class ScoreTask:
    """The task of a scoring process.

    Args:
        model: Descriptor of the output of `travel.pack`.
        compute: Function for the rows of each part.
        join: Combines the results of a chunk's parts.
        open_source: Opens the rows, in memory or in chunks.
        board: Descriptor of one byte a chunk: 0 to do, `DONE`; locked while claimed.
        results: One descriptor a chunk, filled by the process that computes it.
        bounds: First row and end of each chunk.
        batch_size: Rows of one step.
        part_rows: Rows in memory at a time, a whole number of steps.
        first: Chunk to begin with, so that processes start apart.
    """

    model: int
    compute: Compute
    join: Join
    open_source: Callable[[], Source]
    board: int
    results: tuple[int, ...]
    bounds: tuple[tuple[int, int], ...]
    batch_size: int
    part_rows: int
    first: int = 0

    def parts(self, chunk: int) -> list[tuple[int, int]]:
        """Cuts a chunk into the parts that are computed at a time."""
        start, stop = self.bounds[chunk]
        edges = [*range(start, stop, self.part_rows), stop]
        return list(pairwise(edges))


def score(task: ScoreTask) -> None:
    """Computes every unclaimed chunk, then ends the process."""
    title("scores")
    source = task.open_source()
    model = unpack(map_inherited(task.model)[:])
    # Kept open: closing any descriptor of a file drops a process's locks on it.
    board = mmap.mmap(task.board, 0)
    count = len(task.bounds)
    for place in range(count):
        chunk = (task.first + place) % count
        with _claimed(task.board, chunk) as is_ours:
            if is_ours and board[chunk] != DONE:
                found = [
                    task.compute(model, rows, task.batch_size)
                    for part in task.parts(chunk)
                    for rows in _of_one_shape(source, *part)
                ]
                _leave(task.join(found), task.results[chunk])
                board[chunk] = DONE
    source.close()
    sys.exit(0)


def _of_one_shape(source: Source, start: int, stop: int) -> Iterator[Any]:
    """Yields the rows of a part at once, or batch by batch if their shapes differ."""
    try:
        yield take_forwards(source, start, stop)
    except ShapesDiffer:
        if not isinstance(source, ReadAhead):
            raise
        starts = source.starts_from(start).tolist()
        inner = [row for row in starts if start < row < stop]
        for part in pairwise([start, *inner, stop]):
            yield take_forwards(source, *part)


def evaluate_chunk(model: Any, rows: Any, batch_size: int) -> trees.Tree:
    """Returns the sums of metric state over some rows, by Keras' own `evaluate`."""
    x, y, weights = import_module("keras").utils.unpack_x_y_sample_weight(rows)
    model.evaluate(x, y, sample_weight=weights, batch_size=batch_size, verbose=0)
    return MetricStates.of(model).read(model)


def predict_chunk(
    model: Any, rows: Any, batch_size: int, verbose: int | str = 0
) -> trees.Tree:
    """Returns predictions for some rows, by Keras' own `predict`."""
    x, _, _ = import_module("keras").utils.unpack_x_y_sample_weight(rows)
    return whole(
        model, "predict", x, batch_size=batch_size, verbose=verbose,
        callbacks=safe_points(),
    )  # fmt: skip


def add_states(parts: Sequence[trees.Tree]) -> trees.Tree:
    """Returns the sums of metric state over all rows of some parts."""
    return np.sum(parts, axis=0)


def join_rows(parts: Sequence[trees.Tree]) -> trees.Tree:
    """Returns predictions of some parts in one, in their order.

    Example:
        >>> join_rows([{"a": np.ones(1)}, {"a": np.zeros(2)}])
        {'a': array([1., 0., 0.])}
    """
    columns = zip(*map(trees.leaves, parts), strict=True)
    joined = iter([np.concatenate(column) for column in columns])
    return trees.map_leaves(lambda _: next(joined), parts[0])


@contextmanager
def _claimed(board: int, chunk: int) -> Generator[bool]:
    """Holds the lock of a chunk; yields False if another process has it."""
    try:
        fcntl.lockf(board, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, chunk)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.lockf(board, fcntl.LOCK_UN, 1, chunk)


def _leave(result: trees.Tree, descriptor: int) -> None:
    """Writes nested arrays where the driver can map them."""
    columns = trees.map_leaves(_column, result)
    size = blob_size(columns)
    os.ftruncate(descriptor, size)
    with mmap.mmap(descriptor, size) as memory:
        write_blob(columns, memory)


def _column(leaf: Any) -> Column:
    array = np.asarray(leaf)
    return Column(values=array, dtype=array.dtype)
