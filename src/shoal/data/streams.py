"""Data in batches where an array is expected, and the errors about it.

`adapting.py` takes such data as x, with the targets in it. This file finds it in other
arguments. It goes by names alone, so that no library is imported needlessly.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import GeneratorType
from typing import Any, TypeAlias

from shoal.data import trees
from shoal.errors import DataError

Sort: TypeAlias = tuple[str, str, str]
"""Name of the kind, code of one pass over x, and the NumPy function that joins it."""

FROM_START, BY_NUMBER = "{x}", "({x}[i] for i in range(len({x})))"
UP_TO = "itertools.islice({x}, batches)"  # generators for Keras have no end

LIBRARIES: dict[tuple[str, str], Sort] = {
    ("tensorflow", "DatasetV2"): ("a tf.data.Dataset", FROM_START, "concatenate"),
    ("keras", "PyDataset"): ("a keras PyDataset", BY_NUMBER, "concatenate"),
    ("torch", "DataLoader"): ("a torch DataLoader", FROM_START, "concatenate"),
    ("torch", "IterableDataset"): ("a torch IterableDataset", FROM_START, "stack"),
    ("torch", "Dataset"): ("a torch Dataset", BY_NUMBER, "stack"),
}


def refuse_streams(tree: trees.Tree, name: str, where: str) -> None:
    """Refuses data that comes batch by batch, and tells how to make it arrays.

    Args:
        tree: An array of the user's, or a nesting of arrays.
        name: The user's name for it, for messages: "x".
        where: Its origin, for messages.

    Raises:
        DataError: It is such data, or contains such data.

    Example:
        >>> refuse_streams([1.0, 2.0], "x", "data of fit")
        >>> refuse_streams(zip([1.0], [2.0]), "y", "data of fit")
        Traceback (most recent call last):
        shoal.errors.DataError: y is an iterator (data of fit), which can only be x, ...
    """
    for path, leaf in trees.named_leaves(tree, name):
        found = _sort_of(leaf)
        if found is not None:
            raise DataError(
                f"{path} is {found[0]} ({where}), which can only be x, and x alone. "
                "Expected arrays: NumPy, JAX, pandas, or nested dicts, lists and "
                f"tuples of them. {_advice(name.partition('[')[0], found)}"
            )


def _sort_of(value: Any) -> Sort | None:
    for cls in type(value).__mro__:
        found = LIBRARIES.get((cls.__module__.partition(".")[0], cls.__name__))
        if found:
            return found
    if isinstance(value, GeneratorType):
        return "a generator", UP_TO, "concatenate"
    if isinstance(value, Iterator):
        return "an iterator", UP_TO, "concatenate"
    return None


def _advice(name: str, sort: Sort) -> str:
    """Returns how one pass becomes arrays; x usually comes with its targets."""
    _, form, join = sort
    whole = form.format(x=name)
    if name != "x":
        return f"Collect one pass with NumPy, as np.{join}(list({whole}))."
    return (
        f"Collect one pass with NumPy: xs, ys = zip(*{whole}), then pass "
        f"np.{join}(xs) as x and np.{join}(ys) as y."
    )
