"""Output of a run's processes, kept on a disk that may fill up.

This file decides that output without room is dropped: a full disk costs a part
of a log, and no worker.
"""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any, final

from shoal.host.limits import is_limit

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@final
class Output(io.FileIO):
    """A descriptor that accepts all output, and keeps as much as there is room for.

    Args:
        descriptor: Descriptor of an open file. Its owner closes it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryFile() as file:
        ...     Output(file.fileno()).write(b"word")
        4
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._lost_bytes = 0

    def write(self, b: ReadableBuffer, /) -> int:
        """Writes bytes, after a note of how many were dropped before.

        Raises:
            OSError: The write failed for another reason than a full disk.
        """
        size = memoryview(b).nbytes
        try:
            if self._lost_bytes:
                text = f"\n[{self._lost_bytes:,} bytes of output had no room]\n"
                super().write(text.encode())
                self._lost_bytes = 0
            return super().write(b) or 0
        except OSError as error:
            if not is_limit(error):
                raise
            self._lost_bytes += size
            return size


def keep_what_has_room() -> None:
    """Makes `print` of this process survive a full disk, with whole lines.

    A line reaches the log when it ends, also the last one of a killed process.
    """
    for name in ("stdout", "stderr"):
        before: Any = getattr(sys, name)
        if not isinstance(before, io.TextIOWrapper):
            continue
        before.flush()
        after = io.TextIOWrapper(
            io.BufferedWriter(Output(before.fileno())),
            encoding=before.encoding,
            errors=before.errors,
            line_buffering=True,
        )
        setattr(sys, name, after)
        setattr(sys, f"__{name}__", after)
