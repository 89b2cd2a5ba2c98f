"""Transformers and evaluators of dist-keras on frames of a session."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from shoal import spark as shoal_spark
from shoal.errors import ConfigError, DataError
from shoal.spark import (
    AccuracyEvaluator,
    BinaryLabelTransformer,
    DenseTransformer,
    LabelIndexTransformer,
    LabelVectorTransformer,
    MinMaxTransformer,
    OneHotTransformer,
    ReshapeTransformer,
    StandardTransformer,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.process]

NAN = math.nan


@pytest.fixture(scope="module")
def frame(spark: Any) -> Any:
    from pyspark.ml.linalg import Vectors

    listed = [
        (Vectors.dense([0.0, 5.0, 10.0, 1.0]), Vectors.sparse(4, {1: 2.0}), 1.0, "a",
         [1, 2], Vectors.dense([0.2, 0.6, 0.2]), 0),
        (Vectors.dense([10.0, 0.0, 5.0, 2.0]), Vectors.sparse(4, {}), 3.0, "b",
         [3, 4], Vectors.dense([0.5, 0.1, 0.4]), 1),
        (Vectors.dense([1.0, 2.0, 3.0, 4.0]), Vectors.dense([1.0] * 4), 5.0, "a",
         [5, 6], Vectors.dense([NAN, NAN, NAN]), 2),
    ]  # fmt: skip
    names = ["dense", "sparse", "a.b", "text", "list", "p", "label"]
    return spark.createDataFrame(listed, names).coalesce(1).cache()


def taken(transformer: Any, frame: Any, name: str) -> list[Any]:
    made = transformer.transform(frame)
    assert made.toDF() is made
    rows = [row[name] for row in made.collect()]
    return [row.toArray().tolist() if hasattr(row, "toArray") else row for row in rows]


CASES: dict[str, tuple[Any, str, list[Any]]] = {
    "min-max of vectors": (
        lambda: MinMaxTransformer(0, 10, -1, 1, "dense", "new"), "new",
        [[-1, 0, 1, -0.8], [1, -1, 0, -0.6], [-0.8, -0.6, -0.4, -0.2]],
    ),
    "min-max of arrays": (
        lambda: MinMaxTransformer(0, 10, 0, 1, "list", "new"), "new",
        [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]],
    ),
    "min-max of numbers": (
        lambda: MinMaxTransformer(1, 5, 0, 1, "a.b", "new", False), "new", [0, 0.5, 1]
    ),
    "binary label": (
        lambda: BinaryLabelTransformer("text", "new", "a"), "new", [1.0, 0.0, 1.0]
    ),
    "standard, numbers": (
        lambda: StandardTransformer(["a.b", "list"][:1]), "a.b_normalized", [-1, 0, 1]
    ),
    "dense": (
        lambda: DenseTransformer("sparse", "new"), "new",
        [[0, 2, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]],
    ),
    "reshape": (
        lambda: ReshapeTransformer("dense", "new", (2, 2, 1)), "new",
        [[[[0], [5]], [[10], [1]]], [[[10], [0]], [[5], [2]]],
         [[[1], [2]], [[3], [4]]]],
    ),
    "one-hot": (
        lambda: OneHotTransformer(3, "label", "new"), "new",
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    ),
    "label vector": (
        lambda: LabelVectorTransformer(3), "label_vectorized",
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    ),
    "label index": (
        lambda: LabelIndexTransformer(3, "p", "new", 2), "new", [1.0, 0.0, 2.0]
    ),
    "label index, threshold": (
        lambda: LabelIndexTransformer(3, "p", "new", 0, 0.15), "new", [0.0, 0.0, 0.0]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_of_each_transformer(frame: Any, name: str) -> None:
    make, column, expected = CASES[name]
    found = taken(make(), frame, column)
    for row, right in zip(found, expected, strict=True):
        flat = isinstance(right, list) and isinstance(right[0], list)
        assert row == right if flat else row == pytest.approx(right)


def test_vectors_are_standardised_as_spark_does(frame: Any) -> None:
    found = taken(StandardTransformer(["dense"], "_z"), frame, "dense_z")
    column = [row[3] for row in found]
    assert sum(column) == pytest.approx(0)
    assert sum(value**2 for value in column) / 2 == pytest.approx(1)


def test_both_names_of_the_index(frame: Any) -> None:
    made = LabelIndexTransformer(3, "p").transform(frame)
    assert made.columns[-2:] == ["prediction_index", "predicted_index"]
    assert made.schema["predicted_index"].dataType.simpleString() == "double"


def test_transformers_are_saved_in_pipelines(frame: Any, tmp_path: Path) -> None:
    from pyspark.ml import PipelineModel

    stages: list[Any] = [
        OneHotTransformer(3, "label", "y"),
        ReshapeTransformer("dense", "x", [2, 2]),
    ]
    PipelineModel(stages).write().overwrite().save(f"{tmp_path}/pipeline")
    loaded = PipelineModel.load(f"{tmp_path}/pipeline")
    [row] = loaded.transform(frame).limit(1).collect()
    assert (row.x, row.y.toArray().tolist()) == ([[0, 5], [10, 1]], [1, 0, 0])
    assert loaded.stages[0].uid == stages[0].uid


BAD: dict[str, tuple[Any, Any, str]] = {
    "an index": (
        lambda: OneHotTransformer(2, "label", "new"), Exception,
        r"has the index 2\.0\. Expected a whole number from 0 to 1",
    ),
    "a shape": (
        lambda: ReshapeTransformer("dense", "new", (3, 3)), Exception,
        r"has a row of 4 values. Expected 9 for shape \[3, 3\]",
    ),
    "a column": (
        lambda: DenseTransformer("dens", "new"), DataError, "Did you mean 'dense'"
    ),
    "text": (lambda: DenseTransformer("text", "new"), DataError, "holds string"),
    "a range": (lambda: MinMaxTransformer(1, 1, 0, 1, "a", "b"), ConfigError, "range"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_wrong_columns_and_params_are_refused(frame: Any, name: str) -> None:
    make, error, said = BAD[name]
    with pytest.raises(error, match=said):
        make().transform(frame).collect()


def test_accuracy(frame: Any) -> None:
    hot = OneHotTransformer(3, "label", "y").transform(frame)
    assert AccuracyEvaluator("label", "p").evaluate(hot) == pytest.approx(0)
    assert AccuracyEvaluator("y", "label").evaluate(hot) == 1.0
    assert AccuracyEvaluator().isLargerBetter()


def test_a_star_import_has_what_the_notebook_uses() -> None:
    used = {
        "SingleTrainer", "EASGD", "AsynchronousEASGD", "AsynchronousEAMSGD",
        "DOWNPOUR", "ModelPredictor", "LabelVectorTransformer",
        "LabelIndexTransformer", "shuffle",
    }  # fmt: skip
    assert used <= set(shoal_spark.__all__)
