"""Functions over arrays that PySpark 3.5 and 4 have in different forms."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def position(values: Column, value: Column) -> Column:
    """Returns the place of a value in an array, from 1; 0 if it is not there.

    `array_position` of PySpark 3.5 takes no columns as values.

    Args:
        values: Column of arrays.
        value: Column of values.
    """
    return F.call_function("array_position", values, value)
