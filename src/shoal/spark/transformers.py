"""Transformers of dist-keras: each adds a column, by an expression of the JVM.

They are transformers of Spark ML, too: with params, in pipelines, saved and loaded.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, final

from pyspark.ml import Transformer
from pyspark.ml.feature import StandardScaler
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.ml.param import Param, Params
from pyspark.ml.util import (
    DefaultParamsReader,
    DefaultParamsWriter,
    MLReadable,
    MLReader,
    MLWritable,
)
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from shoal.errors import ConfigError, DataError
from shoal.plan.request import require_whole
from shoal.registry import did_you_mean
from shoal.spark.arrays import position
from shoal.spark.to_df import with_to_df

VECTORS = (VectorUDT, OldVectorUDT)


def param(name: str, doc: str) -> Param[Any]:
    """Returns a param of a class."""
    return Param(Params._dummy(), name, doc)  # pyright: ignore[reportPrivateUsage]


class ColumnTransformer(Transformer, MLReadable[Any], MLWritable):
    """Adds columns that Spark computes; saved and loaded with its params alone."""

    @abstractmethod
    def added(self, frame: Any) -> dict[str, Column]:
        """Returns the new columns by their names."""

    def write(self) -> DefaultParamsWriter:
        """Returns what saves this transformer."""
        return DefaultParamsWriter(self)

    @classmethod
    def read(cls) -> ParamsReader:
        """Returns what loads such a transformer."""
        return ParamsReader(cls)

    def _transform(self, dataset: Any) -> Any:
        made = dataset
        for name, column in self.added(dataset).items():
            made = made.withColumn(name, column)
        return with_to_df(made)

    def _get(self, name: str) -> Any:
        return self.getOrDefault(self.getParam(name))


@final
class ParamsReader(MLReader[Any]):
    """Loads transformers whose constructors need arguments.

    Args:
        cls: The class.
    """

    def __init__(self, cls: type[ColumnTransformer]) -> None:
        super().__init__()
        self.cls = cls

    def load(self, path: str) -> Any:
        """Loads a transformer from its folder."""
        read = DefaultParamsReader.loadMetadata(path, self.sc)
        found = self.cls.__new__(self.cls)
        Params.__init__(found)
        found._resetUid(read["uid"])  # pyright: ignore[reportPrivateUsage]
        DefaultParamsReader.getAndSetParams(found, read)  # pyright: ignore
        return found


@final
class MinMaxTransformer(ColumnTransformer):
    """Maps the range from `o_min` to `o_max` onto that from `n_min` to `n_max`.

    Args:
        o_min: Least value now.
        o_max: Largest value now.
        n_min: Least value then.
        n_max: Largest value then.
        input_col: Column of vectors, arrays or numbers.
        output_col: New column.
        is_vector: Whether the column holds vectors or arrays; else it holds numbers.

    Raises:
        ConfigError: The old range is empty.
    """

    oMin = param("oMin", "least value now")
    oMax = param("oMax", "largest value now")
    nMin = param("nMin", "least value then")
    nMax = param("nMax", "largest value then")
    inputCol = param("inputCol", "column of vectors, arrays or numbers")
    outputCol = param("outputCol", "new column")
    isVector = param("isVector", "whether the column holds vectors or arrays")

    def __init__(
        self,
        o_min: float,
        o_max: float,
        n_min: float,
        n_max: float,
        input_col: str,
        output_col: str,
        is_vector: bool = True,
    ) -> None:
        super().__init__()
        if o_min == o_max:
            raise ConfigError(
                f"o_min={o_min} and o_max={o_max} are no range. Expected two numbers "
                "that differ. Pass the least and the largest value of the column."
            )
        self._set(
            oMin=float(o_min), oMax=float(o_max), nMin=float(n_min), nMax=float(n_max),
            inputCol=input_col, outputCol=output_col, isVector=is_vector,
        )  # fmt: skip

    def added(self, frame: Any) -> dict[str, Column]:
        """Returns the column of scaled values."""
        least, span = self._get("oMin"), self._get("oMax") - self._get("oMin")
        new, wide = self._get("nMin"), self._get("nMax") - self._get("nMin")

        def scaled(value: Column) -> Column:
            return (value - least) / span * wide + new

        column = column_of(frame, self._get("inputCol"))
        if not self._get("isVector"):
            return {self._get("outputCol"): scaled(column.cast("double"))}
        is_array = isinstance(_kind(frame, self._get("inputCol")), T.ArrayType)
        found = F.transform(values_of(frame, self._get("inputCol")), scaled)
        return {self._get("outputCol"): found if is_array else array_to_vector(found)}


@final
class BinaryLabelTransformer(ColumnTransformer):
    """Makes 1.0 of one label and 0.0 of all others.

    Args:
        input_column: Column of labels, of any type.
        output_column: New column, of double.
        label: The label.
    """

    inputCol = param("inputCol", "column of labels")
    outputCol = param("outputCol", "new column")
    label = param("label", "the label that becomes 1.0")

    def __init__(self, input_column: str, output_column: str, label: Any) -> None:
        super().__init__()
        self._set(inputCol=input_column, outputCol=output_column, label=label)

    def added(self, frame: Any) -> dict[str, Column]:
        """Returns the column of 0.0 and 1.0."""
        column = column_of(frame, self._get("inputCol"))
        return {self._get("outputCol"): (column == self._get("label")).cast("double")}


@final
class StandardTransformer(ColumnTransformer):
    """Gives columns mean 0 and sample deviation 1, as Spark's `StandardScaler` does.

    `transform` reads all rows first, so streams are refused: fit a `StandardScaler`.

    Args:
        columns: Columns of numbers or vectors.
        suffix: End of the names of the new columns.
    """

    inputCols = param("inputCols", "columns of numbers or vectors")
    suffix = param("suffix", "end of the names of the new columns")

    def __init__(self, columns: Sequence[str], suffix: str = "_normalized") -> None:
        super().__init__()
        self._set(inputCols=list(columns), suffix=suffix)

    def added(self, frame: Any) -> dict[str, Column]:
        """Returns the columns of numbers; one pass over the rows."""
        numbers = [n for n in self._get("inputCols") if not _is_vector(frame, n)]
        asked = [column_of(frame, name).cast("double") for name in numbers]
        means = [F.avg(one).alias(f"mean{n}") for n, one in enumerate(asked)]
        spans = [F.stddev_samp(one).alias(f"span{n}") for n, one in enumerate(asked)]
        found: Any = frame.agg(*means, *spans).first() if numbers else None
        added: dict[str, Column] = {}
        for number, (name, column) in enumerate(zip(numbers, asked, strict=True)):
            mean, span = found[f"mean{number}"], found[f"span{number}"]
            rate = 1 / span if span else 0.0  # as StandardScaler has it
            added[name + self._get("suffix")] = (column - (mean or 0.0)) * rate
        return added

    def _transform(self, dataset: Any) -> Any:
        if dataset.isStreaming:
            raise ConfigError(
                "a stream was passed to StandardTransformer, which reads all rows. "
                "Expected a DataFrame with an end. Fit pyspark.ml.feature."
                "StandardScaler on earlier rows, and transform the stream with it."
            )
        made = super()._transform(dataset)
        for name in self._get("inputCols"):
            if _is_vector(dataset, name):
                scaler = StandardScaler(
                    withMean=True, inputCol=name, outputCol=name + self._get("suffix")
                )
                made = scaler.fit(dataset).transform(made)
        return with_to_df(made)


@final
class DenseTransformer(ColumnTransformer):
    """Makes dense vectors of sparse ones.

    Args:
        input_col: Column of vectors.
        output_col: New column.
    """

    inputCol = param("inputCol", "column of vectors")
    outputCol = param("outputCol", "new column")

    def __init__(self, input_col: str, output_col: str) -> None:
        super().__init__()
        self._set(inputCol=input_col, outputCol=output_col)

    def added(self, frame: Any) -> dict[str, Column]:
        """Returns the column of dense vectors."""
        values = values_of(frame, self._get("inputCol"))
        return {self._get("outputCol"): array_to_vector(values)}


@final
class ReshapeTransformer(ColumnTransformer):
    """Makes nested arrays of vectors, such as images of rows of pixels.

    Args:
        input_col: Column of vectors or arrays.
        output_col: New column, of nested arrays.
        shape: Their shape.
    """

    inputCol = param("inputCol", "column of vectors or arrays")
    outputCol = param("outputCol", "new column")
    shape = param("shape", "shape of the nested arrays")

    def __init__(self, input_col: str, output_col: str, shape: Sequence[int]) -> None:
        super().__init__()
        sizes = [require_whole("shape", size, 1) for size in shape]
        self._set(inputCol=input_col, outputCol=output_col, shape=sizes)

    def added(self, frame: Any) -> dict[str, Column]:
        """Returns the column of nested arrays."""
        shape: list[int] = self._get("shape")
        values = values_of(frame, self._get("inputCol"))
        said = F.concat(
            F.lit(f"column {self._get('inputCol')!r} has a row of "),
            F.size(values).cast("string"),
            F.lit(f" values. Expected {math.prod(shape)} for shape {shape}."),
        )
        is_right = F.size(values) == math.prod(shape)
        nested = _nested(values, F.lit(0), shape)
        found = F.when(is_right, nested).otherwise(F.raise_error(said))
        return {self._get("outputCol"): F.when(values.isNotNull(), found)}


class OneHotTransformer(ColumnTransformer):
    """Makes vectors with a one of indices.

    Args:
        output_dim: Size of the vectors, at least 1: the number of labels.
        input_col: Column of indices, from 0.
        output_col: New column, of vectors.
    """

    outputDim = param("outputDim", "size of the vectors")
    inputCol = param("inputCol", "column of indices")
    outputCol = param("outputCol", "new column")

    def __init__(self, output_dim: int, input_col: str, output_col: str) -> None:
        super().__init__()
        size = require_whole("output_dim", output_dim, 1)
        self._set(outputDim=size, inputCol=input_col, outputCol=output_col)

    @final
    def added(self, frame: Any) -> dict[str, Column]:
        """Returns the column of vectors."""
        name, size = self._get("inputCol"), self._get("outputDim")
        index = column_of(frame, name).cast("double")
        said = F.concat(
            F.lit(f"column {name!r} has the index "), index.cast("string"),
            F.lit(f". Expected a whole number from 0 to {size - 1}."),
        )  # fmt: skip
        places = F.array(*(F.lit(float(place)) for place in range(size)))
        found = F.transform(places, lambda place: (place == index).cast("double"))
        is_known = F.array_contains(places, index)
        kept = F.when(is_known, found).otherwise(F.raise_error(said))
        return {self._get("outputCol"): array_to_vector(kept)}


@final
class LabelVectorTransformer(OneHotTransformer):
    """`OneHotTransformer` by its older name."""

    def __init__(
        self,
        output_dim: int,
        input_col: str = "label",
        output_col: str = "label_vectorized",
    ) -> None:
        super().__init__(output_dim, input_col, output_col)


@final
class LabelIndexTransformer(ColumnTransformer):
    """Makes indices of predictions: the first that is likely enough, or the largest.

    Args:
        output_dim: Number of labels, at least 1.
        input_col: Column of vectors or arrays.
        output_col: New column, of double; default None: `prediction_index`, and the
            same as `predicted_index`, its name in 2016.
        default_index: Index for predictions that are NaN.
        activation_threshold: From which value the first index is taken.
    """

    outputDim = param("outputDim", "number of labels")
    inputCol = param("inputCol", "column of vectors or arrays")
    outputCols = param("outputCols", "new columns, which are equal")
    defaultIndex = param("defaultIndex", "index for predictions that are NaN")
    activationThreshold = param(
        "activationThreshold", "from which value the first index is taken"
    )

    def __init__(
        self,
        output_dim: int,
        input_col: str = "prediction",
        output_col: str | None = None,
        default_index: int = 0,
        activation_threshold: float = 0.55,
    ) -> None:
        super().__init__()
        both = ["prediction_index", "predicted_index"]
        self._set(
            outputDim=require_whole("output_dim", output_dim, 1),
            inputCol=input_col,
            outputCols=both if output_col is None else [output_col],
            defaultIndex=default_index,
            activationThreshold=float(activation_threshold),
        )

    def added(self, frame: Any) -> dict[str, Column]:
        """Returns the columns of indices."""
        values = values_of(frame, self._get("inputCol"))
        values = F.slice(values, 1, self._get("outputDim"))
        known = F.transform(
            values, lambda v: F.when(F.isnan(v), float("-inf")).otherwise(v)
        )
        likely = F.exists(known, lambda v: v >= self._get("activationThreshold"))
        passed = F.transform(known, lambda v: v >= self._get("activationThreshold"))
        first = position(passed, F.lit(True))
        largest = position(known, F.array_max(known))
        index = F.when(likely, first).otherwise(largest) - 1
        is_known = F.array_max(known) > float("-inf")
        found = F.when(is_known, index).otherwise(self._get("defaultIndex"))
        column = F.when(values.isNotNull(), found).cast("double")
        return dict.fromkeys(self._get("outputCols"), column)


# --------------------------------------------------------------------- columns


def column_of(frame: Any, name: str) -> Column:
    """Returns a column, also one with dots in its name.

    Raises:
        DataError: The frame has none of this name.
    """
    if name not in frame.columns:
        raise DataError(
            f"{did_you_mean('column', name, frame.columns)} Expected a column of the "
            "DataFrame. Correct its name."
        )
    return F.col(f"`{name}`")


def values_of(frame: Any, name: str) -> Column:
    """Returns the values of a column of vectors or arrays as an array of double.

    Raises:
        DataError: It holds something else.
    """
    column, kind = column_of(frame, name), _kind(frame, name)
    if isinstance(kind, VECTORS):
        return F.when(column.isNotNull(), vector_to_array(column))
    if isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.NumericType):
        return column.cast("array<double>")
    raise DataError(
        f"column {name!r} holds {kind.simpleString()}. Expected vectors or arrays of "
        "numbers. Assemble them: pyspark.ml.feature.VectorAssembler."
    )


def _kind(frame: Any, name: str) -> T.DataType:
    column_of(frame, name)
    return frame.schema[name].dataType


def _is_vector(frame: Any, name: str) -> bool:
    return isinstance(_kind(frame, name), VECTORS)


def _nested(values: Column, first: Column, shape: Sequence[int]) -> Column:
    """Returns nested arrays of the values from a place on."""
    if len(shape) == 1:
        return F.slice(values, first + 1, shape[0])
    step = math.prod(shape[1:])
    places = F.array(*(F.lit(place * step) for place in range(shape[0])))
    return F.transform(places, lambda place: _nested(values, first + place, shape[1:]))
