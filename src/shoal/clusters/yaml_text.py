"""Text of YAML as values, with the line of each; dangerous forms are refused.

A short text may stand for a huge value, if aliases name nodes with aliases in them,
or for an endless one, if a node contains itself. Of duplicate keys one would be lost.
"""

from __future__ import annotations

from typing import Any

MOST_CHARACTERS = 1 << 20
MOST_DEPTH = 50

Lines = dict[tuple[Any, ...], int]
"""Line of each value, by the keys and indices that lead to it."""


def read_yaml(text: str) -> tuple[Any, Lines]:
    r"""Reads plain values: mappings, lists, strings, numbers, dates.

    Args:
        text: Text of a file written by hand.

    Returns:
        The value, None for an empty text; and lines, which begin at 1.

    Raises:
        ImportError: PyYAML is not installed.
        ValueError: It is not YAML, or has a dangerous form; with the reason.

    Example:
        >>> read_yaml("a: [1, 2]")[0]
        {'a': [1, 2]}
    """
    import yaml

    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it has more than {MOST_CHARACTERS:,} characters")
    try:
        _check_nesting(yaml.parse(text, yaml.SafeLoader))
        root = yaml.compose(text, yaml.SafeLoader)
        lines: Lines = {}
        if root is not None:
            _note(root, (), lines)
        return yaml.safe_load(text), lines
    except yaml.YAMLError as error:
        raise ValueError(f"it is not YAML: {' '.join(str(error).split())}") from error


def _check_nesting(events: Any) -> None:
    """Refuses aliases in the value of an alias, and deep nesting."""
    import yaml

    is_nested: dict[str, bool] = {}  # by anchor: whether it contains aliases
    open_nodes: list[tuple[str | None, bool]] = []
    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            if is_nested.get(event.anchor, True):
                raise ValueError(
                    f"line {line}: the alias *{event.anchor} stands for a value that "
                    "has aliases in it"
                )
            open_nodes = [(anchor, True) for anchor, _ in open_nodes]
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, False))
            if len(open_nodes) > MOST_DEPTH:
                raise ValueError(f"line {line}: more than {MOST_DEPTH} values deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, has_aliases = open_nodes.pop()
            if anchor is not None:
                is_nested[anchor] = has_aliases
        elif isinstance(event, yaml.ScalarEvent) and event.anchor is not None:
            is_nested[event.anchor] = False


def _note(node: Any, place: tuple[Any, ...], lines: Lines) -> None:
    """Notes the lines of a node and of all its parts."""
    import yaml

    lines[place] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        seen = set[Any]()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError(f"line {line}: a key is not text")
            if key.value in seen:
                raise ValueError(f"line {line}: {key.value!r} is there twice")
            seen.add(key.value)
            _note(value, (*place, key.value), lines)
            lines[(*place, key.value)] = line
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            _note(value, (*place, number), lines)
