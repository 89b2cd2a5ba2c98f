"""A copy on this machine's disks, for programs that read no other storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

from shoal.runs.folder import Folder


@final
class LocalCopy:
    """A copy of a folder whose files come and grow, and do not change otherwise.

    Args:
        source: What is copied; it need not be there yet.
        target: A folder of this machine.

    Example:
        >>> import tempfile
        >>> source = Folder.at("memory://doctest-local-copy")
        >>> source.write("train/a", b"fish")
        >>> with tempfile.TemporaryDirectory() as target:
        ...     LocalCopy(source, Path(target)).update()
        4
    """

    def __init__(self, source: Folder, target: Path) -> None:
        self._source, self._target = source, target

    def update(self) -> int:
        """Copies what is new; returns how many bytes that were.

        Raises:
            OSError: The storage, or the disk, refuses.
        """
        return sum(self._copy(name, size) for name, size in self._listed().items())

    def _listed(self) -> dict[str, int]:
        """Names of files inside the source, and their sizes."""
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
        path = self._target / name
        have = path.stat().st_size if path.exists() else 0
        if size <= have:
            return 0
        path.parent.mkdir(parents=True, exist_ok=True)
        # What reads it may have it open: it grows here as it does there.
        with path.open("ab") as file:
            return file.write(self._source.read(name, have))
