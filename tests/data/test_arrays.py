"""What is taken as data, in which dtype, and what is said about the rest.

Wherever Keras has an answer, its own adapter is asked for it.
"""

from __future__ import annotations

import datetime as dt
from collections import namedtuple
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pandas as pd
import pytest

from shoal.data.adapting import source_of
from shoal.data.sources import ArraySource
from shoal.data.training import training_data, unpack, weighted_source
from shoal.errors import ConfigError, DataError

Pair = namedtuple("Pair", "left right")
rng = np.random.default_rng(0)
X = rng.normal(size=(10, 3))


def keras_batch(
    x: Any, y: Any = None, sample_weight: Any = None, class_weight: Any = None
) -> Any:
    """The whole data as one batch of Keras' own adapter."""
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    adapter = ArrayDataAdapter(
        x, y, sample_weight=sample_weight, class_weight=class_weight, batch_size=1000
    )
    return next(iter(adapter.get_numpy_iterator()))


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, (list, tuple, dict)):
        assert type(one) is type(other)
        assert len(one) == len(other)
        keys = one if isinstance(one, dict) else range(len(one))
        for key in keys:
            assert_same(one[key], other[key])
    elif one is None:
        assert other is None
    else:
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


FRAME = pd.DataFrame({"a": np.arange(10), "b": np.arange(10) / 3})
CASES: dict[str, tuple[Any, ...]] = {
    "x": (X,),
    "x as float32": (X.astype("float32"), np.arange(10)),
    "x as integers": (np.arange(20).reshape(10, 2), np.arange(10)),
    "x as bytes and bools": (X.astype("uint8"), X[:, 0] > 0),
    "half precision": (X.astype("float16"), X.astype(ml_dtypes.bfloat16)),
    "only x in a list": ([X, X],),
    "only x in a tuple": ((X, X),),
    "only x in a dict": ({"a": X, "b": X},),
    "x and y": (X, np.arange(10)),
    "all three": (X, np.arange(10), np.ones(10)),
    "dicts": ({"b": X, "a": X[:, 0]}, {"p": X, "q": np.arange(10)}),
    "lists": ([X, [X, X[:, :1]]], [X, np.arange(10)]),
    "tuples": ((X, X), (X, X)),
    "named tuples": (Pair(X, X), X),
    "an output without a target": (X, [X, None]),
    "one weight for two outputs": (X, {"p": X, "q": X}, np.ones(10)),
    "one weight column for two outputs": (X, [X, X], np.ones((10, 1))),
    "weights per output": (X, [X, X], [np.ones(10), np.zeros(10)]),
    "other strides": (X[:, ::2], np.asfortranarray(X)),
    "pandas": (FRAME, FRAME["a"], FRAME["b"]),
    "pandas integers": (FRAME[["a"]], FRAME["b"]),
    "jax": (keras.ops.convert_to_tensor(X), keras.ops.arange(10)),
}


@pytest.mark.parametrize("case", list(CASES))
def test_batches_equal_those_of_keras(case: str):
    source = ArraySource(*CASES[case]) if len(CASES[case]) < 3 else weighted_source(
        CASES[case], None  # type: ignore[arg-type]
    )  # fmt: skip
    expected = keras_batch(*CASES[case])
    assert len(source) == 10
    assert_same(expected, source.take(slice(0, 10)))
    assert_same(expected, source.take(np.arange(10)))
    blob = ArraySource.from_blob(source.to_blob())
    assert blob.size_bytes == source.size_bytes
    # Named tuples do not survive JSON; models get plain ones.
    if case != "named tuples":
        assert_same(expected, blob.take(slice(0, 10)))


@pytest.mark.parametrize(
    ("y", "weights"),
    [
        (np.array([0, 1, 2, 1]), {0: 2.0, 1: 0.5}),
        (np.array([[0], [1], [2], [1]]), {0: 2.0, 2: 0.5}),
        (np.array([0.0, 1.0, 0.0, 1.0]), {1: 3.0}),
        (np.eye(3)[[2, 0, 1, 1]], {0: 1.5, 1: 2.5, 2: 3.5}),
        (np.array([True, False, True, True]), {1: 3.0}),
        (pd.Series([0, 1, 1, 0]), {0: 7.0}),
        (np.arange(8).reshape(4, 2, 1) % 3, {0: 7.0}),
    ],
)
def test_class_weights_equal_those_of_keras(y: Any, weights: dict[int, float]):
    x = np.ones((4, 2))
    source = weighted_source((x, y, None), weights)
    if np.ndim(y) == 3:  # Keras takes one number a sample only; ours go by position
        assert source.take(slice(0, 4))[2].shape == (4, 2)
        return
    assert_same(keras_batch(x, y, class_weight=weights), source.take(slice(0, 4)))


def test_validation_split_is_the_end_of_the_data():
    train, held_out = training_data(
        {"a": X}, np.arange(10), np.ones(10), validation_split=0.25
    )
    assert held_out is not None
    assert (len(train), len(held_out)) == (7, 3)
    assert list(train.take(slice(None))[1]) == list(range(7))
    assert list(held_out.take(slice(None))[1]) == [7, 8, 9]
    assert held_out.take(slice(None))[2].shape == (3,)


def test_validation_data_goes_before_the_split_and_has_no_class_weights():
    train, held_out = training_data(
        X, np.arange(10), class_weight={0: 3.0}, validation_split=0.5,
        validation_data=(X[:4], np.arange(4)),
    )  # fmt: skip
    assert held_out is not None
    assert (len(train), len(held_out)) == (10, 4)
    assert [len(s.take(slice(0, 1))) for s in (train, held_out)] == [3, 2]


def test_class_weights_are_for_the_training_part_of_a_split():
    train, held_out = training_data(
        X, np.arange(10), class_weight={0: 3.0}, validation_split=0.5
    )
    assert held_out is not None
    assert list(train.take(slice(0, 2))[2]) == [3.0, 1.0]
    assert len(held_out.take(slice(0, 2))) == 2


def test_no_validation():
    assert training_data(X)[1] is None


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_forms_of_validation_data(parts: int):
    assert unpack([X] * parts) == (X, *[X] * (parts - 1), *[None] * (3 - parts))


def test_validation_data_as_an_array():
    assert unpack(X) == (X, None, None)


# -------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([[1, 2], [3]],), r"x\[0\]\[0\] is an int"),
        ((np.array([[1, 2], [3]], dtype=object),), "x has rows of different lengths"),
        ((X, np.array(["a"] * 10)), "y has text"),
        ((X, np.array(["2020-01-01"] * 10, "datetime64[D]")), "y has dates or times"),
        ((X, np.arange(9)), "y has 9 rows but x has 10"),
        (({"a": X, "b": X[:3]},), r"x\['b'\] has 3 rows but x\['a'\] has 10"),
        ((X, X, np.ones(4)), "sample_weight has 4 rows"),
        ((X[:0],), "x has no samples"),
        ((None, X), "x is None"),
        (([],), r"x is \[\]"),
        ((np.float64(3.0),), "x is a single value"),
        (("file.csv",), "x is a str"),
        ((pd.DataFrame({"a": ["b"] * 10}),), "x has text"),
        (({(1, 2): X, 3.5: X},), None),
    ],
)
def test_objects_that_are_no_data_are_refused(
    arguments: tuple[Any, ...], words: str | None
):
    if words is None:
        with pytest.raises(DataError, match=r"has the key \(1, 2\) of type tuple"):
            ArraySource(*arguments).to_blob()
        return
    with pytest.raises(DataError, match=words):
        ArraySource(*arguments)


@pytest.mark.parametrize(
    ("y", "sample_weight", "words"),
    [
        ([X, X], [np.ones(10)], "not nested as y"),
        ({"a": X}, {"b": np.ones(10)}, "not nested as y"),
        ([X, X], np.ones((10, 2)), r"shape \(10, 2\) for several outputs"),
    ],
)
def test_weights_that_fit_no_output(y: Any, sample_weight: Any, words: str):
    with pytest.raises(DataError, match=words):
        weighted_source((X, y, sample_weight), None)


@pytest.mark.parametrize(
    ("y", "sample_weight", "words"),
    [
        (np.arange(10), np.ones(10), "both given"),
        (None, None, "no targets"),
        ([X, X], None, r"targets y\[0\], y\[1\]"),
    ],
)
def test_class_weights_that_fit_nothing(y: Any, sample_weight: Any, words: str):
    with pytest.raises(ConfigError, match=words):
        weighted_source((X, y, sample_weight), {0: 1.0})


@pytest.mark.parametrize("class_weight", [[1, 2], 3, {"a": 1.0}, {0: "heavy"}])
def test_class_weights_that_are_none(class_weight: Any):
    with pytest.raises(ConfigError, match="Expected a dict from the number"):
        weighted_source((X, np.arange(10), None), class_weight)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 1.5, 1e-17, 0.999, "a", [0.5]])
def test_splits_that_leave_nothing(fraction: float):
    with pytest.raises(ConfigError, match="validation_split"):
        training_data(X, validation_split=fraction)


def test_a_split_of_nothing():
    with pytest.raises(DataError, match="x is None"):
        training_data(None, validation_split=0.5)


@pytest.mark.parametrize("parts", [[], [X] * 4])
def test_validation_data_of_wrong_length(parts: list[Any]):
    with pytest.raises(ConfigError, match=f"validation_data has {len(parts)} parts"):
        training_data(X, validation_data=parts)


@pytest.mark.parametrize(
    "data",
    [(X, X[:3]), (None, X), (np.array(["a"] * 10), X), ({"a": [1]}, X), (X[:0],)],
)
def test_errors_name_the_argument_the_data_came_in(data: tuple[Any, ...]):
    """The error is in the validation data, not in the training data."""
    with pytest.raises(DataError, match=r"\(validation_data of fit\)"):
        training_data(X, X, validation_data=data)
    x, y, weights = (*data, None, None)[:3]
    with pytest.raises(DataError, match=r"\(data of predict\)"):
        weighted_source((x, y, weights), None, where="data of predict")


def test_errors_name_the_argument_the_weights_came_in():
    for sample_weight in (np.ones((10, 2)), [np.ones(10)]):
        with pytest.raises(DataError, match=r"\(data of evaluate\)"):
            weighted_source((X, [X, X], sample_weight), None, where="data of evaluate")


def test_a_table_with_text_names_its_column() -> None:
    table = pd.DataFrame({"size": [1.0, 2.0], "colour": ["red", "blue"]})
    with pytest.raises(DataError, match=r"not all numbers .*'colour'"):
        ArraySource(table)


TEXTS: dict[str, Any] = {
    "objects": np.array(["a", "b"] * 5, dtype=object).reshape(5, 2),
    "fixed width": np.array([["a"], ["bc"]] * 5),
    "bytes": np.array([b"a", b"b"] * 5),
    "bytes in objects": np.array([b"a", None] * 5, dtype=object),
    "series": pd.Series(["a", "b"] * 5),
    "pandas strings": pd.Series(["a", None] * 5, dtype="string"),
    "categories": pd.Series(["a", "b"] * 5, dtype="category"),
    "table": pd.DataFrame({"a": ["b"] * 10}),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_advice_about_text_is_about_text(kind: str):
    with pytest.raises(DataError, match="x has text") as caught:
        ArraySource(TEXTS[kind])
    told = str(caught.value)
    assert "np.unique" in told
    assert "Pad the rows" not in told
    assert "astype('float32')" not in told


def test_text_in_batches_is_named_with_its_batch():
    tf = pytest.importorskip("tensorflow")
    texts = tf.data.Dataset.from_tensor_slices(tf.constant([["a"], ["b"]])).batch(2)
    read: Any = source_of
    words = r"x has text, dtype object \(batch .* of the tf.data"
    with pytest.raises(DataError, match=words):
        read(texts).take(slice(0, 2))


@pytest.mark.parametrize(
    ("entries", "found", "advice"),
    [
        ([dt.date(2026, 1, 2)], "dates or times", "datetime64"),
        ([None, 1.0], "missing values", "NaN"),
        ([object()], "objects", "float32"),
        ([[1], [1, 2]], "rows of different lengths", "pad_sequences"),
    ],
)
def test_objects_are_told_apart(entries: list[Any], found: str, advice: str):
    values = np.empty(len(entries), dtype=object)
    values[:] = entries
    with pytest.raises(DataError, match=f"x has {found}.*{advice}"):
        ArraySource(values)
