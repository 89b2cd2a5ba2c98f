"""`tf.data.Dataset`: read in the driver, or as a graph in shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from shoal.data import trees
from shoal.data.adapting import source_of
from shoal.data.chunks import ChunkedSource
from shoal.data.generators import FedSource
from shoal.data.reading import Reading
from shoal.data.shards import Shard, ShardedSource
from shoal.data.tensors import as_arrays
from shoal.errors import DataError
from tests.data.adapter_laws import ROWS, X, Y, check_laws, check_travels

tf: Any = pytest.importorskip("tensorflow")

ALL = (X.astype("f4"), Y)
NESTED = ({"a": X.astype("f4")}, (Y, Y / 2), np.ones(ROWS, "f4"))


def pairs() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y))


def nested() -> Any:
    weights = tf.data.Dataset.from_tensors(1.0).repeat(ROWS)
    joined = tf.data.Dataset.zip((pairs(), weights))
    return joined.map(lambda xy, w: ({"a": xy[0]}, (xy[1], xy[1] / 2), w))


def from_python() -> Any:
    def samples() -> Iterator[Any]:
        yield from zip(X, Y, strict=True)

    spec = (tf.TensorSpec((2,), tf.float64), tf.TensorSpec((), tf.int64))
    return tf.data.Dataset.from_generator(samples, output_signature=spec)


def source(dataset: Any, **reading: Any) -> ChunkedSource:
    found = source_of(dataset, reading=Reading(**reading))
    assert found is not None
    return found


CASES: dict[str, tuple[Any, Any]] = {
    "plain": (lambda: pairs().batch(4), ALL),
    "prefetched": (lambda: pairs().batch(4).map(lambda x, y: (x, y)).prefetch(2), ALL),
    "cut": (
        lambda: pairs().batch(4, drop_remainder=True).cache(),
        (ALL[0][:20], Y[:20]),
    ),
    "nested": (lambda: nested().batch(4), NESTED),
    "python": (lambda: from_python().batch(4), ALL),
    "filtered": (
        lambda: pairs().filter(lambda x, y: y % 2 == 0).batch(4),
        (ALL[0][::2], Y[::2]),
    ),
    "batched twice": (lambda: pairs().batch(2).unbatch().batch(4), ALL),
}


@pytest.mark.parametrize("name", CASES)
def test_keeps_the_laws(name: str) -> None:
    make, expected = CASES[name]
    found = source(make(), epochs=range(2))
    assert isinstance(found, FedSource)
    assert (found.kind, found.batch_size, found.mixing) == (
        "tf.data.Dataset",
        4,
        "nothing",
    )
    with found.serving():
        for epoch in range(2):
            check_laws(found, expected, epoch)


def test_another_process_reads_it_without_tensorflow(tmp_path: Path) -> None:
    found = source(nested().batch(4))
    with found.serving():
        assert check_travels(found, NESTED, tmp_path) == []


def test_every_epoch_is_a_pass_of_its_own() -> None:
    found = source(pairs().shuffle(ROWS, seed=1).batch(4), epochs=range(2))
    again = iter(pairs().shuffle(ROWS, seed=1).batch(4))
    with found.serving():
        orders = [labels(found, epoch) for epoch in range(2)]
    assert sorted(orders[0]) == sorted(orders[1]) == Y.tolist()
    assert orders[0] != orders[1]
    # Nothing was drawn before, so that it is what Keras would read.
    assert orders[0] == [int(y) for _, ys in again for y in ys]


def labels(found: ChunkedSource, epoch: int) -> list[int]:
    parts = [
        found.read(chunk, epoch).take(np.arange(rows))
        for chunk, rows in enumerate(found.chunk_rows)
    ]
    return np.concatenate([y for _, y in parts]).tolist()


def test_without_an_end_steps_are_needed() -> None:
    endless = pairs().repeat().batch(4)
    with pytest.raises(DataError, match=r"has no end .* Pass steps_per_epoch"):
        source(endless)
    found = source(endless, steps_per_epoch=3, epochs=range(2))
    with found.serving():
        assert labels(found, 1) == [*Y[12:22], *Y[:2]]


def test_steps_go_on_from_pass_to_pass() -> None:
    found = source(pairs().batch(11), steps_per_epoch=3, epochs=range(2))
    with found.serving():
        assert labels(found, 1) == [*Y[11:], *Y]


def test_a_batch_that_grew_is_named() -> None:
    sizes = iter([4, 4, 4])

    def batches() -> Iterator[Any]:
        yield np.ones((next(sizes, 5), 1))

    spec = tf.TensorSpec((None, 1), tf.float64)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=spec)
    found = source(dataset, epochs=range(4))
    with pytest.raises(DataError, match="has 5 rows"), found.serving():
        found.read(0, 3)


def test_shards_are_read_by_workers(tmp_path: Path) -> None:
    found = source(nested().batch(4).prefetch(1), shards=4)
    assert isinstance(found, ShardedSource)
    assert found.chunk_rows == (8, 6, 4, 4)
    batches = [np.arange(n, min(n + 4, ROWS)) for n in range(0, ROWS, 4)]
    order = np.concatenate([b for n in range(4) for b in batches[n::4]])
    expected = trees.map_leaves(lambda a: a[order], NESTED)
    check_laws(found, expected)
    # Keras itself loads its backend there.
    backend = {keras.backend.backend()} & {"torch"}
    assert set(check_travels(found, expected, tmp_path)) == {"tensorflow"} | backend


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (from_python, "PyFunc"),
        (lambda: pairs().shuffle(9), "ShuffleDataset"),
        (lambda: pairs().shuffle(9, seed=1), "ShuffleDataset"),
        (lambda: pairs().map(lambda x, y: (tf.random.uniform(()), y)), "Random"),
        (
            lambda: pairs().map(
                lambda x, y: (x, y), num_parallel_calls=2, deterministic=False
            ),
            "not deterministic",
        ),
    ],
)
def test_data_that_differs_between_processes_is_not_sharded(
    make: Any, why: str
) -> None:
    with pytest.raises(DataError, match=f"cannot be cut into shards .*{why}"):
        source(make().batch(4), shards=2)


def test_a_function_makes_it_in_the_worker(tmp_path: Path) -> None:
    def dataset_fn(shard: Shard) -> Any:
        import tensorflow as tf

        tf.random.set_seed(1)  # another test may have set one here, and not there
        numbers: Any = tf.data.Dataset.range(20).shard(shard.count, shard.index)
        return numbers.shuffle(20, seed=shard.seed + shard.epoch).batch(3)

    found = source(dataset_fn, shards=2)
    assert found.chunk_rows == (10, 10)
    rows = found.read(1, 0).take(np.arange(10))
    assert sorted(rows) == list(range(1, 20, 2))
    check_travels(found, found.take(slice(None)), tmp_path)


def test_tensors_are_arrays() -> None:
    assert source_of(tf.ones(3)) is None
    sparse = tf.sparse.from_dense([[0.0, 2.0], [3.0, 0.0]])
    assert as_arrays([sparse])[0].tolist() == [[0.0, 2.0], [3.0, 0.0]]


def test_ragged_rows_are_refused() -> None:
    ragged = tf.data.Dataset.from_tensors(tf.ragged.constant([[1, 2], [3]]))
    with pytest.raises(DataError, match="RaggedTensor"):
        source(ragged)


def test_targets_are_in_it() -> None:
    with pytest.raises(DataError, match=r"y is given beside x, which is a tf\.data"):
        source_of(pairs().batch(2), Y)
