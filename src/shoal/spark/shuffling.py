"""A DataFrame in another order."""

from __future__ import annotations

from typing import Any


def shuffle(dataset: Any, seed: int | None = None) -> Any:
    """Returns the rows of a DataFrame in a random order.

    Training shuffles by itself. Use it before `randomSplit`, or where rows of one kind
    follow each other and `shuffle=False` is passed to `fit`.

    Args:
        dataset: The DataFrame.
        seed: Seed of the order; default None: another order each time.
    """
    from pyspark.sql import functions

    return dataset.orderBy(functions.rand(seed))
