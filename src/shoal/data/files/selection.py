"""The columns that are x, y and sample_weight, and their form for Keras."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast, final

import numpy as np
import numpy.typing as npt

from shoal.data import trees
from shoal.data.arrays import dtype_of
from shoal.data.files.format import Columns, Format, Types
from shoal.data.sources import Batch
from shoal.errors import DataError
from shoal.registry import did_you_mean

Names: TypeAlias = str | Sequence[str] | Mapping[str, str | Sequence[str]]
"""One column; several that become one array; or the columns of each input, by name."""


@final
@dataclass(frozen=True)
class Stack:
    """Columns that become one array, side by side.

    Args:
        names: Names of the columns.
        whole: Dtype of the array if all columns hold whole numbers in all files;
            None means floats.
    """

    names: tuple[str, ...]
    whole: str | None = None


Wanted: TypeAlias = "str | Stack | dict[str, str | Stack] | None"


@final
@dataclass(frozen=True, kw_only=True)
class Selection:
    """Columns of files, by their role in training.

    Args:
        x: Inputs: a name, a `Stack`, or a dict of these.
        y: Targets, in the same forms, or None.
        weight: Column of sample weights, or None.
        floatx: Dtype in which floats are read.

    Example:
        >>> x = Stack(("a", "b"))
        >>> chosen = Selection(x=x, y="c", weight=None, floatx="float32")
        >>> chosen.pack({"a": np.array([1]), "b": np.array([2.0]), "c": np.array([3])})
        (array([[1., 2.]], dtype=float32), array([3]))
    """

    x: Wanted
    y: Wanted
    weight: str | None
    floatx: str

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read, each once."""
        leaves = trees.leaves([self.x, self.y, self.weight])
        named = [leaf.names if isinstance(leaf, Stack) else (leaf,) for leaf in leaves]
        return tuple(dict.fromkeys(name for names in named for name in names))

    @property
    def targets(self) -> frozenset[str]:
        """Columns of y and of weights."""
        return frozenset(replace(self, x=None).columns)

    @property
    def plain(self) -> frozenset[str]:
        """Columns that keep their dtype, which must then be that of all files."""
        leaves = trees.leaves([self.x, self.y])
        return frozenset(leaf for leaf in leaves if isinstance(leaf, str))

    def settle(self, types: Sequence[Types]) -> Selection:
        """Makes an array whole numbers if all its columns hold such.

        Args:
            types: Types of the columns of every part.

        Example:
            >>> chosen = Selection(
            ...     x=Stack(("a", "b")), y=None, weight=None, floatx="float32"
            ... )
            >>> chosen.settle([(("a", "int32"), ("b", "int64"))]).x
            Stack(names=('a', 'b'), whole='int64')
        """
        # Parts without types are unknown, so that they make floats.
        known = [dict(one) for one in set(types)]

        def settled(leaf: str | Stack) -> str | Stack:
            if isinstance(leaf, str):
                return leaf
            kinds = {one.get(name, "float") for one in known for name in leaf.names}
            return replace(leaf, whole=_whole(kinds))

        x, y = (trees.map_leaves(settled, tree) for tree in (self.x, self.y))
        return replace(self, x=x, y=y)

    def pack(self, columns: Columns) -> Batch:
        """Packs columns as Keras packs x, y and sample_weight."""
        x = self._tree(self.x, columns)
        if self.y is None and self.weight is None:
            return x
        y = self._tree(self.y, columns)
        if self.weight is None:
            return x, y
        return x, y, columns[self.weight].astype(dtype_of(self.floatx))

    def _tree(self, wanted: Wanted, columns: Columns) -> trees.Tree:
        def array(leaf: str | Stack) -> npt.NDArray[Any]:
            if isinstance(leaf, Stack):
                _check_flat(leaf, columns)
                dtype = dtype_of(leaf.whole or self.floatx)
                return _stacked([columns[name] for name in leaf.names], dtype)
            return _as_trained(columns[leaf], self.floatx)

        return trees.map_leaves(array, wanted)


def _whole(kinds: Collection[str]) -> str | None:
    """Returns the dtype that holds whole numbers of all these types, if any."""
    plain = [kind.partition(" of ")[0] for kind in kinds]
    if not plain or any(kind.startswith("float") for kind in plain):
        return None
    found = np.result_type(*plain)
    return found.name if found.kind in "biu" else None


def _as_trained(array: npt.NDArray[Any], floatx: str) -> npt.NDArray[Any]:
    is_float = array.dtype.kind == "f"
    dtype = dtype_of(floatx) if is_float else array.dtype.newbyteorder("=")
    return np.ascontiguousarray(array, dtype)


def _check_flat(stack: Stack, columns: Columns) -> None:
    for name in stack.names:
        if columns[name].ndim > 2:
            raise DataError(
                f"column {name!r} has rows of shape {columns[name].shape[1:]}, which "
                "cannot be joined with other columns into one array. Expected numbers, "
                f"or lists of numbers. Name the column alone: {name!r}, or as an input "
                f"of its own: {{'input': {name!r}, ...}}."
            )


def _stacked(arrays: list[npt.NDArray[Any]], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Joins columns side by side, in one write without copies."""
    widths = [1 if array.ndim == 1 else array.shape[1] for array in arrays]
    ends = np.cumsum([0, *widths])
    out = np.empty((len(arrays[0]), ends[-1]), dtype)
    for array, start, stop in zip(arrays, ends[:-1], ends[1:], strict=True):
        out[:, start:stop] = array[:, None] if array.ndim == 1 else array
    return out


def select(
    known: Sequence[str],
    form: Format,
    *,
    features: Names | None,
    label: Names | None,
    weight: str | None,
    floatx: str,
    where: str,
) -> Selection:
    """Decides which columns a user means.

    Args:
        known: Columns of the files.
        form: Format, which chooses columns if none are named.
        features: Columns of x; None means the format's own, or all but the others.
        label: Columns of y; None means the format's own; () means none.
        weight: Column of sample_weight.
        floatx: Dtype in which floats are read.
        where: Owner of the columns, for messages.

    Raises:
        DataError: A column is unknown, or a label is missing.
    """
    if label is None and form.label in known:
        label = form.label
    if label is None and form.needs_label:
        raise DataError(
            f"no label is named for {where}, whose columns are "
            f"{', '.join(map(repr, known))}. Expected the column that the model "
            "learns. Pass label='its name', or label=() for data without one."
        )
    y = _wanted(label, known, "label", where) if label else None
    _wanted(weight, known, "weight", where)
    if features is None and form.features in known:
        features = form.features
    if features is None:
        used = Selection(x=None, y=y, weight=weight, floatx=floatx).columns
        features = [name for name in known if name not in used]
    if not features:
        raise DataError(
            f"there are no columns left to be features in {where}: all are label or "
            "weight. Expected at least one input of the model. Name it with features=."
        )
    x = _wanted(features, known, "features", where)
    return Selection(x=x, y=y, weight=weight, floatx=floatx)


def _wanted(names: Names | None, known: Sequence[str], what: str, where: str) -> Wanted:
    if names is None:
        return None
    if isinstance(names, Mapping):
        items = names.items()
        return {
            key: cast("str | Stack", _wanted(value, known, what, where))
            for key, value in items
        }
    for name in [names] if isinstance(names, str) else names:
        if name not in known:
            raise DataError(
                f"{what}={names!r} of {where}: {did_you_mean('column', name, known)} "
                f"Expected columns of the files. Correct {what}=."
            )
    return names if isinstance(names, str) else Stack(tuple(names))
