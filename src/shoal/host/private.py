"""Permissions of the folders and files that Shoal makes: private by default.

A run folder takes the group's permissions of its root, if they were set on
purpose: permissions that all users share are just what `mkdir` gives.
Inside a run folder everything is like the folder around it. A default ACL goes first.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

OWN = 0o700
_GROUP, _FOLDER, _FILE = 0o070, 0o775, 0o664
_DEFAULT_ACL = "system.posix_acl_default"


def shared_mode(mode: int) -> int:
    """Returns the mode of a run folder.

    Args:
        mode: Mode of the root, from `stat`.

    Example:
        >>> [oct(shared_mode(mode)) for mode in (0o755, 0o1777, 0o750, 0o2775)]
        ['0o700', '0o700', '0o750', '0o770']
    """
    group, others = mode & _GROUP, (mode & 0o007) << 3
    says_nothing = group == others and not mode & stat.S_ISGID
    return OWN if says_nothing else OWN | group


def make_private(path: Path) -> None:
    """Makes a folder, and missing parents, for their owner only.

    Existing folders stay unchanged.

    Raises:
        OSError: It cannot be made.
    """
    _make(path, lambda _: OWN)


def make_alike(path: Path) -> None:
    """Makes a folder, and missing parents, with the mode of the existing parent.

    Raises:
        OSError: It cannot be made.
    """
    _make(path, lambda around: around.st_mode & _FOLDER | OWN)


def make_inside(path: Path) -> None:
    """Makes a new folder with the group's permissions of the parent, see above.

    Args:
        path: Path where nothing may exist yet, not even a link.

    Raises:
        FileExistsError: The path exists.
    """
    _make_new(path, OWN)
    share(path)


def share(path: Path) -> None:
    """Gives a new folder of this user the group's permissions of its parent."""
    around, found = path.parent.stat(), path.stat()
    mode = shared_mode(around.st_mode)
    if mode == OWN or _has_acl(path.parent):
        return
    if found.st_gid != around.st_gid:
        try:
            os.chown(path, -1, around.st_gid)
        except OSError:  # not a member of that group; no other group is used
            return
        mode |= stat.S_ISGID  # new entries get that group
    _set_mode(path, mode | found.st_mode & stat.S_ISGID)


def _make(path: Path, mode_in: Callable[[os.stat_result], int]) -> None:
    if os.path.isdir(path) or path == path.parent:
        return
    _make(path.parent, mode_in)
    try:
        _make_new(path, mode_in(path.parent.stat()))
    except FileExistsError:  # another process was faster, or it is a file
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "is not a folder", path) from None


def _make_new(path: Path, mode: int) -> None:
    """Makes a folder of a mode, regardless of the process's mask."""
    if _has_acl(path.parent):
        path.mkdir(0o777)
        return
    path.mkdir(OWN)
    if mode != OWN:
        # The bit that gives new files the folder's group stays set.
        _set_mode(path, mode | path.stat().st_mode & stat.S_ISGID)


def _set_mode(path: Path | int, mode: int) -> None:
    with suppress(OSError):  # a file system without modes: unchanged
        os.chmod(path, mode)


def alike(path: str, flags: int) -> int:
    """An `opener` of `open`: new files are shared like their folder, from the start.

    A mode that is set after `open` would come too late: until then the umask counts.

    Example:
        >>> with open("notes", "ab", opener=alike) as file:
        ...     _ = file.write(b"fish")
    """
    existing = flags & ~os.O_CREAT
    if existing == flags:
        return os.open(path, flags)
    if not flags & os.O_EXCL:
        with suppress(FileNotFoundError):  # first: lines are appended often
            return os.open(path, existing)
    folder = Path(path).parent
    mode = 0o666 if _has_acl(folder) else 0o600
    try:
        descriptor = os.open(path, flags | os.O_EXCL, mode)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        return os.open(path, existing)
    if mode == 0o600 and _file_mode(folder) != mode:
        _set_mode(descriptor, _file_mode(folder))
    return descriptor


def is_own(path: Path) -> bool:
    """Returns whether only this user can create entries in a folder.

    Args:
        path: Path of a folder; a link to one does not count.

    Raises:
        FileNotFoundError: The path does not exist.
    """
    found = path.lstat()
    is_mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return is_mine and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _file_mode(folder: Path) -> int:
    return folder.stat().st_mode & _FILE | 0o600


def _has_acl(folder: Path) -> bool:
    """Whether new files of a folder get an access list, which a mode would restrict."""
    if not hasattr(os, "getxattr"):
        return False
    with suppress(OSError):
        return bool(os.getxattr(folder, _DEFAULT_ACL))
    return False
