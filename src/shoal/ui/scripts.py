"""What a script defines, from its syntax alone: nothing of it runs. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def top_names(source: bytes) -> tuple[set[str], list[str]] | None:
    r"""Returns the names of a module that its syntax shows, and its own functions.

    Args:
        source: Content of the file.

    Returns:
        All names, and functions in their order; None where other names are possible,
        as it imports them with a star.

    Raises:
        SyntaxError: It is no Python.
        ValueError: It is no text.

    Example:
        >>> names, own = top_names(b"from a import b as c\nx = 1\ndef make(): ...")
        >>> sorted(names), own
        (['c', 'make', 'x'], ['make'])
    """
    names: set[str] = set()
    functions: list[str] = []
    for node in _statements(ast.parse(source).body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions.append(node.name)
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        else:
            own = [x for name, x in ast.iter_fields(node) if name not in _BLOCKS]
            names |= set(_stored(own))
    return None if "*" in names else (names, functions)


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements of a module, those within `if` and `try` too."""
    for node in body:
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for name in _BLOCKS:
                for inner in getattr(node, name, ()):
                    held = [inner] if isinstance(inner, ast.stmt) else inner.body
                    yield from _statements(held)


def _stored(values: Sequence[object]) -> Iterator[str]:
    """Yields the names that parts of a statement give a value."""
    for value in values:
        if isinstance(value, list):
            yield from _stored(value)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, ast.AST):
            for part in ast.walk(value):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    yield part.id
