"""A copy on this machine's disks, for programs that read no other storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from shoal.errors import DataError
from shoal.paths import inside
from shoal.runs.folder import Folder

ODD = (DataError, FileExistsError, IsADirectoryError, NotADirectoryError)
"""A name that leads out of the copy, or that is both a file and a folder."""


def _unheard(_: str) -> None:
    """Ignores a line."""


@final
class LocalCopy:
    """A copy of a folder whose files appear and grow, but do not change otherwise.

    Args:
        source: Folder to copy; it need not exist yet.
        target: A folder of this machine. Storage accepts names that no disk does, such
            as those with "..": files of such names are left out.
        complain: Called once for each file that is left out.

    Example:
        >>> import tempfile
        >>> source = Folder.at("memory://doctest-local-copy")
        >>> source.write("train/a", b"fish")
        >>> with tempfile.TemporaryDirectory() as target:
        ...     LocalCopy(source, Path(target)).update()
        4
    """

    def __init__(
        self, source: Folder, target: Path, complain: Callable[[str], None] = _unheard
    ) -> None:
        self._source, self._target, self._complain = source, target, complain
        self._left_out: set[str] = set()

    def update(self) -> int:
        """Copies new bytes; returns their number.

        Raises:
            OSError: The storage, or the disk, refuses.
        """
        return sum(self._copy(name, size) for name, size in self._listed().items())

    def _listed(self) -> dict[str, int]:
        """Returns names of files inside the source, and their sizes."""
        source = self._source
        source.fs.invalidate_cache(source.path)
        try:
            found: dict[str, Any] = source.fs.find(source.path, detail=True)
        except FileNotFoundError:
            return {}
        start = f"{source.path}/"
        return {
            path.removeprefix(start): int(about.get("size") or 0)
            for path, about in found.items()
            if path.startswith(start)
        }

    def _copy(self, name: str, size: int) -> int:
        if name in self._left_out:
            return 0
        try:
            return self._grow(inside(self._target, name), name, size)
        except ODD as error:
            self._left_out.add(name)
            self._complain(f"a file of {self._source.url} is left out: {error}")
            return 0

    def _grow(self, path: Path, name: str, size: int) -> int:
        have = path.stat().st_size if path.exists() else 0
        if size <= have:
            return 0
        path.parent.mkdir(parents=True, exist_ok=True)
        # A reader may have it open: it grows here as it does in the source.
        with path.open("ab") as file:
            return file.write(self._source.read(name, have))
