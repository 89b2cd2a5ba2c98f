"""`KerasModel`: predictions of a Keras model as a stage of a pipeline."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, final

from pyspark.ml import Model
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from shoal.errors import ConfigError, a_kind
from shoal.spark.fit_request import features_of, is_model
from shoal.spark.model_shapes import output_shapes
from shoal.spark.outcome_columns import prediction, probability, raw
from shoal.spark.params import SCORING, KerasParams
from shoal.spark.predicting import add_predictions, output_names, send_model
from shoal.spark.saving import KerasReader, KerasWriter
from shoal.spark.tasks import Task, tasks_of, wished

MADE = {"prediction": prediction, "probability": probability, "raw": raw}


@final
class KerasModel(KerasParams, Model, MLWritable, MLReadable[Any]):
    """Adds the predictions of a Keras model to a DataFrame.

    `KerasEstimator.fit` returns one. `KerasModel(model)` makes one of any Keras
    model. If the model is compiled with a crossentropy, the prediction is a class, and
    there are probabilities; else it is what the model returns. The param `task`
    decides it for other losses.

    Args:
        model: Keras model, compiled or not.
        history: Metric -> value of each epoch.
        run: Run that trained it.
        tasks: Kinds of its outputs; default None asks the loss.
        **params: Params by name: featuresCol, predictionCol, and others.

    Raises:
        ConfigError: It is no model, or a param cannot be used.

    Example:
        >>> import keras
        >>> from shoal.spark import KerasModel
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        >>> KerasModel(model, featuresCol="x").getPredictionCol()
        'prediction'
    """

    table: ClassVar = SCORING

    def __init__(
        self,
        model: Any,
        *,
        history: Mapping[str, Sequence[float]] | None = None,
        run: Any = None,
        tasks: Sequence[Task] | None = None,
        **params: Any,
    ) -> None:
        if not is_model(model):
            raise ConfigError(
                f"KerasModel was made of {a_kind(model)}. Expected a Keras model. Pass "
                "one, or train one with KerasEstimator(model=...).fit(df)."
            )
        super().__init__()
        self._model, self._run = model, run
        self._history = {name: list(each) for name, each in (history or {}).items()}
        self._tasks = tuple(tasks or tasks_of(model, output_names(model)))
        self._sent: Any = None
        self._begin(params)

    @property
    def model(self) -> Any:
        """Returns the Keras model."""
        return self._model

    @property
    def history(self) -> dict[str, list[float]]:
        """Returns metric -> value of each epoch; empty if it was not trained here."""
        return self._history

    @property
    def run(self) -> Any:
        """Returns the run that trained it; None after loading."""
        return self._run

    def _transform(self, dataset: DataFrame) -> DataFrame:
        """Adds columns; nothing is computed before an action.

        Raises:
            ConfigError: A name of a column is taken.
            DataError: A column is missing, or cannot be used.
        """
        values = self.values()
        outputs = output_names(self.model)
        tasks = [wished(task, values["task"]) for task in self._tasks]
        named = [
            names_of(values, task, f"_{output}" if len(outputs) > 1 else "")
            for task, output in zip(tasks, outputs or ("",), strict=True)
        ]
        _refuse_taken([name for each in named for name in each], dataset.columns)
        places = [f"shoal_{secrets.token_hex(4)}" for _ in named]
        self._sent = send_model(dataset, self.model, self._sent)
        found = add_predictions(
            dataset, self._sent, inputs=features_of(values, self.given()),
            columns=places, batch_size=values["predictBatchSize"], is_vector=False,
        )  # fmt: skip
        shapes = output_shapes(self.model)
        columns = [
            MADE[what](task, shape, F.col(place)).alias(name)
            for task, shape, place, each in zip(
                tasks, shapes, places, named, strict=True
            )
            for name, what in each.items()
        ]
        return found.select("*", *columns).drop(*places)

    def write(self) -> MLWriter:
        """Returns what saves the model, as a Keras archive beside the params."""
        return KerasWriter(
            self,
            self.model,
            history=self.history,
            tasks=[asdict(task) for task in self._tasks],
        )

    @classmethod
    def read(cls) -> MLReader[Any]:
        """Returns what loads a model."""
        return KerasReader(cls, _opened)


def _opened(model: Any, extra: Mapping[str, Any]) -> KerasModel:
    tasks = [Task(**task) for task in extra["tasks"]]
    return KerasModel(model, history=extra["history"], tasks=tasks)


def names_of(values: Mapping[str, Any], task: Task, end: str) -> dict[str, str]:
    """Returns the columns that an output gets: name -> what it is.

    Args:
        values: Params by name.
        task: Kind of the output.
        end: End of the names, where there are several outputs.

    Raises:
        ConfigError: Two of them have one name.

    Example:
        >>> values = {"predictionCol": "p", "probabilityCol": "q", "rawOutputCol": None}
        >>> names_of(values, Task(is_classification=True), "_a")
        {'p_a': 'prediction', 'q_a': 'probability'}
    """
    wanted = [("predictionCol", "prediction"), ("rawOutputCol", "raw")]
    if task.is_classification:
        wanted.insert(1, ("probabilityCol", "probability"))
    found: dict[str, str] = {}
    for param, what in wanted:
        name = values[param]
        if name and name + end in found:
            raise ConfigError(
                f"{param}={name!r} names a column that another param also names. "
                "Expected a name of its own for each output. Set another name."
            )
        if name:
            found[name + end] = what
    return found


def _refuse_taken(made: Sequence[str], columns: Sequence[str]) -> None:
    for name in made:
        if name in columns:
            raise ConfigError(
                f"the DataFrame has a column {name!r}, and a prediction would have the "
                "same name. Expected a new one. Set predictionCol, probabilityCol or "
                "rawOutputCol, or drop the column."
            )
