"""What every source in chunks must do, whatever it reads; and reading it elsewhere."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from shoal.data import trees
from shoal.data.chunks import ChunkedSource, Shelf

ROOT = Path(__file__).parents[2]

READER = """
import pickle, sys
import cloudpickle, numpy as np
from shoal.data.chunks import Shelf
source, indices, epoch = cloudpickle.loads(open(sys.argv[1], "rb").read())
rows = Shelf(source).take(indices, epoch)
libraries = [n for n in ("grain", "tensorflow", "torch") if n in sys.modules]
open(sys.argv[2], "wb").write(pickle.dumps((rows, libraries)))
"""

ROWS = 22
X = np.arange(2.0 * ROWS).reshape(ROWS, 2)
Y = np.arange(ROWS) + 100


def check_equal(found: Any, expected: Any) -> None:
    """Compares trees by structure and values."""
    assert trees.have_same_structure(found, expected)
    for ours, theirs in zip(trees.leaves(found), trees.leaves(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def check_laws(source: ChunkedSource, expected: Any, epoch: int = 0) -> None:
    """Checks the contract of sources in chunks, in this process."""
    sizes = [len(leaf) for leaf in trees.leaves(expected)]
    assert sum(source.chunk_rows) == len(source) == sizes[0]
    assert min(source.chunk_rows) > 0
    assert source.size_bytes > 0
    _every_row_once_in_order(source, expected, epoch)
    _any_offsets_in_any_order(source, epoch)
    _floats_are_floatx(source, epoch)


def _every_row_once_in_order(source: ChunkedSource, expected: Any, epoch: int) -> None:
    parts = [
        source.read(chunk, epoch).take(np.arange(rows))
        for chunk, rows in enumerate(source.chunk_rows)
    ]
    leaves = zip(*map(trees.leaves, parts), strict=True)
    whole = iter([np.concatenate(arrays) for arrays in leaves])
    check_equal(trees.map_leaves(lambda _: next(whole), parts[0]), expected)


def _any_offsets_in_any_order(source: ChunkedSource, epoch: int) -> None:
    random = np.random.default_rng(0)
    for chunk, rows in enumerate(source.chunk_rows):
        whole = source.read(chunk, epoch).take(np.arange(rows))
        opened = source.read(chunk, epoch)
        some = random.permutation(rows)
        for offsets in (some[: rows // 2], some[rows // 2 :], some[:1], some):
            found = opened.take(offsets)
            check_equal(found, trees.map_leaves(lambda a, at=offsets: a[at], whole))


def _floats_are_floatx(source: ChunkedSource, epoch: int) -> None:
    kinds = {leaf.dtype for leaf in trees.leaves(source.read(0, epoch).take(_FIRST))}
    assert kinds <= {np.dtype("f4"), np.dtype("i8"), np.dtype("i4"), np.dtype("?")}


_FIRST = np.zeros(1, np.int64)


@contextmanager
def reader(
    source: ChunkedSource, indices: Any, folder: Path, epoch: int = 0
) -> Iterator[subprocess.Popen[str]]:
    """Starts a process that reads rows; ends it."""
    # As a user's script, which workers cannot import.
    mine = [m for name, m in list(sys.modules.items()) if name.startswith("tests.")]
    for module in mine:
        cloudpickle.register_pickle_by_value(module)
    try:
        (folder / "source").write_bytes(cloudpickle.dumps((source, indices, epoch)))
    finally:
        for module in mine:
            cloudpickle.unregister_pickle_by_value(module)
    process = subprocess.Popen(
        [sys.executable, "-c", READER, str(folder / "source"), str(folder / "rows")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_elsewhere(
    source: ChunkedSource, indices: Any, folder: Path, epoch: int = 0
) -> tuple[Any, list[str]]:
    """Reads rows in a process of its own; returns them and the libraries it needed."""
    with reader(source, indices, folder, epoch) as process:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    return pickle.loads((folder / "rows").read_bytes())


def check_travels(
    source: ChunkedSource, expected: Any, folder: Path, epoch: int = 0
) -> list[str]:
    """Checks that a fresh process reads the same rows; returns what it imported."""
    indices = np.random.default_rng(1).permutation(len(source))
    assert Shelf(source).chunks_of(indices).max() == len(source.chunk_rows) - 1
    found, libraries = read_elsewhere(source, indices, folder, epoch)
    check_equal(found, trees.map_leaves(lambda a: a[indices], expected))
    return libraries
