"""`shoal.data.adapt` against Keras' own `adapt` on all rows."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from shoal.data import ChunkedSource, adapt, open_files
from shoal.data.chunks import ArrayChunk
from shoal.data.moments import Moments, merge
from shoal.errors import ConfigError, DataError
from tests.data.files.writing import csv_bytes, image_bytes, parquet_bytes

# Of the function itself: running doctests of one file imports that file once more.
SCALING: dict[str, Any] = adapt.__globals__
RNG = np.random.default_rng(7)
X = (RNG.normal(size=(103, 3)) * [1, 5, 0.1] + [0, 100, -3]).astype("f4")
Y = RNG.normal(size=103).astype("f4")


class Chunks(ChunkedSource):
    """Rows in chunks of a few; knows which threads have read it."""

    def __init__(self, rows: Any, size: int = 10) -> None:
        self.rows, self.size = rows, size
        self.readers: set[str] = set()

    @property
    def chunk_rows(self) -> list[int]:
        count = len(self.rows)
        return [min(self.size, count - at) for at in range(0, count, self.size)]

    @property
    def size_bytes(self) -> int:
        return self.rows.nbytes

    def read(self, chunk: int, epoch: int) -> ArrayChunk:
        assert epoch == 0
        self.readers.add(threading.current_thread().name)
        at = chunk * self.size
        return ArrayChunk(self.rows[at : at + self.size])


class Pairs(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * 10, index * 10 + 10)
        return {"a": X[rows], "b": X[rows, :1]}, Y[rows]


def expected(values: Any, **settings: Any) -> Any:
    layer = keras.layers.Normalization(**settings)
    layer.adapt(np.asarray(values))
    return layer


def check_same(found: Any, wanted: Any) -> None:
    assert found.built
    for name in ("adapt_mean", "adapt_variance", "mean", "variance"):
        one, other = (np.asarray(getattr(x, name)) for x in (found, wanted))
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert found.count.shape == wanted.count.shape


# The arithmetic.


@given(
    arrays.arrays(
        np.float64,
        st.tuples(st.integers(1, 40), st.integers(1, 3), st.integers(1, 3)),
        elements=st.floats(-1e3, 1e3, width=32),
    ),
    st.sets(st.sampled_from([1, 2])),
    st.lists(st.integers(1, 39), max_size=5),
)
def test_parts_of_any_size_merge_to_the_moments_of_all(
    values: Any, keep: set[int], cuts: list[int]
):
    kept = tuple(sorted(keep))
    bounds = sorted({0, len(values), *(cut for cut in cuts if cut < len(values))})
    parts = [Moments.of(values[a:b], kept) for a, b in pairwise(bounds)]
    axes = tuple({0, 1, 2} - keep)
    found = merge(parts)
    assert found.count == np.prod([values.shape[axis] for axis in axes])
    np.testing.assert_allclose(found.mean, values.mean(axes), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.variance, values.var(axes), rtol=1e-7, atol=1e-6)
    backwards = merge(reversed(parts))
    np.testing.assert_allclose(backwards.mean, found.mean, rtol=1e-9, atol=1e-9)


def test_a_spread_that_is_small_against_the_mean_keeps_its_digits():
    seconds = 1.7e9 + RNG.normal(size=(1000, 1))
    found = merge(Moments.of(seconds[n : n + 10], (1,)) for n in range(0, 1000, 10))
    np.testing.assert_allclose(found.variance, seconds.var(0), rtol=1e-6)


# What the layer is left with.


@pytest.mark.parametrize("is_inverse", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((53,), None),
        ((53, 1), -1),
        ((53, 4), None),
        ((53, 4), -1),
        ((53, 4), 1),
        ((53, 4, 3), None),
        ((53, 4, 3), -1),
        ((53, 4, 3), 1),
        ((53, 4, 3), (1, 2)),
        ((53, 4, 3), (-1, 1)),
        ((53, 2, 4, 3), (1, -1)),
    ],
)
def test_every_axis_is_as_keras_has_it(shape: Any, axis: Any, is_inverse: bool):
    rows = (RNG.normal(size=shape) * 3 + 7).astype("f4")
    wanted = expected(rows, axis=axis, invert=is_inverse)
    for source in (rows, Chunks(rows)):
        layer = keras.layers.Normalization(axis=axis, invert=is_inverse)
        adapt(layer, source)
        check_same(layer, wanted)
        np.testing.assert_allclose(layer(rows), wanted(rows), rtol=1e-4, atol=1e-5)


@settings(max_examples=20)
@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 300))
def test_pieces_chunks_and_readers_change_nothing(size: int, workers: int, piece: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCALING, "PIECE_BYTES", piece)
        layer = keras.layers.Normalization()
        adapt(layer, Chunks(X, size), workers=workers)
    check_same(layer, expected(X))


def test_a_built_layer_is_adapted_anew_and_saved(tmp_path: Path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Normalization()])
    adapt(model.layers[0], 5 * X)
    adapt(model.layers[0], X)
    check_same(model.layers[0], expected(X))
    model.save(tmp_path / "model.keras")
    again: Any = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(X), model(X))


def test_float64_keeps_its_digits_although_keras_trains_in_float32():
    seconds = 1.7e9 + RNG.normal(size=(1000, 1))
    layer = keras.layers.Normalization()
    adapt(layer, seconds)
    np.testing.assert_allclose(layer.variance[0, 0], seconds.var(), rtol=1e-5)


def large(keys: list[str], objects: list[Any]) -> Any:
    rows = np.concatenate([np.load(stream) for stream in objects])
    return rows, None, len(rows)


@pytest.mark.parametrize("preprocess", [None, large])
@pytest.mark.parametrize("is_opened", [False, True])
def test_float64_of_files_keeps_its_digits(
    tmp_path: Path, preprocess: Any, is_opened: bool
):
    seconds = 1.7e9 + RNG.normal(size=(1000, 1))
    np.save(tmp_path / "a.npy", seconds)
    layer = keras.layers.Normalization()
    told: dict[str, Any] = {"preprocess": preprocess}
    if is_opened:
        adapt(layer, open_files(tmp_path, **told))
    else:
        adapt(layer, tmp_path, **told)
    np.testing.assert_allclose(layer.variance[0, 0], seconds.var(), rtol=1e-5)


# What may be a source.


def generator() -> Iterator[Any]:
    for number in range(10):
        yield X[number * 10 : number * 10 + 10], Y[number * 10 : number * 10 + 10]


def test_a_generator_is_read_once():
    layer = keras.layers.Normalization()
    adapt(layer, generator(), steps_per_epoch=10)
    check_same(layer, expected(X[:100]))


def test_a_dataset_fn_and_its_streams():
    layer = keras.layers.Normalization()
    adapt(layer, lambda shard: shard.of([(X[:60],), (X[60:],)] * 4), workers=2)
    check_same(layer, expected(X))


def test_a_py_dataset_with_the_input_named():
    layer = keras.layers.Normalization()
    adapt(layer, Pairs(), input="a", workers=2)
    check_same(layer, expected(X))


def test_a_tf_dataset_that_only_the_driver_reads():
    tensorflow: Any = pytest.importorskip("tensorflow")
    layer = keras.layers.Normalization()
    dataset = tensorflow.data.Dataset.from_tensor_slices((X, Y)).batch(10)
    adapt(layer, dataset, workers=2)
    check_same(layer, expected(X))


def test_a_torch_loader():
    torch: Any = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    layer = keras.layers.Normalization()
    adapt(layer, torch.utils.data.DataLoader(data, batch_size=16))
    check_same(layer, expected(X))


def test_inputs_in_a_list_are_named_by_their_places():
    layer = keras.layers.Normalization()
    adapt(layer, [X[:, :1], X], input=1)
    check_same(layer, expected(X))


@pytest.mark.parametrize("workers", [None, 1, 3])
@pytest.mark.parametrize("ends", ["parquet", "csv"])
def test_files(ends: str, workers: int | None, tmp_path: Path):
    pytest.importorskip("pyarrow")
    write = parquet_bytes if ends == "parquet" else csv_bytes
    for number, rows in enumerate(np.split(X, [0, 10, 50])):
        if ends == "parquet" or len(rows):
            columns = {name: rows[:, n] for n, name in enumerate("abc")}
            (tmp_path / f"{number}.{ends}").write_bytes(write(columns))
    layer = keras.layers.Normalization()
    adapt(layer, str(tmp_path), features=["a", "b", "c"], workers=workers)
    check_same(layer, expected(X))
    one = keras.layers.Normalization()
    adapt(one, tmp_path, features={"left": ["a", "b"], "right": "c"}, input="left")
    check_same(one, expected(X[:, :2]))


def test_images_have_a_mean_for_each_channel(tmp_path: Path):
    pytest.importorskip("PIL")
    pixels = RNG.integers(0, 255, (6, 5, 4, 3), dtype="u1")
    (tmp_path / "cat").mkdir()
    for number, image in enumerate(pixels):
        (tmp_path / "cat" / f"{number}.png").write_bytes(image_bytes(image))
    layer = keras.layers.Normalization()
    adapt(layer, str(tmp_path), label=())
    check_same(layer, expected(pixels.astype("f4")))


# How it is read.


def test_memory_is_bounded_by_chunks_and_not_by_the_data():
    class Wide(Chunks):
        """A megabyte a chunk, made when it is read."""

        def read(self, chunk: int, epoch: int) -> ArrayChunk:
            return ArrayChunk(np.full((256, 1024), chunk, np.float32))

        @property
        def chunk_rows(self) -> list[int]:
            return [256] * 64

        @property
        def size_bytes(self) -> int:
            return 64 << 20

    layer = keras.layers.Normalization()
    adapt(layer, Wide(X))  # what Keras makes the first time is not counted
    tracemalloc.start()
    try:
        adapt(layer, Wide(X), workers=2)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(layer.mean[0, 0], 31.5)
    np.testing.assert_allclose(layer.variance[0, 0], np.var(np.arange(64)))


def test_readers_are_threads_and_none_without_need(monkeypatch: pytest.MonkeyPatch):
    alone = Chunks(X)
    adapt(keras.layers.Normalization(), alone)
    assert alone.readers == {threading.main_thread().name}
    both = Chunks(X)
    monkeypatch.setattr(SCALING["cloudpickle"], "loads", lambda _: both)
    adapt(keras.layers.Normalization(), both, workers=2)
    assert any(name.startswith("shoal-adapt") for name in both.readers)
    monkeypatch.setitem(SCALING, "MEMORY_BYTES", 150)  # one chunk has 120
    bounded = Chunks(X)
    adapt(keras.layers.Normalization(), bounded, workers=2)
    assert not any(name.startswith("shoal-adapt") for name in bounded.readers)


# What is refused.


@pytest.mark.parametrize(
    ("layer", "source", "arguments", "text"),
    [
        (keras.layers.Rescaling(2.0), X, {}, "layer=Rescaling cannot be adapted"),
        (keras.layers.StringLookup(), X, {}, "Call layer.adapt"),
        (keras.layers.Normalization(mean=0, variance=1), X, {}, "with mean= and"),
        (keras.layers.Normalization(), Y, {}, r"axis=\(-1,\).*\(axis=None\)"),
        (keras.layers.Normalization(axis=2), X, {}, r"shape \(None, 3\)"),
        (keras.layers.Normalization(axis=0), X, {}, "axis 0 are the rows"),
        (keras.layers.Normalization(), [X, X], {}, r"are x\[0\], x\[1\]"),
        (keras.layers.Normalization(), X, {"input": "a"}, "input='a' names none"),
        (keras.layers.Normalization(), X, {"features": "a"}, "features='a' was"),
        (keras.layers.Normalization(), Chunks(X), {"label": "a"}, "label='a' was"),
        (keras.layers.Normalization(), X, {"workers": 0}, "workers=0"),
    ],
)
def test_wrong_layers_and_data_are_refused(
    layer: Any, source: Any, arguments: Any, text: str
):
    with pytest.raises(ConfigError, match=text):
        adapt(layer, source, **arguments)


def test_rows_of_another_shape_than_the_layer_was_built_for():
    with pytest.raises(DataError, match=r"built for \(3,\)"):
        adapt(expected(X), X[:, :2])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_leave_the_layer_as_it_was(bad: float):
    rows = X.copy()
    rows[77, 1] = bad
    layer = expected(X)
    with pytest.raises(DataError, match=r"not finite.*place \[1\]"):
        adapt(layer, Chunks(rows))
    check_same(layer, expected(X))


def test_a_chunk_that_cannot_be_read_ends_all_readers():
    class Broken(Chunks):
        def read(self, chunk: int, epoch: int) -> ArrayChunk:
            if chunk == 5:
                raise DataError("chunk 5 is bad")
            return super().read(chunk, epoch)

    layer = keras.layers.Normalization()
    with pytest.raises(DataError, match="chunk 5 is bad"):
        adapt(layer, Broken(X), workers=3)
    assert not layer.built


def test_a_file_that_goes_away_is_named(tmp_path: Path):
    for name in "ab":
        path = tmp_path / f"{name}.csv"
        path.write_bytes(csv_bytes({"a": [1, 2]}))
    source = open_files(str(tmp_path), features="a", label=())
    (tmp_path / "b.csv").unlink()
    with pytest.raises(DataError, match=r"b\.csv"):
        adapt(keras.layers.Normalization(axis=None), source)
