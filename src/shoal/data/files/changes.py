"""Files of a source that have changed since it was opened.

A run that is resumed reads them again. Names, sizes and the marks that a store gives
each version of a file are compared; contents are not read. The source's folders are
searched again, for new files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, final

from shoal.data.files.format import extension
from shoal.data.files.listing import find_files, mark_of
from shoal.data.files.source import FileSource
from shoal.data.files.store import FileEntry, Store
from shoal.data.frames import FrameSource
from shoal.data.weighted import ClassWeighted
from shoal.errors import ShoalError

LOCAL = frozenset({"file", "local", "memory"})


class FileChanges(NamedTuple):
    """Files that changed, each as "url: how".

    Args:
        certain: Files that are gone, of another size, or of another version in the
            store.
        likely: Files written to since, by the time of their last change.
        new: Files that the source would find now, and does not read.
    """

    certain: tuple[str, ...] = ()
    likely: tuple[str, ...] = ()
    new: tuple[str, ...] = ()


def changes_of(source: Any) -> FileChanges:
    r"""Compares the files of a source with the present ones.

    Args:
        source: Source of any kind; one that reads no files has no changes.

    Example:
        >>> import pathlib
        >>> from shoal.data.files import open_files
        >>> _ = pathlib.Path("c.csv").write_text("a,y\n1,2\n")
        >>> source = open_files("c.csv", label="y")
        >>> _ = pathlib.Path("c.csv").write_text("a,y\n1,2\n3,4\n")
        >>> changes_of(source).certain
        ('.../c.csv: 12 bytes, 8 before',)
    """
    while isinstance(source, ClassWeighted | FrameSource):
        source = source.inner
    if not isinstance(source, FileSource):
        return FileChanges()
    store: Store | None = getattr(source.reader, "store", None)
    if store is None:
        return FileChanges()
    certain: list[str] = []
    likely: list[str] = []
    look = _Look(store)
    for file in _files_of(source):
        how, is_certain = _difference(file, look)
        if how:
            (certain if is_certain else likely).append(f"{file.url}: {how}")
    return FileChanges(tuple(certain), tuple(likely), _new_files(source, store))


def _new_files(source: FileSource, store: Store) -> tuple[str, ...]:
    """Returns files that the source would read now besides its own.

    Files of another format, by their names, belong to other programs and are ignored.
    """
    files, search = {file.url: file for file in _files_of(source)}, source.search
    searched = [] if search is None else [u for u in search.urls if u not in files]
    if search is None or not searched:
        return ()
    try:
        found = find_files(searched, store).files
    except (OSError, ShoalError):  # missing files are reported one by one
        return ()
    unread = {file.url: file for file in search.unread}
    kinds = {extension(file.name) for file in files.values()}
    others = [
        file for file in found if file.url not in files and file != unread.get(file.url)
    ]
    return tuple(
        f"{file.url}: {'changed, and was left out' if file.url in unread else 'new'}"
        for file in others
        if extension(file.name) in kinds
    )


def _files_of(source: FileSource) -> Iterable[FileEntry]:
    parts = (part for portion in source.portions for part in portion.parts)
    return {part.file.url: part.file for part in parts}.values()


def _difference(file: FileEntry, look: _Look) -> tuple[str, bool]:
    """Returns what changed, and whether the contents must differ; "" for nothing."""
    try:
        info = look(file)
    except FileNotFoundError:
        return "gone", True
    except (OSError, NotImplementedError):  # reading the file raises it again
        return "", False
    size = info.get("size")
    if size is not None and int(size) != file.size_bytes:
        return f"{int(size):,} bytes, {file.size_bytes:,} before", True
    mark = mark_of(info)
    if not mark or not file.mark or mark == file.mark:
        return "", False
    return "written to since", not look.is_local(file)


@final
class _Look:
    """Facts about files from a store; one request a folder for remote files.

    Args:
        store: Store of the files.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folders: dict[str, dict[str, Any]] = {}

    def is_local(self, file: FileEntry) -> bool:
        """Whether a file lies on this machine, where marks are times of changes."""
        protocols = self._store.filesystem(file.url).protocol
        names = (protocols,) if isinstance(protocols, str) else protocols
        return not LOCAL.isdisjoint(names)

    def __call__(self, file: FileEntry) -> Mapping[str, Any]:
        """Returns the listing's facts about a file.

        Raises:
            FileNotFoundError: The file is gone.
        """
        system, path = self._store.filesystem(file.url), self._store.path(file.url)
        if self.is_local(file):
            return system.info(path)
        folder, slash, _ = path.rpartition("/")
        if not slash:
            return system.info(path)
        if folder not in self._folders:
            found = system.ls(folder, detail=True)
            self._folders[folder] = {str(info["name"]): info for info in found}
        try:
            return self._folders[folder][path]
        except KeyError:
            raise FileNotFoundError(path) from None
