"""Evaluators of predictions, for Spark ML's tuning and for notebooks."""

from __future__ import annotations

from typing import Any, final

from pyspark.ml.evaluation import Evaluator
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from shoal.spark.arrays import position
from shoal.spark.transformers import VECTORS, column_of, param, values_of


@final
class AccuracyEvaluator(Evaluator):
    """Returns the share of rows whose prediction is their label.

    Vectors and arrays count as the index of their largest value.

    Args:
        label_col: Column of labels: indices or vectors.
        prediction_col: Column of predictions, in either form.
    """

    labelCol = param("labelCol", "column of labels")
    predictionCol = param("predictionCol", "column of predictions")

    def __init__(
        self, label_col: str = "label", prediction_col: str = "prediction"
    ) -> None:
        super().__init__()
        self._set(labelCol=label_col, predictionCol=prediction_col)

    def _evaluate(self, dataset: Any) -> float:
        label, prediction = (
            index_of(dataset, self.getOrDefault(param))
            for param in (self.labelCol, self.predictionCol)
        )
        [found] = dataset.agg(F.avg((label == prediction).cast("double"))).first()
        return float("nan") if found is None else float(found)

    def isLargerBetter(self) -> bool:
        """Returns True."""
        return True


def index_of(frame: Any, name: str) -> Column:
    """Returns the indices of a column of numbers, vectors or arrays.

    Raises:
        DataError: The column is unknown.
    """
    column = column_of(frame, name)
    kind = frame.schema[name].dataType
    if not isinstance(kind, (*VECTORS, T.ArrayType)):
        return column.cast("double")
    values = values_of(frame, name)
    return (position(values, F.array_max(values)) - 1).cast("double")
