"""Predictions of a task, from Arrow arrays, without a session."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pytest

from shoal.data.files.selection import Selection, Stack
from shoal.errors import ConfigError, DataError, PlanError
from shoal.models.travel import pack, unpack
from shoal.spark.predicting import output_columns, output_names
from shoal.spark.scoring_task import Scorer, predict_rows, rows_of
from shoal.spark.sent_model import KEPT, SentModel

ROWS = np.random.default_rng(0).normal(size=(21, 4)).astype("f4")


class Sent:
    """Stands for a broadcast variable, and counts how often it is read."""

    def __init__(self, blob: bytes) -> None:
        self.blob, self.count = blob, 0

    @property
    def value(self) -> bytes:
        self.count += 1
        return self.blob


def sent(model: Any, key: str) -> SentModel:
    return SentModel(
        key=key, blob=Sent(pack(model, is_bare=True)), application="app",
        backend=keras.backend.backend(),
    )  # fmt: skip


def dense(**options: Any) -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, **options)])
    model.compile("adam", "mse")
    return model


def two_outputs() -> Any:
    left, right = keras.Input((2,), name="left"), keras.Input((2,), name="right")
    both = keras.layers.Concatenate()([left, right])
    outputs = {
        "wide": keras.layers.Reshape((2, 2))(keras.layers.Dense(4)(both)),
        "one": keras.layers.Dense(1)(left),
    }
    return keras.Model({"left": left, "right": right}, outputs)


def struct(**columns: Any) -> Any:
    return pa.StructArray.from_arrays(
        [pa.array(column) for column in columns.values()],
        names=[f"c{number}" for number in range(len(columns))],
    )


def selection(x: Any) -> Selection:
    return Selection(x=x, y=None, weight=None, floatx="float32")


def scorer(model: SentModel, x: Any = "x", outputs: Any = ("p",)) -> Scorer:
    return Scorer(model=model, selection=selection(x), outputs=outputs, batch_size=8)


def lists(found: Any, name: str = "o0") -> Any:
    return np.array([row[name] for row in found.to_pylist()])


# ----------------------------------------------------------------- predictions


def test_predictions_are_those_of_keras():
    model = dense()
    batches = [struct(x=list(ROWS[:20])), struct(x=[]), struct(x=list(ROWS[20:]))]
    found = list(scorer(sent(model, "dense"))(iter(batches)))
    assert [len(batch) for batch in found] == [20, 0, 1]
    got = np.concatenate([lists(found[0]), lists(found[2])])
    np.testing.assert_allclose(got, model.predict(ROWS, verbose=0), atol=1e-6)


def test_pandas_frames_give_the_same_predictions():
    model = sent(dense(), "pandas")
    batch = struct(x=list(ROWS))
    [arrow] = scorer(model)(iter([batch]))
    frame = pa.RecordBatch.from_struct_array(batch).to_pandas()
    frame["c1"] = False
    [pandas] = scorer(model).of_frames(iter([frame]))
    np.testing.assert_array_equal(np.stack(pandas["o0"]), lists(arrow))
    frame["c1"] = np.arange(len(frame)) == 3
    with pytest.raises(DataError, match="has 1 nulls, the first in row 3 of"):
        list(scorer(model).of_frames(iter([frame])))


def test_pandas_gives_nan_as_it_is():
    rows = ROWS.copy()
    rows[2, 1] = np.nan
    frame = pa.RecordBatch.from_struct_array(struct(x=list(rows))).to_pandas()
    frame["c1"] = False
    [found] = scorer(sent(dense(), "nan")).of_frames(iter([frame]))
    is_nan = np.isnan(np.stack(found["o0"])).all(1)
    np.testing.assert_array_equal(np.flatnonzero(is_nan), [2])


def test_several_inputs_and_outputs():
    model = two_outputs()
    assert output_names(model) == ("one", "wide")
    batch = struct(l=list(ROWS[:, :2]), a=ROWS[:, 2], b=ROWS[:, 3])
    x = {"left": "l", "right": Stack(("a", "b"))}
    [found] = scorer(sent(model, "two"), x, ("one", "wide"))(iter([batch]))
    expected = model.predict({"left": ROWS[:, :2], "right": ROWS[:, 2:]}, verbose=0)
    np.testing.assert_allclose(lists(found), expected["one"], atol=1e-6)
    flat = expected["wide"].reshape(21, 4)
    np.testing.assert_allclose(lists(found, "o1"), flat, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 7, 8, 21])
def test_a_fixed_batch_size_is_kept(rows: int):
    inputs = keras.Input(batch_shape=(8, 4))
    model = keras.Model(inputs, keras.ops.reshape(inputs, (8, 2, 2)))
    [found] = predict_rows(model, ROWS[:rows], 256)
    np.testing.assert_array_equal(found, ROWS[:rows].reshape(rows, 2, 2))


def test_predict_of_a_subclassed_model_is_called():
    class Twice(keras.Model):
        def call(self, x: Any) -> Any:
            return x

        def predict(self, x: Any, **options: Any) -> Any:
            return 2 * super().predict(x, **options)

    [found] = predict_rows(Twice(), ROWS, 8)
    np.testing.assert_array_equal(found, 2 * ROWS)


def test_a_model_is_opened_once_and_a_few_stay():
    model = sent(dense(), "once")
    assert model.open() is model.open()
    assert model.blob.count == 1
    for number in range(KEPT):
        sent(dense(), f"other {number}").open()
    model.open()
    assert model.blob.count == 2


def test_models_for_predictions_go_without_their_optimizer():
    model = dense()
    model.optimizer.build(model.trainable_variables)
    assert len(pack(model, is_bare=True)) < len(pack(model))
    assert not unpack(pack(model, is_bare=True)).compiled


# ------------------------------------------------------------- what is refused


def test_a_model_of_another_backend_is_an_error():
    model = replace(sent(dense(), "backend"), backend="other")
    with pytest.raises(ConfigError, match="has the Keras backend"):
        model.open()


def test_a_model_that_cannot_be_opened_says_what_differs():
    blob = Sent(pack(dense(), is_bare=True)[:-9])
    model = replace(sent(dense(), "cut"), blob=blob, versions={"keras": "1.0"})
    with pytest.raises(PlanError, match=r"differs: keras .* \(here it is 1\.0\)"):
        model.open()


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ([[1.0, 2.0, 3.0, 4.0], None], "has 1 nulls, the first in row 22 of a part"),
        ([[1.0, 2.0], [3.0]], "has rows of shapes"),
        ([[1.0, 2.0]], r"(?s)cannot take x: .*Received x of"),
    ],
)
def test_rows_that_the_model_cannot_take_are_refused(column: Any, said: str):
    batches = iter([struct(x=list(ROWS)), struct(x=column)])
    with pytest.raises(DataError, match=said):
        list(scorer(sent(dense(), "refused"))(batches))


def test_outputs_without_a_column_are_refused():
    batch = struct(l=list(ROWS[:, :2]), r=list(ROWS[:, 2:]))
    one = scorer(sent(two_outputs(), "outputs"), {"left": "l", "right": "r"})
    with pytest.raises(DataError, match="2 outputs for 1 columns"):
        list(one(iter([batch])))


def test_columns_of_outputs():
    assert output_columns(dense(), "p") == ("p",)
    assert output_columns(two_outputs(), "p") == ("p_one", "p_wide")
    assert output_columns(two_outputs(), ["a", "b"]) == ("a", "b")
    with pytest.raises(ConfigError, match=r"1 columns .* were named for the outputs"):
        output_columns(two_outputs(), ["a"])


# --------------------------------------------------------------------- columns


def test_numbers_booleans_and_nested_lists():
    batch = struct(a=[1, 2], b=[True, False], c=[[[1.0], [2.0]], [[3.0], [4.0]]])
    x = rows_of(batch, selection({"a": "a", "b": "b", "c": "c"}))
    assert {name: (x[name].shape, x[name].dtype.name) for name in x} == {
        "a": ((2,), "int64"), "b": ((2,), "bool"), "c": ((2, 2, 1), "float32"),
    }  # fmt: skip


def test_the_package_loads_its_names_late():
    code = (
        "import sys, shoal.spark, shoal.spark.scoring_task\n"
        "print(*{name.partition('.')[0] for name in sys.modules} & "
        "{'pyspark', 'keras', 'jax', 'tensorflow', 'torch'})\n"
        "print(set(dir(shoal.spark)) - {name for name in shoal.spark.__all__ "
        "if getattr(shoal.spark, name)})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["", "set()"]
