"""Predictions as columns of a DataFrame.

The model is broadcast, and a function over Arrow arrays computes them. All other
columns stay in the JVM as they are. Nothing runs here, so that streams are frames, too.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from pyspark.ml.functions import array_to_vector
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from shoal.clusters.carried import carried
from shoal.data.files.arrow import Arrow
from shoal.data.files.selection import Names, Selection, select
from shoal.data.sources import default_floatx
from shoal.data.spark import WHERE, column_of, types_of
from shoal.errors import ConfigError
from shoal.launchers.versions import versions
from shoal.models.travel import pack
from shoal.plan.request import require_whole
from shoal.spark.scoring_task import Scorer
from shoal.spark.sent_model import SentModel

BATCH_SIZE = 256
HAS_ARROW = hasattr(F, "arrow_udf")
"""Whether PySpark gives functions Arrow arrays (4.1), and not frames of pandas."""


def add_predictions(
    frame: Any,
    model: Any,
    *,
    inputs: Names,
    columns: str | Sequence[str],
    batch_size: int = BATCH_SIZE,
    is_vector: bool = True,
) -> DataFrame:
    """Returns a frame with the predictions of a model as further columns.

    Predictions with several dimensions are flattened.

    Args:
        frame: A DataFrame or a stream. Columns may hold numbers, booleans, vectors and
            arrays, as those of `fit`.
        model: A Keras model, or what `send_model` made of one.
        inputs: Column of x, several that become one array, or the columns of each
            input by name.
        columns: A new column; for a model with several outputs their names, or the
            beginning of them: the name of the output follows after "_".
        batch_size: Rows of a step. A model with a fixed batch size has its own.
        is_vector: Whether predictions are vectors of Spark ML; else arrays of double.

    Raises:
        ConfigError: An argument is wrong, or it is a frame of Spark Connect.
        DataError: A column is missing, or holds no numbers.
    """
    check_classic(frame)
    require_whole("batch_size", batch_size, 1)
    if isinstance(model, SentModel):
        sent = model
        named = (columns,) if isinstance(columns, str) else tuple(columns)
    else:
        named = output_columns(model, columns)
        sent = send_model(frame, model)
    for name in named:
        if name in frame.columns or named.count(name) > 1:
            raise ConfigError(
                f"there is a column {name!r} already, and a prediction would have the "
                "same name. Expected a new one. Pass another name, or drop the column."
            )
    chosen = chosen_columns(frame, inputs)
    scorer = Scorer(
        model=sent, selection=chosen, outputs=named, batch_size=batch_size
    )  # fmt: skip
    place = f"shoal_{secrets.token_hex(4)}"
    # Spark 4.3 fails where a function's child gives columns, as Parquet does, and one
    # of them is a vector. It computes this expression, which it counts as not
    # deterministic, in a child of its own, which gives rows.
    columns_of = packed_columns if HAS_ARROW else packed_with_nulls
    packed = F.when(F.spark_partition_id() >= 0, columns_of(frame.schema, chosen))
    rows = frame.select("*", packed.alias(f"{place}_x"))
    function = _function(scorer)(F.col(f"{place}_x"))
    found = rows.select("*", function.alias(place)).drop(f"{place}_x")
    lists = [F.col(place)[f"o{number}"] for number in range(len(named))]
    made = [array_to_vector(one) for one in lists] if is_vector else lists
    added = [one.alias(name) for one, name in zip(made, named, strict=True)]
    return found.select("*", *added).drop(place)


def send_model(
    frame: Any,
    model: Any,
    before: SentModel | None = None,
    *,
    is_compiled: bool = False,
) -> SentModel:
    """Broadcasts a model to the executors of a frame's session.

    Args:
        frame: Any frame of the session.
        model: A built Keras model.
        before: What an earlier call returned, which is returned again if the model
            has not changed.
        is_compiled: Whether loss, metrics and optimizer go with it.

    Raises:
        PlanError: The model is not built, or a part of it cannot be sent.
    """
    check_classic(frame)
    context = frame.sparkSession.sparkContext
    blob = pack(model, is_bare=not is_compiled)
    key = hashlib.sha256(blob).hexdigest()
    application = str(context.applicationId)
    if before is not None and (before.key, before.application) == (key, application):
        return before
    backend = import_module("keras").backend.backend()
    return SentModel(
        key=key,
        blob=context.broadcast(blob),
        application=application,
        backend=backend,
        variables=carried(os.environ, {}),
        versions=versions(backend),
    )


def chosen_columns(
    frame: Any, features: Names, label: Names = (), weight: str | None = None
) -> Selection:
    """Decides which columns of a frame are x, y and sample_weight.

    Raises:
        DataError: A column is missing, or holds no numbers.
    """
    chosen = select(
        frame.columns, Arrow(), features=features, label=label, weight=weight,
        floatx=default_floatx(), where=WHERE,
    )  # fmt: skip
    for name in chosen.columns:
        column_of(frame.schema, name, chosen)
    return chosen.settle([types_of(frame.schema, chosen)])


def packed_columns(schema: T.StructType, chosen: Selection) -> Column:
    """Returns a struct of the numbers of all chosen columns, as `rows_of` takes it."""
    columns = [column_of(schema, name, chosen) for name in chosen.columns]
    return F.struct(*(one.alias(f"c{n}") for n, one in enumerate(columns)))


def packed_with_nulls(schema: T.StructType, chosen: Selection) -> Column:
    """Returns the same, and after it for each column whether it has a null."""
    columns = [column_of(schema, name, chosen) for name in chosen.columns]
    nulls = [
        _has_null(F.col(f"`{name}`"), schema[name].dataType) for name in chosen.columns
    ]
    return F.struct(*(one.alias(f"c{n}") for n, one in enumerate([*columns, *nulls])))


def _has_null(column: Column, kind: T.DataType) -> Column:
    if not isinstance(kind, T.ArrayType) or not (
        kind.containsNull or isinstance(kind.elementType, T.ArrayType)
    ):
        return column.isNull()
    inner = kind.elementType
    return column.isNull() | F.exists(column, lambda one: _has_null(one, inner))


def output_columns(model: Any, columns: str | Sequence[str]) -> tuple[str, ...]:
    """Returns a name for the column of each output of a model.

    Args:
        model: A Keras model.
        columns: A name, or one for each output.

    Raises:
        ConfigError: There are more or fewer names than outputs.
    """
    outputs = output_names(model)
    if isinstance(columns, str):
        several = [f"{columns}_{name}" for name in outputs]
        return tuple(several) if len(outputs) > 1 else (columns,)
    if outputs and len(columns) != len(outputs):
        raise ConfigError(
            f"{len(columns)} columns {list(columns)} were named for the outputs "
            f"{list(outputs)} of model {model.name!r}. Expected one for each. Pass as "
            "many names, or a single one, with which the names of all columns begin."
        )
    return tuple(columns)


def output_names(model: Any) -> tuple[str, ...]:
    """Returns the names of a model's outputs, in the order of its predictions.

    It is empty for models of a class of the user's, whose outputs nobody declares.
    """
    functional = getattr(model, "_functional", None) or model
    struct: Any = getattr(functional, "_outputs_struct", None)
    if isinstance(struct, dict):
        return tuple(sorted(struct))
    return tuple(getattr(functional, "output_names", None) or ())


def check_classic(frame: Any) -> None:
    """Refuses what is no DataFrame of a classic session.

    Raises:
        ConfigError: It is of Spark Connect, or something else.
    """
    if ".connect." in type(frame).__module__:
        raise ConfigError(
            "this is a DataFrame of Spark Connect, which cannot send a model to "
            "executors. Expected one of a classic session. Create the session with "
            ".master(...), or use spark-submit."
        )
    if not isinstance(frame, DataFrame):
        raise ConfigError(
            f"a {type(frame).__name__} was passed. Expected a Spark DataFrame. For "
            "arrays and files use model.predict or shoal.predict."
        )


def _function(scorer: Scorer) -> Any:
    """Returns the function that makes a struct of lists, one for each output.

    It counts as not deterministic, so that Spark computes it once where a filter or
    several columns use it.
    """
    fields = [
        T.StructField(f"o{n}", T.ArrayType(T.DoubleType()))
        for n in range(len(scorer.outputs))
    ]
    kind = T.StructType(fields)
    known: Any = F
    with warnings.catch_warnings():
        # PySpark would rather read the kind of function from annotations.
        warnings.simplefilter("ignore", UserWarning)
        if HAS_ARROW:
            made = known.arrow_udf(scorer, kind, known.ArrowUDFType.SCALAR_ITER)
        else:
            way = known.PandasUDFType.SCALAR_ITER
            made = known.pandas_udf(scorer.of_frames, kind, way)
    return made.asNondeterministic()
