"""Streams in shards, which workers open by themselves."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.data.adapting import source_of
from shoal.data.batches import Packing
from shoal.data.reading import Reading
from shoal.data.shards import Shard, ShardedSource
from shoal.errors import ConfigError, DataError
from tests.data.adapter_laws import check_laws, check_travels

SHARDS, BATCHES, BATCH = 3, 8, 4
PACKING = Packing(kind="dataset_fn", floatx="float32")


def batch(number: int, epoch: int = 0) -> Any:
    rows = np.arange(number * BATCH, (number + 1) * BATCH)
    # The last one is short.
    rows = rows[:1] if number == BATCHES - 1 else rows
    return {"a": rows[:, None] / 2}, rows + 1000 * epoch


def dataset_fn(shard: Shard) -> Iterator[Any]:
    for number in shard.of(range(BATCHES)):
        yield batch(number, shard.epoch)


def expected(epoch: int = 0) -> Any:
    order = [n for index in range(SHARDS) for n in range(index, BATCHES, SHARDS)]
    parts = [batch(n, epoch) for n in order]
    x = np.concatenate([x["a"] for x, _ in parts]).astype("f4")
    return {"a": x}, np.concatenate([y for _, y in parts])


def sharded(make: Any = dataset_fn, **reading: Any) -> ShardedSource:
    arguments: dict[str, Any] = {"shards": SHARDS, **reading}
    found = source_of(make, reading=Reading(**arguments))
    assert isinstance(found, ShardedSource)
    return found


def test_keeps_the_laws() -> None:
    source = sharded()
    assert source.chunk_rows == (12, 9, 8)
    assert (source.batch_size, source.mixing) == (4, "chunks")
    assert not source.is_exactly_once
    for epoch in (0, 2):
        check_laws(source, expected(epoch), epoch)


def test_another_process_reads_it(tmp_path: Path) -> None:
    check_travels(sharded(), expected(1), tmp_path, epoch=1)


def test_a_function_gets_four_shards_for_each_worker() -> None:
    seen: list[Shard] = []

    def noted(shard: Shard) -> Iterator[Any]:
        seen.append(shard)
        yield np.ones((2, 1))

    source = sharded(noted, shards=None, workers=2, seed=7)
    assert source.chunk_rows == (2,) * 8
    assert {(s.count, s.seed, s.epoch) for s in seen} == {(8, 7, 0)}
    assert {s.index for s in seen} == set(range(8))


def test_steps_are_shared_by_shards_without_an_end() -> None:
    def endless(shard: Shard) -> Iterator[Any]:
        for n in itertools.count(shard.index, shard.count):
            yield np.full((BATCH, 1), n), np.full(BATCH, n)

    source = sharded(endless, steps_per_epoch=10)
    assert source.chunk_rows == (14, 13, 13)
    assert source.read(2, 0).take(np.array([12, 0]))[1].tolist() == [11, 2]


def test_a_stream_is_opened_once_for_reading_forwards() -> None:
    opened: list[int] = []

    def noted(shard: Shard) -> Iterator[Any]:
        opened.append(shard.index)
        yield from dataset_fn(shard)

    chunk = ShardedSource(noted, shards=SHARDS, packing=PACKING).read(0, 0)
    opened.clear()
    for start in range(0, 12, 2):
        chunk.take(np.array([start, start + 1]))
    assert opened == [0]
    chunk.take(np.array([0]))
    assert opened == [0, 0]


def test_an_early_end_is_named() -> None:
    source = ShardedSource(dataset_fn, shards=SHARDS, packing=PACKING, rows=60)
    with pytest.raises(
        DataError, match=r"shard 2 of 3 .* ended after 8 rows .*\. Expected 20 rows"
    ):
        source.read(2, 0).take(np.array([1, 19]))


def test_rows_of_each_shard_can_be_given() -> None:
    source = ShardedSource(dataset_fn, shards=SHARDS, packing=PACKING, rows=[12, 9, 8])
    check_laws(source, expected())
    with pytest.raises(ConfigError, match=r"rows of the shards are \(1, 2\)"):
        ShardedSource(dataset_fn, shards=SHARDS, packing=PACKING, rows=[1, 2])


def test_an_empty_shard_is_named() -> None:
    with pytest.raises(DataError, match="Shard 8 of 9 of the dataset_fn is empty"):
        sharded(shards=9)


@pytest.mark.parametrize(
    "made", [None, 3, type("Dataset", (), {"__module__": "torch"})()]
)
def test_shards_that_are_no_streams_are_refused(made: Any) -> None:
    def returns(shard: Shard) -> Any:
        return made

    with pytest.raises(DataError, match="which gives no batches"):
        sharded(returns)


def test_error_names_what_cannot_be_pickled() -> None:
    lock = threading.Lock()

    def locked(shard: Shard) -> Iterator[Any]:
        with lock:
            yield np.ones((1, 1))

    with pytest.raises(DataError, match="inside of the function"):
        sharded(locked)


def test_targets_are_in_it() -> None:
    with pytest.raises(DataError, match="y is given beside x, which is a dataset_fn"):
        source_of(dataset_fn, np.ones(3))


def test_a_source_is_one_already() -> None:
    source = sharded()
    assert source_of(source) is source


@pytest.mark.parametrize(
    "x", [np.ones(3), [np.ones(3)], {"a": np.ones(3)}, None, "s3://bucket/", int]
)
def test_other_objects_are_left_to_other_readers(x: Any) -> None:
    assert source_of(x) is None


def test_numbers_are_positive() -> None:
    with pytest.raises(ConfigError, match="steps_per_epoch=0"):
        Reading(steps_per_epoch=0)


def test_a_function_that_takes_no_shard_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"cannot be called with a shard .* one argument"
    ):
        source_of(lambda: iter([]))
