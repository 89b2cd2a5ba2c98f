"""Predictions as columns of frames of a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

from shoal.errors import ConfigError, DataError
from shoal.spark import ModelPredictor
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


def test_params_of_spark(frame: Any) -> None:
    predictor = ModelPredictor(make_model(), output_col="p")
    assert "batchSize: rows of a step (current: 256)" in predictor.explainParams()
    made = predictor.transform(frame, {predictor.outputCol: "other"})
    assert made.columns[-1] == "other"
    assert predictor.transform(frame).columns[-1] == "p"


def test_what_is_refused(frame: Any, spark: Any) -> None:
    predictor = ModelPredictor(make_model(), output_col="label")
    with pytest.raises(ConfigError, match="there is a column 'label' already"):
        predictor.transform(frame)
    with pytest.raises(ConfigError, match="a list was passed"):
        predictor.predict([])
    with pytest.raises(DataError, match="Did you mean 'features'"):
        ModelPredictor(make_model(), "feature").transform(frame)
