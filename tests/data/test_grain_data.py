"""Data sets of grain: by number, or as streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.data.adapting import source_of
from shoal.data.chunks import ChunkedSource
from shoal.data.generators import FedSource
from shoal.data.numbered import NumberedBatches
from shoal.data.reading import Reading
from shoal.data.shards import ShardedSource
from shoal.errors import ConfigError, DataError
from tests.data.adapter_laws import ROWS, X, Y, check_laws, check_travels

grain: Any = pytest.importorskip("grain")

ALL = (X.astype("f4"), Y)


def pair(index: int) -> Any:
    return X[index], Y[index]


def pairs() -> Any:
    return grain.MapDataset.range(ROWS).map(pair)


def loader() -> Any:
    return grain.DataLoader(
        data_source=[pair(n) for n in range(ROWS)],
        sampler=grain.samplers.IndexSampler(ROWS, shuffle=False, num_epochs=1),
        operations=[grain.transforms.Batch(4)],
    )


def source(dataset: Any, **reading: Any) -> ChunkedSource:
    found = source_of(dataset, reading=Reading(**reading))
    assert found is not None
    return found


def streams() -> dict[str, Any]:
    return {
        "IterDataset": pairs().to_iter_dataset().batch(4),
        "DataLoader": loader(),
    }


@pytest.fixture(autouse=True, scope="module")
def _threads_of_grain() -> None:
    """Grain keeps its threads as long as the interpreter lives."""
    for _ in range(3):
        list(pairs().to_iter_dataset().batch(2))


def test_by_number_workers_read_it(tmp_path: Path) -> None:
    found = source(pairs().batch(4))
    assert isinstance(found, NumberedBatches)
    assert (found.kind, found.batch_size) == ("grain MapDataset", 4)
    assert (found.mixing, found.is_exactly_once) == ("nothing", True)
    check_laws(found, ALL)
    assert "grain" in check_travels(found, ALL, tmp_path)


def test_an_endless_data_set_continues_in_the_next_epoch() -> None:
    endless = pairs().batch(11).repeat()
    with pytest.raises(ConfigError, match=r"has no end .* Pass steps_per_epoch"):
        source(endless)
    found = source(endless, steps_per_epoch=3)
    assert found.read(0, 1).take(np.arange(11))[1].tolist() == Y[11:].tolist()


@pytest.mark.parametrize("name", ["IterDataset", "DataLoader"])
def test_the_driver_reads_streams(name: str) -> None:
    found = source(streams()[name], epochs=range(2))
    assert isinstance(found, FedSource)
    with found.serving():
        for epoch in range(2):
            check_laws(found, ALL, epoch)


def test_a_filtered_data_set_is_read_as_a_stream() -> None:
    found = source(pairs().batch(4).filter(lambda xy: xy[1][0] >= 104))
    assert isinstance(found, FedSource)
    with found.serving():
        check_laws(found, (ALL[0][4:], Y[4:]))


def test_shards_are_read_by_workers(tmp_path: Path) -> None:
    found = source(pairs().to_iter_dataset().batch(4), shards=2)
    assert isinstance(found, ShardedSource)
    batches = [np.arange(n, min(n + 4, ROWS)) for n in range(0, ROWS, 4)]
    order = np.concatenate([*batches[::2], *batches[1::2]])
    expected = (ALL[0][order], Y[order])
    check_laws(found, expected)
    check_travels(found, expected, tmp_path)


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(DataError, match="is empty"):
        source(pairs()[:0])


def test_samples_without_batches_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"x is an int \(batch 0 of the grain MapDataset"
    ):
        source(grain.MapDataset.range(4))
