"""Nested structures of arrays: their definition, and how they are walked.

A tree is a leaf, or a dict, list or tuple of trees; None stays in its place.
This replaces `keras.tree`, because workers read data before Keras is loaded
and because a tree has to become JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, cast

Tree: TypeAlias = Any
"""A leaf, or a dict, list or tuple of trees."""


def is_nested(tree: Tree) -> bool:
    """Whether this is a structure and not a leaf.

    Example:
        >>> is_nested({"a": 1}), is_nested((1,)), is_nested(1)
        (True, True, False)
    """
    return isinstance(tree, (dict, list, tuple))


def map_leaves(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Applies a function to every leaf; keeps the structure and None.

    Example:
        >>> map_leaves(lambda leaf: leaf + 1, {"a": 1, "b": [2, None]})
        {'a': 2, 'b': [3, None]}
    """
    if isinstance(tree, dict):
        items = cast("dict[Any, Tree]", tree).items()
        return {key: map_leaves(function, value) for key, value in items}
    if isinstance(tree, list):
        return [map_leaves(function, value) for value in cast("list[Tree]", tree)]
    if isinstance(tree, tuple):
        values = [map_leaves(function, v) for v in cast("tuple[Tree, ...]", tree)]
        # A named tuple takes its fields as single arguments.
        return type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)
    return None if tree is None else function(tree)


def named_leaves(tree: Tree, name: str) -> Iterator[tuple[str, Any]]:
    """Yields (name, leaf) of every leaf but None, named as Python would index it.

    Example:
        >>> list(named_leaves({"a": 1, "b": [2, None]}, "x"))
        [("x['a']", 1), ("x['b'][0]", 2)]
    """
    if isinstance(tree, dict):
        for key, value in cast("dict[Any, Tree]", tree).items():
            yield from named_leaves(value, f"{name}[{key!r}]")
    elif is_nested(tree):
        for place, value in enumerate(tree):
            yield from named_leaves(value, f"{name}[{place}]")
    elif tree is not None:
        yield name, tree


def leaves(tree: Tree) -> list[Any]:
    """Returns every leaf but None, in the order of `map_leaves`.

    Example:
        >>> leaves(({"a": 1}, None, [2, 3]))
        [1, 2, 3]
    """
    return [leaf for _, leaf in named_leaves(tree, "")]


def have_same_structure(one: Tree, other: Tree) -> bool:
    """Whether two trees have the same nesting; a leaf equals any leaf, and None.

    Example:
        >>> have_same_structure([1, {"a": 2}], [3, {"a": None}])
        True
        >>> have_same_structure([1, 2], (1, 2))
        False
    """
    if not is_nested(one) and not is_nested(other):
        return True
    if type(one) is not type(other) or len(one) != len(other):
        return False
    if isinstance(one, dict):
        ours = cast("dict[Any, Tree]", one)
        return ours.keys() == other.keys() and all(
            have_same_structure(value, other[key]) for key, value in ours.items()
        )
    return all(have_same_structure(a, b) for a, b in zip(one, other, strict=True))


def to_json(tree: Tree) -> Any:
    """Describes a tree whose leaves are plain numbers as plain data.

    Raises:
        TypeError: A key of a dict is neither text nor a whole number.

    Example:
        >>> to_json(({"a": 0}, [1, None]))
        ['tuple', ['dict', ['a'], [0]], ['list', 1, None]]
    """
    if isinstance(tree, dict):
        items = cast("dict[Any, Tree]", tree)
        odd = [key for key in items if not isinstance(key, (str, int))]
        if odd:
            # JSON would accept some of them and return others.
            raise TypeError(f"{odd[0]!r} of type {type(odd[0]).__name__}")
        return ["dict", list(items), [to_json(value) for value in items.values()]]
    if is_nested(tree):
        kind = "list" if isinstance(tree, list) else "tuple"
        return [kind, *(to_json(value) for value in tree)]
    return tree


def from_json(plain: Any) -> Tree:
    """The inverse of `to_json`; named tuples come back as tuples.

    Example:
        >>> from_json(["tuple", ["dict", ["a"], [0]], ["list", 1, None]])
        ({'a': 0}, [1, None])
    """
    if not isinstance(plain, list):
        return plain
    kind, *values = cast("list[Any]", plain)
    if kind == "dict":
        keys, inner = values
        return dict(zip(keys, map(from_json, inner), strict=True))
    parts = [from_json(value) for value in values]
    return parts if kind == "list" else tuple(parts)
