"""`KerasEstimator`: trains a Keras model as a stage of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, final

from pyspark.ml import Estimator
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from shoal.api import fit
from shoal.models.travel import pack, unpack
from shoal.spark.fit_request import (
    FitRequest,
    check_columns,
    check_model,
    is_model,
    read_request,
    set_rate,
)
from shoal.spark.model import KerasModel
from shoal.spark.params import SCORING, TRAINING, KerasParams
from shoal.spark.saving import KerasReader, KerasWriter

PARTS = 1 << 20
"""Rows are divided for validation by a number below this, made of their values."""


@final
class KerasEstimator(KerasParams, Estimator[Any], MLWritable, MLReadable[Any]):  # pyright: ignore[reportIncompatibleMethodOverride]
    """Trains a Keras model on the executors, as a stage of Spark ML.

    Use it in a `Pipeline`, a `CrossValidator` or a `TrainValidationSplit`, and where a
    trained model has to be saved with the stages before it; `shoal.fit` takes a
    DataFrame as well, and is shorter. Each param has a setter and a getter;
    `explainParams()` describes all. Two fits at once share the slots: one waits for the
    other.

    Args:
        **params: Params by name: model, featuresCol, labelCol, strategy, numWorkers,
            epochs, batchSize, and others.

    Raises:
        ConfigError: A name is unknown, or a value cannot be used.

    Example:
        >>> import keras
        >>> from shoal.spark import KerasEstimator
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> estimator = KerasEstimator(model=model, strategy="aeasgd", numWorkers=2)
        >>> estimator.setEpochs(3).setPeriod(20).getEpochs()
        3
    """

    table: ClassVar = {**SCORING, **TRAINING}

    def __init__(self, **params: Any) -> None:
        super().__init__()
        self._begin(params)

    def _fit(self, dataset: DataFrame) -> KerasModel:
        """Trains a copy of the model.

        Raises:
            ConfigError: Params cannot go together; nothing was started.
            DataError: A column is missing, or cannot be used.
        """
        values = self.values()
        request = read_request(values, self.given())
        check_columns(request, dataset.columns)
        check_model(values["model"], request, values["learningRate"])
        rows, held_out = divided(dataset, request)
        history = fit(
            copied(values["model"], values["learningRate"], request), rows,
            features=request.features, label=request.label,
            sample_weight=request.weight, validation_data=held_out,
            **request.arguments,
        )  # fmt: skip
        trained = KerasModel(history.model, history=history.history, run=history.run)
        trained._resetUid(self.uid)  # pyright: ignore[reportPrivateUsage]
        return self._copyValues(trained)

    def write(self) -> MLWriter:
        """Returns what saves the estimator, with its model."""
        return KerasWriter(self, self.value("model"))

    @classmethod
    def read(cls) -> MLReader[Any]:
        """Returns what loads an estimator."""
        return KerasReader(cls, _opened)


def _opened(model: Any, extra: dict[str, Any]) -> KerasEstimator:
    del extra
    return KerasEstimator(model=model)


def divided(frame: DataFrame, request: FitRequest) -> tuple[DataFrame, Any]:
    """Returns the rows to train on, and those to validate on or None.

    Equal rows are on one side, whatever the order and the partitions of the frame.
    """
    if request.indicator:
        chosen = F.col(f"`{request.indicator}`").cast("boolean")
        is_held = F.coalesce(chosen, F.lit(False))
    elif request.split:
        columns = [F.col(f"`{name}`") for name in request.columns]
        key = F.xxhash64(F.lit(request.arguments["seed"] or 0), *columns)
        is_held = F.pmod(key, F.lit(PARTS)) < int(request.split * PARTS)
    else:
        return frame, None
    return frame.where(~is_held), frame.where(is_held)


def copied(model: Any, rate: float | None, request: FitRequest) -> Any:
    """Returns a model for one training, or a function that makes it."""
    if not is_model(model):
        return model if rate is None else partial(_made, model, rate)
    objects = request.arguments.get("custom_objects")
    found = unpack(pack(model, custom_objects=objects))
    if rate is not None:
        set_rate(found, rate)
    return found


def _made(make: Callable[[], Any], rate: float) -> Any:
    """Makes a model with a learning rate, here and on workers."""
    model = make()
    set_rate(model, rate)
    return model
