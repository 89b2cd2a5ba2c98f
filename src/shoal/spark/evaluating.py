"""Metrics of a Keras model on a DataFrame, computed by executors."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from shoal.data.files.selection import Names
from shoal.errors import ConfigError, DataError
from shoal.jvm_errors import cause
from shoal.models.fixed_batch import sample_rows
from shoal.models.inspection import prepare
from shoal.models.metrics import MetricStates, unmergeable
from shoal.plan.request import require_whole
from shoal.spark.evaluating_task import MetricScorer, from_bytes
from shoal.spark.predicting import (
    check_classic,
    chosen_columns,
    packed_columns,
    send_model,
)
from shoal.spark.scoring_task import rows_of

RESULT = "rows long, states binary, sample binary"


def evaluate(
    model: Any,
    dataframe: Any,
    features: Names = "features",
    label: Names = "label",
    *,
    sample_weight: str | None = None,
    batch_size: int = 32,
) -> dict[str, float]:
    """Returns the loss and metrics of a compiled model, as `model.evaluate` would.

    Each partition sums the states of the metrics, and the sums are added here: means,
    AUC and F1 are those of all rows.

    Args:
        model: A compiled model.
        dataframe: A DataFrame.
        features: Column of x, several that become one array, or columns by input.
        label: Column of y, in the same forms.
        sample_weight: Column of weights.
        batch_size: Rows of a step, at least 1.

    Raises:
        ConfigError: The model is not compiled, or has metrics whose states cannot be
            added.
        DataError: Columns do not fit, there are no rows, or the frame fails.
    """
    check_classic(dataframe)
    require_whole("batch_size", batch_size, 1)
    if not getattr(model, "compiled", False):
        raise ConfigError(
            f"the model {model.name!r} is not compiled. Expected loss and metrics. "
            "Call model.compile first."
        )
    chosen = chosen_columns(dataframe, features, label, sample_weight)
    scorer = MetricScorer(
        model=send_model(dataframe, model, is_compiled=True), selection=chosen,
        batch_size=batch_size, sample_rows=sample_rows(model),
    )  # fmt: skip
    packed = packed_columns(dataframe.schema, chosen).alias("packed")
    asked = dataframe.select(packed).select("packed.*").mapInArrow(scorer, RESULT)
    try:
        found = asked.collect()
    except Exception as error:  # Spark's errors are of many kinds
        raise DataError(
            f"executors could not evaluate the DataFrame: {cause(str(error))}. "
            "Expected rows that the model takes. Correct that, and call evaluate again."
        ) from error
    if not found:
        raise DataError(
            "the DataFrame has no rows. Expected at least one. Check how it was "
            "loaded or filtered."
        )
    sample = rows_of(from_bytes(found[0]["sample"]).to_struct_array(), chosen)
    prepare(model, sample)
    x, y, _ = import_module("keras").utils.unpack_x_y_sample_weight(sample)
    left_out = unmergeable(model, y, x=x)
    if left_out:
        raise ConfigError(
            f"the metrics {', '.join(left_out)} cannot be merged from the parts of "
            "a DataFrame. Expected metrics whose states are sums. Call "
            "shoal.evaluate(model, df), which computes them in this process."
        )
    states = MetricStates.of(model)
    sums = states.merge(np.frombuffer(row["states"], "<f8") for row in found)
    return states.results(model, sums)
