"""Predictions as columns of frames of a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from pyspark.ml import PipelineModel

from shoal.errors import ConfigError, DataError
from shoal.runs.summary import RunSummary
from shoal.spark import AccuracyEvaluator, ModelPredictor, compare, evaluate
from tests.habits.cases import data, make_model

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.process]

ROWS = 640


@pytest.fixture(scope="module")
def frame(spark: Any) -> Iterator[Any]:
    """Vectors and numbers, in partitions of which one is empty."""
    from pyspark.ml.linalg import Vectors

    x, y = data(ROWS)
    listed = [
        (Vectors.dense(one.tolist()), float(one[0]), int(label), number)
        for number, (one, label) in enumerate(zip(x, y, strict=True))
    ]
    made = spark.createDataFrame(listed, ["features", "first", "label", "id"])
    yield made.repartition(5, "label").cache()
    made.unpersist()


def test_predictions_are_those_of_keras(frame: Any) -> None:
    model = make_model()
    predictor = ModelPredictor(model, "features", "prediction", batch_size=100)
    made = predictor.predict(frame)
    assert made.toDF() is made
    assert made.toDF("a", "b", "c", "d", "e").columns == ["a", "b", "c", "d", "e"]
    assert made.columns == [*frame.columns, "prediction"]
    rows = sorted(made.collect(), key=lambda row: row.id)
    found = np.array([row.prediction.toArray() for row in rows])
    x, _ = data(ROWS)
    np.testing.assert_allclose(found, model.predict(x, verbose=0), atol=1e-5)
    assert rows[0].features.toArray() == pytest.approx(x[0])


def test_the_model_is_sent_again_where_it_has_changed(frame: Any) -> None:
    model = make_model()
    predictor = ModelPredictor(model)
    few = frame.limit(3)
    predictor.transform(few)
    first = predictor._sent
    predictor.transform(few)
    assert predictor._sent is first
    model.set_weights([0 * weight for weight in model.get_weights()])
    [row] = predictor.transform(frame).limit(1).collect()
    assert set(row.prediction.toArray()) == {1 / len(row.prediction)}


def test_several_inputs_and_outputs(frame: Any) -> None:
    number, vector = keras.Input((1,), name="number"), keras.Input((8,), name="vector")
    outputs = {"a": vector, "b": keras.ops.multiply(number, 2.0)}
    model = keras.Model({"number": number, "vector": vector}, outputs)
    inputs = {"number": "first", "vector": "features"}
    made = ModelPredictor(model, inputs, "p").transform(frame)
    for row in made.limit(20).collect():
        assert row.p_a.toArray() == pytest.approx(row.features.toArray(), rel=1e-6)
        assert row.p_b[0] == pytest.approx(2 * row.first, rel=1e-6)


def test_params_of_spark(frame: Any, tmp_path: Path) -> None:
    model = make_model()
    predictor = ModelPredictor(model, output_col="p")
    assert "batchSize: rows of a step (current: 256)" in predictor.explainParams()
    made = predictor.transform(frame, {predictor.outputCol: "other"})
    assert made.columns[-1] == "other"
    assert predictor.transform(frame).columns[-1] == "p"
    PipelineModel([predictor]).write().overwrite().save(f"{tmp_path}/saved")
    loaded: Any = PipelineModel.load(f"{tmp_path}/saved").stages[0]
    assert loaded.transform(frame).columns[-1] == "p"
    x, _ = data(3)
    np.testing.assert_array_equal(loaded.keras_model(x), model(x))


def test_wrong_columns_are_refused(frame: Any, spark: Any) -> None:
    predictor = ModelPredictor(make_model(), output_col="label")
    with pytest.raises(ConfigError, match="there is a column 'label' already"):
        predictor.transform(frame)
    with pytest.raises(ConfigError, match="a list was passed"):
        predictor.predict([])
    with pytest.raises(DataError, match="Did you mean 'features'"):
        ModelPredictor(make_model(), "feature").transform(frame)


# ------------------------------------------------------------------ evaluation


def test_metrics_are_those_of_keras(frame: Any) -> None:
    model = make_model()
    model.compile(
        "sgd", "sparse_categorical_crossentropy", metrics=["accuracy"],
        weighted_metrics=[keras.metrics.SparseCategoricalCrossentropy(name="weighted")],
    )  # fmt: skip
    weighted = frame.withColumn("weight", frame.id % 3)
    found = evaluate(model, weighted, sample_weight="weight", batch_size=64)
    x, y = data(ROWS)
    weights = np.arange(ROWS) % 3
    expected = model.evaluate(
        x, y, sample_weight=weights, batch_size=64, verbose=0, return_dict=True
    )
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-5)


def test_evaluation_is_refused_in_a_sentence(frame: Any) -> None:
    model = make_model()
    with pytest.raises(DataError, match="no rows"):
        evaluate(model, frame.filter("id < 0"))
    with pytest.raises(DataError, match="executors could not evaluate") as told:
        evaluate(model, frame, features="first")
    assert ".scala" not in str(told.value)
    with pytest.raises(ConfigError, match="is not compiled"):
        evaluate(keras.Sequential([keras.Input((8,))]), frame)


# --------------------------------------------------------------------- streams


def scored(stream: Any, predictor: Any, folder: Path) -> list[Any]:
    """Runs a query on what a stream has, and returns its rows."""
    made = predictor.predict(stream)
    assert made.isStreaming
    query = (
        made.writeStream.format("memory").queryName("scored")
        .option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(120)
    return list(made.sparkSession.table("scored").collect())


def test_a_stream_of_files_is_scored(frame: Any, tmp_path: Path) -> None:
    rows = frame.select("features", "id").limit(100)
    rows.write.parquet(f"{tmp_path}/rows")
    session = frame.sparkSession
    stream = session.readStream.schema(rows.schema).parquet(f"{tmp_path}/rows")
    model = make_model()
    found = scored(stream, ModelPredictor(model), tmp_path / "state")
    assert len(found) == 100
    x = np.array([row.features.toArray() for row in found])
    expected = model.predict(x, verbose=0)
    got = np.array([row.prediction.toArray() for row in found])
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_a_stream_of_a_rate_source_is_scored(frame: Any, tmp_path: Path) -> None:
    session = frame.sparkSession
    stream = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 7)
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Rescaling(2.0)(inputs))
    made = ModelPredictor(model, ["value"]).predict(stream.load())
    query = (
        made.writeStream.format("memory").queryName("rate")
        .option("checkpointLocation", str(tmp_path)).start()
    )  # fmt: skip
    seen: list[Any] = []
    while len(seen) < 14 and query.isActive:
        query.awaitTermination(1)
        seen = session.table("rate").collect()
    query.stop()
    assert query.exception() is None
    assert {row.prediction[0] for row in seen} >= {2.0 * n for n in range(14)}


# ----------------------------------------------------------------- comparisons


class Ready:
    """A trainer whose model is trained already."""

    features_col, batch_size = "features", 10

    def __init__(self, model: Any) -> None:
        self.model, self.run = model, self

    def train(self, frame: Any) -> Any:
        return self.model

    def get_training_time(self) -> float:
        return 2.0

    def summary(self) -> RunSummary:
        return RunSummary(samples_committed=95, exchanges=3)


def test_trainers_are_compared(frame: Any) -> None:
    model = make_model()
    rows = frame.withColumn("label_index", frame.label.cast("double"))
    found = compare(rows, rows, {"a": Ready(model), "b": Ready(model)})
    x, y = data(ROWS)
    index = model.predict(x, verbose=0).argmax(1)
    f1 = 0.0
    for k in (0, 1):
        both, sizes = ((index == k) & (y == k)).sum(), (index == k).sum()
        f1 += 2 * both / (sizes + (y == k).sum()) * (y == k).mean()
    assert found.results == pytest.approx({"a": f1, "b": f1})
    assert (found.metric, found.entries[0].steps) == ("f1", 10)
    exact = compare(rows, rows, {"a": Ready(model)}, AccuracyEvaluator())
    assert exact.results["a"] == pytest.approx((index == y).mean())
