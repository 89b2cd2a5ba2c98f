"""Tells which lines of a log are of an error: by their words, and by tracebacks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import final

_WORD = re.compile(
    r"(?<!\bno )(?<!\bwithout )(?<![\w-])"
    r"(error|exception|critical|fatal|traceback|keyboardinterrupt)\b(?!-free)",
    re.IGNORECASE,
)
_NAME = re.compile(r"[a-z](Error|Exception)\b")
"""The name of an exception; a metric such as `mean_squared_error` is none."""
_HEAD = "Traceback (most recent call last)"
_FRAME = re.compile(r'( *)File ".*", line [0-9]+')


@final
class ErrorLines:
    r"""Finds lines of errors in one log, in the order of the log.

    A traceback goes on until its last line, which names the exception. A part of a log
    may begin within one: its frames tell.

    Example:
        >>> text = "1\nTraceback (most recent call last):\n  boom()\nBoom: x\nok"
        >>> lines = ErrorLines()
        >>> [lines.is_error(line) for line in text.split("\n")]
        [False, True, True, True, False]
    """

    def __init__(self) -> None:
        self._indent: int | None = None
        """Spaces before the traceback that goes on, None outside of one."""

    def is_error(self, text: str) -> bool:
        """Returns whether the next line is of an error."""
        indent = len(text) - len(text.lstrip(" "))
        frame = _FRAME.match(text)
        if _HEAD in text:
            self._indent = indent
        elif frame and self._indent is None:
            self._indent = max(0, indent - 2)
        elif self._indent is None:
            return bool(_WORD.search(text) or _NAME.search(text))
        elif text.strip() and indent <= self._indent:
            self._indent = None
        return True


def errors_among(texts: Iterable[str]) -> list[bool]:
    """Returns which of the following lines of a log are of an error.

    Example:
        >>> errors_among(["[error] x", "no errors were found: ErrorRate"])
        [True, False]
    """
    lines = ErrorLines()
    return [lines.is_error(text) for text in texts]
