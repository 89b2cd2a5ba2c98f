"""Examples in docstrings as blocks of code on the pages of the reference.

The reader of docstrings knows the section `Examples:` only. A section `Example:`, which
the code has, would become a quotation whose `>>>` are marks of quotations within it.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

_EXAMPLE = re.compile(r"^([ \t]*)Example:[ \t]*$", re.M)


class DocstringExamples(Extension):
    """Has each section `Example:` read as one of examples."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Changes the docstring of an object before it is read."""
        if obj.docstring is not None:
            obj.docstring.value = examples_of(obj.docstring.value)


def examples_of(text: str) -> str:
    r"""Returns a docstring whose sections of examples have the name that is known.

    Example:
        >>> examples_of("Adds.\n\nExample:\n    >>> 1 + 1\n    2")
        'Adds.\n\nExamples:\n    >>> 1 + 1\n    2'
    """
    return _EXAMPLE.sub(r"\1Examples:", text)
