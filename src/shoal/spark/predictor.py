"""`ModelPredictor` of dist-keras: a Keras model as a transformer of DataFrames."""

from __future__ import annotations

from typing import Any, final

from pyspark.ml import Transformer
from pyspark.ml.param import Param, Params
from pyspark.ml.util import MLReadable, MLWritable

from shoal.data.files.selection import Names
from shoal.plan.request import require_whole
from shoal.spark.predicting import (
    BATCH_SIZE,
    add_predictions,
    output_columns,
    send_model,
)
from shoal.spark.saving import KerasReader, KerasWriter
from shoal.spark.sent_model import SentModel
from shoal.spark.to_df import with_to_df


@final
class ModelPredictor(Transformer, MLReadable[Any], MLWritable):
    """Adds the predictions of a Keras model to DataFrames and streams, as vectors.

    `predict` and `transform` are the same. The model goes to executors once a
    predictor, and again only where its weights have changed. A saved predictor has the
    model as a plain `model.keras`.

    Args:
        keras_model: A built model.
        features_col: Column of x, several that become one array, or a mapping from
            inputs to columns.
        output_col: Column of predictions. Where the model has several outputs: names
            for each, or the beginning of names that end with "_" and the output's.
        batch_size: Rows of a step, at least 1.
    """

    featuresCol: Param[Any] = Param(
        Params._dummy(),  # pyright: ignore[reportPrivateUsage]
        "featuresCol",
        "column of x, several that become one array, or columns by input",
    )
    outputCol: Param[Any] = Param(
        Params._dummy(),  # pyright: ignore[reportPrivateUsage]
        "outputCol",
        "column of predictions, or one for each output",
    )
    batchSize: Param[int] = Param(
        Params._dummy(),  # pyright: ignore[reportPrivateUsage]
        "batchSize",
        "rows of a step",
    )

    def __init__(
        self,
        keras_model: Any,
        features_col: Names = "features",
        output_col: str | list[str] = "prediction",
        *,
        batch_size: int = BATCH_SIZE,
    ) -> None:
        super().__init__()
        self.keras_model = keras_model
        self._sent: SentModel | None = None
        require_whole("batch_size", batch_size, 1)
        self._set(featuresCol=features_col, outputCol=output_col, batchSize=batch_size)

    def predict(self, dataset: Any) -> Any:
        """Returns the frame with predictions."""
        return self.transform(dataset)

    def write(self) -> KerasWriter:
        """Returns what saves it, on any file system of Hadoop."""
        return KerasWriter(self, self.keras_model)

    @classmethod
    def read(cls) -> KerasReader:
        """Returns what loads it."""
        return KerasReader(cls, lambda model, metadata: cls(model))

    def _transform(self, dataset: Any) -> Any:
        names = output_columns(self.keras_model, self.getOrDefault(self.outputCol))
        self._sent = send_model(dataset, self.keras_model, self._sent)
        found = add_predictions(
            dataset,
            self._sent,
            inputs=self.getOrDefault(self.featuresCol),
            columns=names,
            batch_size=self.getOrDefault(self.batchSize),
        )
        return with_to_df(found)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what belongs to a session."""
        return {**self.__dict__, "_sent": None}
