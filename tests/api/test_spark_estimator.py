"""Params of the estimator, and what they ask of fit, without Spark's session."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal import strategies
from shoal.clusters import Spark
from shoal.errors import ConfigError, DataError
from shoal.spark import KerasEstimator, KerasModel
from shoal.spark.estimator import copied
from shoal.spark.fit_request import (
    OWN,
    WAIT_S,
    FitRequest,
    check_columns,
    check_model,
    read_request,
    set_rate,
)
from shoal.spark.model import names_of
from shoal.spark.model_shapes import input_names, output_shapes
from shoal.spark.params import NUMBERS, SCORING, TRAINING
from shoal.spark.saving import name_of, opened, saved
from shoal.spark.tasks import CLASSES, Task, losses_of, task_of, tasks_of, wished
from tests.habits.cases import make_model

TWO_CLASSES = Task(is_classification=True, is_binary=True)
COLUMNS = ["features", "label", "weight", "held"]


def asked(**params: Any) -> FitRequest:
    estimator = KerasEstimator(**params)
    return read_request(estimator.values(), estimator.given())


def two_ways() -> Any:
    """A model with two inputs and two outputs."""
    left, right = keras.Input((2,), name="left"), keras.Input((3,), name="right")
    both = keras.layers.Concatenate()([left, right])
    kind = keras.layers.Dense(3, activation="softmax", name="kind")(both)
    size = keras.layers.Dense(1, name="size")(both)
    model = keras.Model([left, right], {"size": size, "kind": kind})
    losses = {"size": "mse", "kind": "sparse_categorical_crossentropy"}
    model.compile("sgd", losses)
    return model


# ---------------------------------------------------------------------- params


def test_every_param_has_a_doc_a_setter_and_a_getter() -> None:
    estimator = KerasEstimator()
    told = estimator.explainParams().splitlines()
    assert [line.partition(":")[0] for line in told] == sorted([*SCORING, *TRAINING])
    for name, entry in {**SCORING, **TRAINING}.items():
        assert entry.doc in told[sorted([*SCORING, *TRAINING]).index(name)]
        word = name[0].upper() + name[1:]
        assert getattr(estimator, f"get{word}")() == entry.default
        assert entry.doc in getattr(estimator, f"set{word}").__doc__
    assert list(inspect.signature(KerasEstimator).parameters) == [*SCORING, *TRAINING]


def test_every_argument_of_fit_can_be_passed() -> None:
    arguments = inspect.signature(shoal.fit).parameters
    assert set(OWN) <= set(arguments)
    rest = {name: None for name in arguments if name not in OWN}
    found = asked(fitParams=rest).arguments
    assert {*found, *OWN} == set(arguments) | set(OWN)


def test_setters_follow_each_other_and_copies_differ() -> None:
    estimator = KerasEstimator(epochs=2).setBatchSize(8).setFeaturesCols(["a", "b"])
    copy = estimator.copy({estimator.epochs: np.int64(5)})
    assert (estimator.getEpochs(), copy.getEpochs(), copy.getBatchSize()) == (2, 5, 8)
    assert type(copy.getEpochs()) is int
    assert copy.uid == estimator.uid
    assert KerasEstimator(seed=None).getSeed() is None


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"epoch": 3}, r"unknown param of KerasEstimator 'epoch'\. Did you mean 'epo"),
        ({"epochs": 0}, "epochs=0 cannot be used"),
        ({"epochs": 1.5}, r"epochs=1\.5 cannot be used"),
        ({"learningRate": -1}, "learningRate=-1 cannot be used"),
        ({"learningRate": "fast"}, "learningRate='fast' cannot be used"),
        ({"validationSplit": 1}, "from 0 to below 1"),
        ({"labelCol": ["y"]}, r"labelCol=\['y'\] cannot be used"),
        ({"featuresCols": "ab"}, "a list of names of columns"),
        ({"inputCols": ["a"]}, "a mapping to names of columns"),
        ({"numWorkers": "all"}, "numWorkers='all' cannot be used"),
        ({"numWorkers": [1, 2, 3]}, 'a number, .least, most. or "auto"'),
        ({"strategy": "aeasg"}, "Did you mean 'aeasgd'"),
        ({"task": "ranking"}, "one of 'auto', 'classification', 'regression'"),
        ({"fitParams": 3}, "a mapping from names"),
    ],
)
def test_wrong_values_are_refused_when_they_are_set(
    params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        KerasEstimator(**params)


def test_strategies_are_stored_as_text_where_text_is_complete() -> None:
    mine = type("Mine", (strategies.LocalSGD,), {"name": "mine"})()
    estimator = KerasEstimator(strategy=strategies.AEASGD(period=3, beta=0.5))
    assert estimator.getStrategy() == "aeasgd:period=3,beta=0.5"
    assert KerasEstimator(strategy=mine).getStrategy() == mine
    scaled = strategies.AllReduce(scale_learning_rate=True)
    text = KerasEstimator(strategy=scaled).getStrategy()
    assert text == "all_reduce:scale_learning_rate=true"


# -------------------------------------------------------------------- requests


def test_the_defaults_are_those_of_fit() -> None:
    request = asked()
    assert (request.features, request.label) == ("features", "label")
    assert request.columns == ["features", "label"]
    assert dict(request.arguments) == {
        "strategy": strategies.AllReduce(), "workers": "auto", "epochs": 1,
        "cluster": Spark(wait_s=WAIT_S), "batch_size": 32, "seed": None,
    }  # fmt: skip


def test_params_become_arguments_of_fit() -> None:
    request = asked(
        inputCols={"left": ["a", "b"], "right": "c"}, labelCols={"size": "d"},
        weightCol="w", validationIndicatorCol="v", strategy="eamsgd:period=9",
        momentum=0.5, rho=2.0, elasticLearningRate=0.1, numWorkers=(2, 4),
        store="s3://bucket", fitParams={"callbacks": [], "verbose": 0},
    )  # fmt: skip
    assert request.columns == ["a", "b", "c", "d", "w", "v"]
    strategy = strategies.EAMSGD(period=9, momentum=0.5, rho=2.0, learning_rate=0.1)
    arguments = request.arguments
    assert arguments["strategy"] == strategy
    assert arguments["workers"] == (2, 4)
    assert arguments["cluster"] == Spark(wait_s=WAIT_S, store="s3://bucket")
    assert (arguments["callbacks"], arguments["verbose"]) == ([], 0)
    mine = asked(cluster=Spark(wait_s=3), store="/shared").arguments["cluster"]
    assert mine == Spark(wait_s=3, store="/shared")


def test_every_number_of_a_builtin_strategy_is_a_param_or_in_its_text() -> None:
    assert set(NUMBERS) < set(TRAINING)
    assert asked(strategy="diloco", outerMomentum=0.1).arguments[
        "strategy"
    ] == strategies.DiLoCo(outer_momentum=0.1)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"featuresCol": "a", "inputCols": {"x": "b"}},
            "featuresCol='a' and inputCols=.* were both set",
        ),
        ({"labelCol": "a", "labelCols": ["b"]}, "were both set"),
        (
            {"validationIndicatorCol": "v", "validationSplit": 0.2},
            "Expected one way to choose rows to validate on",
        ),
        ({"momentum": 0.5}, "momentum=0.5 was set, and strategy 'all_reduce' has no"),
        ({"strategy": "ensemble"}, "trains several models"),
        ({"store": "/x", "cluster": "local"}, "store='/x' was set with cluster='loc"),
        ({"fitParams": {"epochs": 3}}, "fitParams has 'epochs'.* Use epochs"),
        ({"fitParams": {"callback": []}}, "Did you mean 'callbacks'"),
    ],
)
def test_params_that_cannot_go_together_are_refused(
    params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        asked(**params)


def test_the_nearest_column_is_named() -> None:
    check_columns(asked(weightCol="weight"), COLUMNS)
    with pytest.raises(DataError, match=r"'feature'\. Did you mean 'features'"):
        check_columns(asked(featuresCol="feature"), COLUMNS)
    with pytest.raises(DataError, match=r"'helds'\. Did you mean 'held'"):
        check_columns(asked(validationIndicatorCol="helds"), COLUMNS)


def test_models_that_cannot_be_trained_are_refused() -> None:
    bare = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    scheduled = make_model(keras.optimizers.SGD(rate))
    for model, wish, message in (
        (None, None, "KerasEstimator has no model"),
        ("model.keras", None, "model is a str"),
        (bare, None, "is not compiled"),
        (scheduled, 0.1, "an ExponentialDecay decides the rate"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_model(model, asked(), wish)
    check_model(make_model, asked(), 0.1)
    check_model(scheduled, asked(), None)


def test_inputs_and_outputs_are_named_as_those_of_the_model() -> None:
    model = two_ways()
    assert input_names(model) == ("left", "right")
    right = asked(inputCols={"left": "a", "right": "b"}, labelCols={"kind": "c"})
    check_model(model, right, None)
    for params, message in (
        ({"inputCols": {"lef": "a"}}, "input of the model 'lef'.* Did you mean 'left'"),
        ({"labelCols": {"kinds": "a"}}, "output of the model 'kinds'"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_model(model, asked(**params), None)


def test_each_training_has_a_model_of_its_own() -> None:
    model = make_model()
    found = copied(model, 0.25, asked())
    assert found is not model
    for mine, other in zip(found.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert float(found.optimizer.learning_rate) == pytest.approx(0.25)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1)
    assert found.optimizer.momentum == model.optimizer.momentum
    made = copied(make_model, 0.5, asked())()
    assert float(made.optimizer.learning_rate) == pytest.approx(0.5)
    assert copied(make_model, None, asked()) is make_model
    set_rate(made, 0.125)
    assert float(made.optimizer.learning_rate) == pytest.approx(0.125)


# ----------------------------------------------------------------------- tasks


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("mse", Task(is_classification=False)),
        (None, Task(is_classification=False)),
        ("bce", TWO_CLASSES),
        (keras.losses.BinaryFocalCrossentropy(), TWO_CLASSES),
        (keras.losses.CategoricalFocalCrossentropy(), CLASSES),
        (keras.losses.sparse_categorical_crossentropy, CLASSES),
        (
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            Task(is_classification=True, from_logits=True),
        ),
        (lambda y, p: p, Task(is_classification=False)),
        ("my own", Task(is_classification=False)),
    ],
)  # fmt: skip
def test_the_loss_decides_the_task(loss: Any, expected: Task) -> None:
    assert task_of(loss) == expected


def test_each_output_has_its_task() -> None:
    model = two_ways()
    tasks = tasks_of(model, ["kind", "size"])
    assert [task.is_classification for task in tasks] == [True, False]
    assert losses_of(["mae", "mse"], ["a", "b"]) == ["mae", "mse"]
    assert losses_of({"out": "mse"}, ["other"]) == ["mse"]
    assert wished(tasks[0], "auto") == tasks[0]
    assert wished(tasks[1], "classification") == CLASSES
    assert output_shapes(model) == [(3,), (1,)]


def test_the_shape_of_a_subclassed_model_is_known_once_it_is_built() -> None:
    class Mine(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(4)

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

    model = Mine()
    assert output_shapes(model) == [None]
    model(np.zeros((2, 3), "float32"))
    assert output_shapes(model) == [(4,)]


def test_columns_with_one_name_are_refused() -> None:
    values = {"predictionCol": "p", "probabilityCol": "p", "rawOutputCol": None}
    assert names_of(values, Task(is_classification=False), "") == {"p": "prediction"}
    with pytest.raises(ConfigError, match="probabilityCol='p' names a column that"):
        names_of(values, CLASSES, "")


def test_a_transformer_needs_a_model() -> None:
    with pytest.raises(ConfigError, match="KerasModel was made of a function"):
        KerasModel(make_model)
    with pytest.raises(ConfigError, match="unknown param of KerasModel 'epochs'"):
        KerasModel(make_model(), epochs=3)
    model = KerasModel(make_model(), predictionCol="p")
    assert (model.getPredictionCol(), model.history, model.run) == ("p", {}, None)


# ---------------------------------------------------------------------- saving


def test_values_without_a_json_form_are_refused_before_anything_is_written() -> None:
    cluster = Spark(wait_s=9, variables={"A": "1"})
    assert opened(saved("cluster", cluster)) == cluster
    assert saved("inputCols", {"a": ["b"]}) == {"a": ["b"]}
    with pytest.raises(ConfigError, match=r"fitParams=.* cannot be saved"):
        saved("fitParams", {"callbacks": [object()]})


def test_functions_are_saved_by_their_name() -> None:
    assert name_of(make_model) == "tests.habits.cases:make_model"
    with pytest.raises(ConfigError, match="other processes cannot import it"):
        name_of(lambda: None)
