"""Data of torch: tensors, data sets by number, loaders, streams."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from shoal.data.adapting import source_of
from shoal.data.chunks import ChunkedSource
from shoal.data.drawn import DrawnBatches
from shoal.data.generators import FedSource
from shoal.data.items import Items
from shoal.data.reading import Reading
from shoal.data.shards import ShardedSource
from shoal.data.sources import ArraySource
from shoal.data.tensors import as_arrays
from shoal.errors import DataError
from tests.data.adapter_laws import ROWS, X, Y, check_laws, check_travels

torch = pytest.importorskip("torch")
data = torch.utils.data

XT, YT = torch.tensor(X), torch.tensor(Y)
ALL = (X.astype("f4"), Y)


class Pairs(data.Dataset):
    """By number; counts what is read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return XT[index], YT[index]


class Nested(Pairs):
    """Dicts of tensors, numbers and arrays; weights."""

    def __getitem__(self, index: int) -> Any:
        return {"a": XT[index], "b": float(index)}, [Y[index], index], 1.0


class Whole(Pairs):
    """Its items are batches."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        rows = slice(4 * index, 4 * index + 4)
        return XT[rows], YT[rows]


class Many(Pairs):
    """Reads many items at a time."""

    def __getitems__(self, indices: list[int]) -> Any:
        return [(XT[i], YT[i]) for i in indices]


class Stream(data.IterableDataset):
    """As the documentation of torch has it: its processes share the work."""

    def __iter__(self) -> Iterator[Any]:
        worker = data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for index in range(first, ROWS, step):
            yield XT[index], YT[index]


class SizedStream(Stream):
    """Knows how many it has."""

    def __len__(self) -> int:
        return ROWS


def pad(items: list[Any]) -> Any:
    """A collate_fn whose batches are as wide as their longest item."""
    longest = max(int(y) % 5 for _, y in items) + 1
    x = torch.stack([torch.nn.functional.pad(x, (0, longest)) for x, _ in items])
    return x, torch.stack([y for _, y in items])


def swap(items: list[Any]) -> Any:
    return [torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])]


def source(x: Any, **reading: Any) -> ChunkedSource:
    found = source_of(x, reading=Reading(**reading))
    assert found is not None
    return found


NESTED = (
    {"a": X.astype("f4"), "b": np.arange(ROWS, dtype="f4")},
    [Y, np.arange(ROWS)],
    np.ones(ROWS, "f4"),
)
LOADER = data.DataLoader
CASES: dict[str, tuple[Any, Any, str, int | None]] = {
    "dataset": (lambda: Pairs(), ALL, "rows", None),
    "many": (lambda: Many(), ALL, "rows", None),
    "nested": (lambda: Nested(), NESTED, "rows", None),
    "tensors": (lambda: data.TensorDataset(XT, YT), ALL, "rows", None),
    "loader": (lambda: LOADER(Pairs(), 4), ALL, "nothing", 4),
    "shuffled": (lambda: LOADER(Pairs(), 4, shuffle=True), ALL, "rows", 4),
    "collated": (
        lambda: LOADER(Pairs(), 4, shuffle=True, collate_fn=swap),
        ALL,
        "rows",
        4,
    ),
    "cut": (
        lambda: LOADER(Pairs(), 4, drop_last=True),
        (ALL[0][:20], Y[:20]),
        "nothing",
        4,
    ),
    "batches": (lambda: LOADER(Whole(), batch_size=None), ALL, "nothing", 4),
    "processes": (lambda: LOADER(Pairs(), 4, num_workers=2), ALL, "nothing", 4),
    "stream": (lambda: LOADER(Stream(), 4), ALL, "nothing", 4),
    "sized stream": (lambda: LOADER(SizedStream(), 4), ALL, "nothing", 4),
    "bare stream": (lambda: Stream(), ALL, "nothing", None),
}


@pytest.mark.parametrize("name", CASES)
def test_keeps_the_laws(name: str) -> None:
    make, expected, mixing, batch_size = CASES[name]
    found = source(make())
    assert (found.mixing, found.batch_size) == (mixing, batch_size)
    assert found.is_exactly_once
    with found.serving():
        check_laws(found, expected)


@pytest.mark.parametrize("name", ["nested", "collated", "stream"])
def test_another_process_reads_it(name: str, tmp_path: Path) -> None:
    make, expected, _, _ = CASES[name]
    found = source(make())
    with found.serving():
        libraries = check_travels(found, expected, tmp_path)
    # What the driver reads needs no torch elsewhere.
    assert libraries == ([] if name == "stream" else ["torch"])


def test_only_requested_items_are_read() -> None:
    dataset = Pairs()
    found = source(dataset)
    assert isinstance(found, Items)
    dataset.reads = 0
    assert found.take(np.array([20, 3, 7]))[1].tolist() == [120, 103, 107]
    assert dataset.reads == 3


def drawn(found: ChunkedSource, epoch: int) -> list[int]:
    parts = [found.read(c, epoch) for c in range(len(found.chunk_rows))]
    rows = [p.take(np.arange(n)) for p, n in zip(parts, found.chunk_rows, strict=True)]
    return np.concatenate([y for _, y in rows]).tolist()


def samplers() -> dict[str, Any]:
    weights = [1.0] * ROWS
    own = torch.Generator()
    own.manual_seed(5)
    return {
        "weighted": LOADER(
            Pairs(), 4, sampler=data.WeightedRandomSampler(weights, ROWS)
        ),
        "replaced": LOADER(
            Pairs(), 4, sampler=data.RandomSampler(range(ROWS), replacement=True)
        ),
        "subset": LOADER(Pairs(), 4, sampler=data.SubsetRandomSampler(range(10))),
        "generator": LOADER(
            Pairs(), 4, sampler=data.SubsetRandomSampler(range(10), generator=own)
        ),
        "batches": LOADER(
            Pairs(),
            batch_sampler=data.BatchSampler(
                data.RandomSampler(range(ROWS)), 5, drop_last=True
            ),
        ),
        "whole": LOADER(Whole(), batch_size=None, sampler=[3, 1, 2]),
    }


@pytest.mark.parametrize("name", sorted(samplers()))
def test_samplers_draw_alike_in_every_process(name: str) -> None:
    loader = samplers()[name]
    found, other = source(loader), source(samplers()[name])
    assert isinstance(found, DrawnBatches)
    assert found.mixing == "nothing"
    state = torch.random.get_rng_state().tolist()
    orders = [drawn(found, epoch) for epoch in range(3)]
    assert drawn(other, 2) == orders[2]
    assert drawn(found, 0) == orders[0]
    assert torch.random.get_rng_state().tolist() == state
    if name != "whole":
        assert orders[0] != orders[1] != orders[2]


class OwnNumbers(data.Sampler[int]):
    """Draws in some way of its own."""

    def __init__(self, way: str) -> None:
        self.way, self.rng = way, np.random.default_rng(5)
        self.torch = torch.Generator()
        self.torch.manual_seed(4)

    def __len__(self) -> int:
        return ROWS

    def __iter__(self) -> Iterator[int]:
        if self.way == "torch":
            return iter(torch.randperm(ROWS, generator=self.torch).tolist())
        fresh = self.way == "fresh"
        rng = np.random.default_rng() if fresh else self.rng
        return iter(rng.permutation(ROWS).tolist())


@pytest.mark.parametrize("way", ["numpy", "torch", "fresh"])
def test_every_item_comes_once_however_a_sampler_draws(way: str) -> None:
    loader = LOADER(Pairs(), 4, sampler=OwnNumbers(way))
    found = source(loader, epochs=range(1, 4))
    assert isinstance(found, FedSource if way == "fresh" else DrawnBatches)
    with found.serving():
        late = pickle.loads(cloudpickle.dumps(found))
        if (
            way != "fresh"
        ):  # those are drawn once, and the first epochs go for later ones
            assert sorted(drawn(late, 3)) == sorted(Y)
        chunks = range(len(found.chunk_rows))
        for epoch in (1, 2, 3):
            parts = [(found, late)[c % 2].read(c, epoch).rows[1] for c in chunks]
            assert sorted(np.concatenate(parts)) == sorted(Y)
        assert found.state_of(2) == late.state_of(2)
    assert bool(found.notes) == (way == "fresh")


def test_batches_that_are_padded_stay_together() -> None:
    found = source(LOADER(Pairs(), 4, shuffle=True, collate_fn=pad))
    assert isinstance(found, DrawnBatches)
    assert sorted(drawn(found, 1)) == Y.tolist()
    widths = {found.read(c, 0).take(np.arange(2))[0].shape[1] for c in range(6)}
    assert len(widths) > 1


def test_an_epoch_must_have_as_many_batches_as_the_first() -> None:
    class Growing:
        size = 1

        def __iter__(self) -> Iterator[list[int]]:
            self.size += 1
            return iter([[n] for n in range(self.size)])

    found = source(LOADER(Pairs(), batch_sampler=Growing()))
    with pytest.raises(DataError, match="gave 3 batches in epoch 1"):
        found.read(0, 1)


def test_a_stream_in_shards_is_as_a_process_of_the_loader(tmp_path: Path) -> None:
    found = source(LOADER(Stream(), 4), shards=3)
    assert isinstance(found, ShardedSource)
    assert found.chunk_rows == (8, 7, 7)
    order = np.concatenate([np.arange(n, ROWS, 3) for n in range(3)])
    expected = (ALL[0][order], Y[order])
    check_laws(found, expected)
    assert data.get_worker_info() is None
    check_travels(found, expected, tmp_path)


def test_a_stream_goes_on_for_steps() -> None:
    found = source(LOADER(SizedStream(), 11), steps_per_epoch=3, epochs=range(2))
    with found.serving():
        assert drawn(found, 1) == [*Y[11:], *Y]
    # As many steps as there are batches: a pass, with its short batch.
    found = source(LOADER(SizedStream(), 4), steps_per_epoch=6, epochs=range(2))
    with found.serving():
        assert drawn(found, 1) == Y.tolist()


# The loader forks, as it does under Keras, and its processes do not touch JAX.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_processes_of_a_stream_end() -> None:
    found = source(LOADER(SizedStream(), 4, num_workers=1), steps_per_epoch=2)
    assert isinstance(found, FedSource)
    with found.serving():
        assert found.read(1, 0).rows[1].tolist() == Y[4:8].tolist()


def test_tensors_become_arrays() -> None:
    tensors = {
        "grad": torch.ones(2, requires_grad=True),
        "bf16": torch.ones(2, dtype=torch.bfloat16),
    }
    found = as_arrays(tensors)
    assert found["bf16"].dtype == np.float32
    assert ArraySource(found).take(slice(0, 1))["grad"].tolist() == [1.0]
    assert source_of(tensors["grad"]) is None


@pytest.mark.parametrize("name", ["y", "sample_weight"])
def test_targets_are_in_it(name: str) -> None:
    more: dict[str, Any] = {name: YT}
    with pytest.raises(DataError, match=f"{name} is given beside x, which is a torch"):
        source_of(LOADER(Pairs()), **more)


def test_error_names_what_cannot_be_pickled() -> None:
    dataset = Pairs()
    dataset.lock = threading.Lock()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(DataError, match="cannot be sent to workers"):
        source_of(dataset)


def test_a_data_set_without_a_length_is_refused() -> None:
    class Unsized(data.Dataset):
        def __getitem__(self, index: int) -> Any:
            return XT[index]

    with pytest.raises(DataError, match="has no length"):
        source_of(Unsized())


def test_an_empty_data_set_is_refused() -> None:
    few = data.TensorDataset(XT[:2])
    for empty in (data.TensorDataset(XT[:0]), LOADER(few, 4, drop_last=True)):
        with pytest.raises(DataError, match="has 0 items"):
            source_of(empty)
