"""The estimator in pipelines and searches, and what it saves, on a session."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from shoal.errors import ConfigError, DataError
from shoal.spark import KerasEstimator, KerasModel
from shoal.spark.estimator import divided
from shoal.spark.fit_request import read_request
from tests.habits.cases import data, make_model, weights_of
from tests.spark.processes import jobs_end

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore:unclosed running multiprocessing pool"),
]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "spark.md"
NAMES = [f"x{number}" for number in range(8)]
QUIET = {"run": False, "verbose": 0}

OTHER_PROCESS = """
import json, sys
from pyspark.ml import PipelineModel
from tests.spark.conftest import open_session
from tests.spark.test_estimator import numbers_of

session = open_session("local[1]", sys.argv[1] + "/other")
model = PipelineModel.load(sys.argv[1] + "/best")
rows = model.transform(session.read.parquet(sys.argv[1] + "/rows"))
found = {"rows": numbers_of(rows), "history": model.stages[-1].history}
session.stop()
print(json.dumps(found))
"""


@pytest.fixture
def threads_end() -> Iterator[None]:
    """Searches of Spark leave their threads to the garbage collector."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def rows(spark: Any) -> Any:
    """A number in each column, a word for the class, and which rows are held out."""
    x, y = data(320)
    listed = [
        (*map(float, one), "yes" if label else "no", number % 4 == 0, number)
        for number, (one, label) in enumerate(zip(x, y, strict=True))
    ]
    types = ", ".join(f"{name} double" for name in NAMES)
    made = spark.createDataFrame(listed, f"{types}, word string, held boolean, id int")
    return made.coalesce(1)  # each task that predicts imports Keras


def numbers_of(frame: Any) -> list[list[float]]:
    """The predictions of a pipeline, in the order of rows."""
    found = frame.select("id", "prediction", "probability").collect()
    return [
        [float(one.prediction), *map(float, one.probability)]
        for one in sorted(found, key=lambda one: one.id)
    ]


# ---------------------------------------------------------- pipelines, searches


def example() -> str:
    """The block of the page about pipelines."""
    fence, text = "```python\n", PAGE.read_text()
    [found] = [
        block.partition("```")[0]
        for block in text.split(fence)
        if "KerasEstimator(" in block.partition("```")[0]
    ]
    return found


@pytest.fixture(scope="module")
def searched(spark: Any, rows: Any, tmp_path_factory: Any) -> dict[str, Any]:
    """What the example leaves: names of its variables, and its folder."""
    folder, model = tmp_path_factory.mktemp("search"), make_model()
    names: dict[str, Any] = {
        "model": model, "df": rows, "numbers": NAMES, "folder": f"file://{folder}",
        "before": weights_of(model), "path": folder,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_RUNS", str(folder / "runs"))
        exec(example(), names)
    gc.collect()  # see `threads_end`
    return names


def test_a_search_of_two_threads_on_two_slots_ends_and_its_best_model_is_kept(
    spark: Any, rows: Any, searched: dict[str, Any]
) -> None:
    still, moving = searched["found"].avgMetrics
    assert moving > still
    assert searched["found"].bestModel.stages[-1].history["loss"]
    weights = zip(weights_of(searched["model"]), searched["before"], strict=True)
    for mine, other in weights:
        np.testing.assert_array_equal(mine, other)
    assert not rows.is_cached
    assert jobs_end(spark)


def test_another_process_predicts_the_same(rows: Any, searched: dict[str, Any]) -> None:
    expected = numbers_of(searched["scored"])
    rows.write.parquet(f"{searched['path']}/rows")
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, str(searched["path"])],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
        timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    there = json.loads(done.stdout.splitlines()[-1])
    assert there["history"] == searched["found"].bestModel.stages[-1].history
    np.testing.assert_allclose(there["rows"], expected, rtol=0, atol=1e-6)


def test_a_search_over_numbers_of_a_strategy(rows: Any, threads_end: None) -> None:
    from pyspark.ml.evaluation import RegressionEvaluator
    from pyspark.ml.tuning import TrainValidationSplit

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    estimator = KerasEstimator(
        model=model, featuresCols=NAMES, labelCol="x0", strategy="local_sgd",
        numWorkers=2, batchSize=8, cluster="inline", fitParams=QUIET,
    )  # fmt: skip
    grid = [
        {estimator.period: 3, estimator.epochs: 1},
        {estimator.period: 1, estimator.epochs: 4},
    ]
    search = TrainValidationSplit(
        estimator=estimator, estimatorParamMaps=grid, parallelism=2, seed=2,
        evaluator=RegressionEvaluator(labelCol="x0"), collectSubModels=True,
    )  # fmt: skip
    found = search.fit(rows)
    models: Any = found.subModels
    assert [len(one.history["loss"]) for one in models] == [1, 4]
    assert found.validationMetrics[1] < found.validationMetrics[0]
    assert found.bestModel.transform(rows).schema["prediction"].dataType.typeName() == (
        "double"
    )


# -------------------------------------------------------------------- training


def test_rows_that_are_held_out_are_not_trained_on(rows: Any) -> None:
    estimator = KerasEstimator(
        model=make_model(), featuresCols=NAMES, labelCol="y", weightCol="id",
        validationIndicatorCol="held", batchSize=16, epochs=2, cluster="inline",
        numWorkers=1, fitParams=QUIET,
    )  # fmt: skip
    model = estimator.fit(rows.withColumn("y", rows.word == "yes"))
    assert model.run.summary().samples_committed == 480
    assert len(model.history["val_loss"]) == 2
    assert model.uid == estimator.uid


def test_a_share_is_held_out_in_the_same_way_each_time(rows: Any) -> None:
    def sides(**params: Any) -> list[set[int]]:
        asked = KerasEstimator(featuresCols=NAMES, labelCol="word", **params)
        request = read_request(asked.values(), asked.given())
        return [{row.id for row in part.collect()} for part in divided(mixed, request)]

    mixed = rows.repartition(3)
    train, held = sides(validationSplit=0.25)
    assert train | held == set(range(320))
    assert not train & held
    assert 40 < len(held) < 120
    mixed = rows
    assert sides(validationSplit=0.25) == [train, held]
    assert sides(validationSplit=0.25, seed=5) != [train, held]


def test_several_inputs_and_outputs_have_a_column_each(
    spark: Any, rows: Any, tmp_path: Path
) -> None:
    left, right = keras.Input((2,), name="left"), keras.Input((6,), name="right")
    both = keras.layers.Concatenate()([left, right])
    kind = keras.layers.Dense(1, activation="sigmoid", name="kind")(both)
    size = keras.layers.Dense(2, name="size")(both)
    model = keras.Model([left, right], [kind, size])
    model.compile("sgd", ["binary_crossentropy", "mse"])
    estimator = KerasEstimator(
        model=model, inputCols={"left": NAMES[:2], "right": NAMES[2:]},
        labelCols={"kind": "y", "size": ["x0", "x1"]}, rawOutputCol="raw",
        cluster="inline", numWorkers=1, fitParams={"verbose": 0, "run": False},
    )  # fmt: skip
    frame = rows.withColumn("y", rows.word == "yes")
    made = estimator.fit(frame)
    estimator.save(f"{tmp_path}/estimator")
    again = KerasEstimator.load(f"{tmp_path}/estimator")
    assert again.explainParams() == estimator.explainParams().replace(
        str(model), str(again.getModel())
    )
    assert again.getModel().optimizer is not None

    made.save(f"{tmp_path}/model")
    loaded = KerasModel.load(f"{tmp_path}/model")
    found = loaded.transform(frame).orderBy("id").collect()
    x, _ = data(320)
    kinds, sizes = made.model.predict([x[:, :2], x[:, 2:]], verbose=0)
    assert_columns(found, "prediction_kind", (kinds[:, 0] > 0.5).astype(float))
    assert_columns(found, "probability_kind", np.hstack([1 - kinds, kinds]))
    assert_columns(found, "prediction_size", sizes)
    assert_columns(found, "raw_size", sizes)
    assert "probability_size" not in found[0]
    with zipfile.ZipFile(tmp_path / "model" / "model.keras") as archive:
        assert "config.json" in archive.namelist()


def assert_columns(rows: Any, name: str, expected: Any) -> None:
    np.testing.assert_allclose([row[name] for row in rows], expected, atol=1e-5)


# --------------------------------------------------------------------- columns


@pytest.mark.parametrize(
    ("task", "shape", "numbers", "prediction", "probability"),
    [
        ({}, (1,), [0.25], 0.25, None),
        ({}, (2,), [1.0, 2.0], [1.0, 2.0], None),
        ({}, None, [1.0], [1.0], None),
        ({"is_classification": True}, (3,), [0.2, 0.4, 0.4], 1.0, [0.2, 0.4, 0.4]),
        ({"is_classification": True}, (1,), [0.7], 1.0, [0.3, 0.7]),
        (
            {"is_classification": True, "from_logits": True}, (2,), [0.0, np.log(3.0)],
            1.0, [0.25, 0.75],
        ),
        (
            {"is_classification": True, "is_binary": True, "from_logits": True}, (1,),
            [-np.log(3.0)], 0.0, [0.75, 0.25],
        ),
        (
            {"is_classification": True, "is_binary": True}, (3,), [0.9, 0.1, 0.6],
            [1.0, 0.0, 1.0], [0.9, 0.1, 0.6],
        ),
        (
            {"is_classification": True}, (2, 2), [0.1, 0.9, 0.8, 0.2], [1.0, 0.0],
            [0.1, 0.9, 0.8, 0.2],
        ),
    ],
)  # fmt: skip
def test_columns_of_a_task(
    spark: Any, task: Any, shape: Any, numbers: Any, prediction: Any, probability: Any
) -> None:
    from shoal.spark import outcome_columns as made
    from shoal.spark.tasks import Task

    kind = Task(**{"is_classification": False, **task})
    frame = spark.createDataFrame([([*map(float, numbers)],)], "n array<double>")
    columns = [made.prediction(kind, shape, frame.n)]
    if probability is not None:
        columns.append(made.probability(kind, shape, frame.n))
    row = frame.select(*columns).first()
    np.testing.assert_allclose(row[0], prediction)
    if probability is not None:
        np.testing.assert_allclose(row[1], probability)


# ------------------------------------------------------------------- bad input


def test_nothing_is_started_for_bad_params(spark: Any, rows: Any) -> None:
    estimator = KerasEstimator(model=make_model(), featuresCols=NAMES, labelCol="wrd")
    with pytest.raises(DataError, match=r"'wrd'\. Did you mean 'word'"):
        estimator.fit(rows)
    with pytest.raises(ConfigError, match="fitParams has 'batch_size'"):
        estimator.setFitParams({"batch_size": 3}).fit(rows)
    with pytest.raises(ConfigError, match="KerasEstimator has no model"):
        KerasEstimator(featuresCols=NAMES, labelCol="word").fit(rows)
    with pytest.raises(ConfigError, match="has a column 'held'"):
        KerasModel(make_model(), featuresCols=NAMES, predictionCol="held").transform(
            rows
        )


def test_error_of_a_bad_folder_is_one_sentence(spark: Any, tmp_path: Path) -> None:
    model = KerasModel(make_model())
    model.save(f"{tmp_path}/model")
    is_there = r"(PATH_ALREADY_EXISTS|already exists).*overwrite\(\)"  # Spark 4 and 3.5
    with pytest.raises(DataError, match=is_there):
        model.save(f"{tmp_path}/model")
    with pytest.raises(DataError, match=r"PATH_NOT_FOUND|does not exist"):
        KerasModel.load(f"{tmp_path}/other")
    with pytest.raises(DataError, match=r"holds a shoal\.spark\.model\.KerasModel"):
        KerasEstimator.load(f"{tmp_path}/model")
    (tmp_path / "model" / "model.keras").unlink()
    with pytest.raises(DataError, match=r"model\.keras"):
        KerasModel.load(f"{tmp_path}/model")
