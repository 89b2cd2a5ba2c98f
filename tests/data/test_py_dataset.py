"""`keras.utils.PyDataset`: batches by number, changed between epochs."""

from __future__ import annotations

import os
import pickle
import random
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import keras
import numpy as np
import pytest

from shoal.data.adapting import source_of
from shoal.data.batches import Packing
from shoal.data.numbered import NumberedBatches
from shoal.data.reading import Reading
from shoal.errors import ConfigError, DataError
from tests.data.adapter_laws import ROWS, X, Y, check_laws, check_travels

BATCH = 4
COUNT = -(-ROWS // BATCH)


class Pairs(keras.utils.PyDataset):
    """As in the documentation of Keras; the last batch is short."""

    def __init__(self) -> None:
        super().__init__()
        self.order = np.arange(ROWS)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        rows = self.order[index * BATCH : (index + 1) * BATCH]
        return X[rows], Y[rows]


class Nested(Pairs):
    """Two inputs, two outputs, weights for each."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        weights = np.ones(len(y))
        return {"a": x, "b": x[:, :1]}, [y, y / 2], [weights, 2 * weights]


class InputsOnly(Pairs):
    """No targets."""

    def __getitem__(self, index: int) -> Any:
        x, _ = super().__getitem__(index)
        return {"a": x}


class Endless(keras.utils.PyDataset):
    """Has no end."""

    @property
    def num_batches(self) -> int | None:
        return None

    def __getitem__(self, index: int) -> Any:
        return np.full((2, 1), index), np.full(2, index)


class Shuffled(Pairs):
    """As most users shuffle; keeps an account of the calls."""

    calls: tuple[str, ...] = ()

    def on_epoch_begin(self) -> None:
        self.calls = (*self.calls, "begin")

    def on_epoch_end(self) -> None:
        self.calls = (*self.calls, "end")
        np.random.shuffle(self.order)
        random.random()


EXPECTED = {
    Pairs: (X.astype("f4"), Y),
    Nested: (
        {"a": X.astype("f4"), "b": X[:, :1].astype("f4")},
        [Y, (Y / 2).astype("f4")],
        [np.ones(ROWS, "f4"), np.full(ROWS, 2, "f4")],
    ),
    InputsOnly: {"a": X.astype("f4")},
}


def source(dataset: Any, **reading: Any) -> NumberedBatches:
    found = source_of(dataset, reading=Reading(**reading))
    assert isinstance(found, NumberedBatches)
    return found


@pytest.mark.parametrize("cls", EXPECTED)
def test_keeps_the_laws(cls: type[Pairs]) -> None:
    found = source(cls())
    assert (found.batch_size, found.mixing, found.is_exactly_once) == (4, "chunks", 1)
    assert found.kind == "keras PyDataset"
    check_laws(found, EXPECTED[cls])


def test_another_process_reads_it(tmp_path: Path) -> None:
    check_travels(source(Nested()), EXPECTED[Nested], tmp_path)


def test_copies_shuffle_alike_and_the_users_own_stays() -> None:
    dataset = Shuffled()
    one, other = source(dataset), source(Shuffled())
    before = np.random.get_state()[1].tolist()  # pyright: ignore

    def order(found: NumberedBatches, epoch: int) -> list[int]:
        parts = [found.read(c, epoch).rows[1] for c in range(COUNT)]
        return np.concatenate(parts).tolist()

    orders = [order(one, epoch) for epoch in range(3)]
    assert sorted(orders[2]) == sorted(orders[1]) == orders[0] == Y.tolist()
    assert orders[1] != orders[2] != orders[0] != orders[1]
    # One that joins late, and one that goes back for a lease given up.
    assert order(other, 2) == orders[2]
    assert order(one, 1) == orders[1]
    assert dataset.calls == ()
    assert dataset.order.tolist() == list(range(ROWS))
    assert np.random.get_state()[1].tolist() == before  # pyright: ignore


def test_hooks_are_called_as_keras_calls_them() -> None:
    found = source(Shuffled(), is_training=True)
    found.read(0, 2)
    copies: Any = found._read_batch
    theirs = Shuffled()
    model = keras.Sequential([keras.Input(X.shape[1:]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(theirs, epochs=3, verbose=0)
    assert (*copies._current.dataset.calls, "end") == theirs.calls


def test_hooks_are_called_as_keras_calls_them_to_predict() -> None:
    found = source(Shuffled())
    found.read(0, 0)
    copies: Any = found._read_batch
    theirs = Shuffled()
    model = keras.Sequential([keras.Input(X.shape[1:]), keras.layers.Dense(1)])
    model.predict(theirs, verbose=0)
    assert (*copies._current.dataset.calls, "end") == theirs.calls


class SelfMade(Pairs):
    """Shuffles in some way, with what numbers it makes itself."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.rng, self.seen = way, np.random.default_rng(5), 0
        self.words = {str(n): n for n in range(ROWS)}

    def __getitem__(self, index: int) -> Any:
        self.seen += index + 1
        if self.way == "a generator that reading draws from":
            self.rng.normal()
        return super().__getitem__(index)

    def on_epoch_end(self) -> None:
        self.order = WAYS[self.way](self)


WAYS: dict[str, Callable[[SelfMade], Any]] = {
    "a new generator": lambda _: np.random.default_rng().permutation(ROWS),
    "the system": lambda _: np.argsort([os.urandom(8) for _ in range(ROWS)]),
    "the clock": lambda _: np.random.RandomState(
        time.perf_counter_ns() % 2**32
    ).permutation(ROWS),
    "keras.random": lambda _: np.asarray(keras.random.shuffle(np.arange(ROWS))),
    "what was read": lambda d: np.random.default_rng(d.seen).permutation(ROWS),
    "a generator that reading draws from": lambda d: d.rng.permutation(ROWS),
    "its own generator": lambda d: d.rng.permutation(ROWS),
    "numpy": lambda _: np.random.permutation(ROWS),
    "python": lambda _: np.array(random.sample(range(ROWS), ROWS)),
}
ALIKE = ("its own generator", "numpy", "python")


@pytest.mark.parametrize("way", WAYS)
def test_every_sample_comes_once_however_a_data_set_shuffles(way: str) -> None:
    dataset = SelfMade(way)
    reading = Reading(epochs=range(2, 5), is_training=True, shuffle=True)
    found: Any = source_of(dataset, reading=reading)
    assert isinstance(found, NumberedBatches) == (way in ALIKE)
    with found.serving():
        copies = [found, pickle.loads(cloudpickle.dumps(found))]
        orders = [
            # Every other batch by another worker.
            np.concatenate([copies[c % 2].read(c, e).rows[1] for c in range(COUNT)])
            for e in range(2, 5)
        ]
        states = [copy.state_of(4) for copy in copies]
    assert [sorted(order) for order in orders] == [sorted(Y)] * 3
    assert len({tuple(order) for order in orders}) == 3
    assert states[0] == states[1]
    assert (dataset.seen, dataset.order.tolist()) == (0, [*range(ROWS)])
    if way not in ALIKE:
        assert "would leave another self.order" in found.notes[0]


def test_caches_of_reading_do_not_make_copies_differ() -> None:
    class Caching(Shuffled):
        kept: dict[int, Any]

        def __init__(self) -> None:
            super().__init__()
            self.kept, self.lock = {}, None

        def __getitem__(self, index: int) -> Any:
            self.kept[index] = super().__getitem__(index)
            return self.kept[index]

        def on_epoch_end(self) -> None:
            super().on_epoch_end()
            self.kept.clear()

    one, other = source(Caching()), source(Caching())
    one.read(3, 0)
    mine, theirs = one.state_of(1), other.state_of(1)
    assert {"self.order", "self.calls"} <= mine.keys() & theirs.keys()
    assert all(mine[name] == theirs.get(name, mine[name]) for name in mine)


def test_an_endless_data_set_continues_in_the_next_epoch() -> None:
    found = source(Endless(), steps_per_epoch=3)
    assert (found.chunk_rows, found.mixing) == ((2, 2, 2), "nothing")
    assert found.read(1, 2).rows[1].tolist() == [7, 7]


def test_without_an_end_steps_are_needed() -> None:
    with pytest.raises(ConfigError, match="Pass steps_per_epoch"):
        source_of(Endless())


@pytest.mark.parametrize("name", ["y", "sample_weight"])
def test_targets_are_in_it(name: str) -> None:
    with pytest.raises(DataError, match=f"{name} is given beside x, which is a keras"):
        source_of(Pairs(), **{name: Y})  # pyright: ignore[reportArgumentType]


def test_a_batch_of_another_size_is_named() -> None:
    class Odd(Pairs):
        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            return (x[:3], y[:3]) if index == 2 else (x, y)

    found = source(Odd())
    with pytest.raises(DataError, match="batch 2 of the keras PyDataset has 3 rows"):
        found.read(2, 0)


def test_a_last_batch_must_not_be_larger() -> None:
    def read_batch(index: int, epoch: int) -> Any:
        return np.ones((index + 1, 1))

    packing = Packing(kind="list", floatx="float32")
    with pytest.raises(DataError, match="batch 1 of the list has 2 rows"):
        NumberedBatches(read_batch, count=2, packing=packing)


def test_error_names_what_cannot_be_pickled() -> None:
    dataset = Pairs()
    dataset.lock = threading.Lock()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(DataError, match=r"Pairs\.lock cannot be pickled") as caught:
        source_of(dataset)
    assert "in __getitem__" in str(caught.value)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((X, Y, Y, Y), "has 4 parts"),
        (
            (X, Y[:3]),
            r"y has 3 rows but x has 22 \(batch 0 of the keras PyDataset, ",
        ),
        ((np.array(["a", "b"]),), "x has text, dtype <U1"),
        ({}, "has no arrays"),
        ((), "has 0 parts"),
        ((np.zeros((0, 2)),), "has no samples"),
        (3.5, "x is a float"),
    ],
)
def test_items_that_are_no_batches_are_refused(batch: Any, message: str) -> None:
    class Bad(Pairs):
        def __getitem__(self, index: int) -> Any:
            return batch

    with pytest.raises(DataError, match=message):
        source_of(Bad())


def test_an_empty_data_set_is_refused() -> None:
    class Empty(Pairs):
        def __len__(self) -> int:
            return 0

    with pytest.raises(DataError, match="has 0 batches"):
        source_of(Empty())
