"""Who may read the folders and files that Shoal makes: their owner, unless told more.

A run folder takes the group's permissions of the root it is made in, if somebody has
given it any: permissions that all users have alike are what `mkdir` gives by itself.
Inside a run folder all is as the folder around it. A default ACL goes before both.
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
        mode: Of the root, as `stat` tells.

    Example:
        >>> [oct(shared_mode(mode)) for mode in (0o755, 0o1777, 0o750, 0o2775)]
        ['0o700', '0o700', '0o750', '0o770']
    """
    group, others = mode & _GROUP, (mode & 0o007) << 3
    says_nothing = group == others and not mode & stat.S_ISGID
    return OWN if says_nothing else OWN | group


def make_private(path: Path) -> None:
    """Makes a folder, and missing ones around it, for their owner only.

    Those that stand stay as they are.

    Raises:
        OSError: It cannot be made.
    """
    _make(path, lambda _: OWN)


def make_alike(path: Path) -> None:
    """Makes a folder, and missing ones around it, with the mode of the one around all.

    Raises:
        OSError: It cannot be made.
    """
    _make(path, lambda around: around.st_mode & _FOLDER | OWN)


def make_inside(path: Path) -> None:
    """Makes a new folder that the group may use as the one around it, see above.

    Args:
        path: Where nothing may be yet, not even a link.

    Raises:
        FileExistsError: Something is there.
    """
    _make_new(path, OWN)
    share(path)


def share(path: Path) -> None:
    """Lets the group use a new folder of this user as the one around it."""
    around, found = path.parent.stat(), path.stat()
    mode = shared_mode(around.st_mode)
    if mode == OWN or _has_acl(path.parent):
        return
    if found.st_gid != around.st_gid:
        try:
            os.chown(path, -1, around.st_gid)
        except OSError:  # not a member of that group; another one is not meant
            return
        mode |= stat.S_ISGID  # so that all in it is of that group
    _set_mode(path, mode | found.st_mode & stat.S_ISGID)


def _make(path: Path, mode_in: Callable[[os.stat_result], int]) -> None:
    if os.path.isdir(path) or path == path.parent:
        return
    _make(path.parent, mode_in)
    try:
        _make_new(path, mode_in(path.parent.stat()))
    except FileExistsError:  # another process was faster, or it is a file
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "is no folder", path) from None


def _make_new(path: Path, mode: int) -> None:
    """Makes a folder of a mode, whatever the mask of the process is."""
    if _has_acl(path.parent):
        path.mkdir(0o777)
        return
    path.mkdir(OWN)
    if mode != OWN:
        # The bit by which new files take the folder's group stays.
        _set_mode(path, mode | path.stat().st_mode & stat.S_ISGID)


def _set_mode(path: Path | int, mode: int) -> None:
    with suppress(OSError):  # a file system without modes: it stays as it was made
        os.chmod(path, mode)


def alike(path: str, flags: int) -> int:
    """An `opener` of `open`: a file that it makes is shared as its folder is.

    Example:
        >>> with open("notes", "ab", opener=alike) as file:
        ...     _ = file.write(b"fish")
    """
    if not flags & os.O_CREAT:
        return os.open(path, flags)
    folder = Path(path).parent
    mode = 0o666 if _has_acl(folder) else 0o600
    try:
        descriptor = os.open(path, flags | os.O_EXCL, mode)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        return os.open(path, flags, mode)
    if mode == 0o600 and _file_mode(folder) != mode:
        _set_mode(descriptor, _file_mode(folder))
    return descriptor


def protect(file: Path | int, folder: Path) -> None:
    """Shares a file that another call made as the folder is that it belongs to.

    Args:
        file: Path, or the descriptor of an open one.
        folder: Where it is, or will be.
    """
    if not _has_acl(folder):
        _set_mode(file, _file_mode(folder))


def is_own(path: Path) -> bool:
    """Tells whether a folder is one that only this user can put something into.

    Args:
        path: Of a folder; a link to one is none.

    Raises:
        FileNotFoundError: Nothing is there.
    """
    found = path.lstat()
    is_mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return is_mine and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _file_mode(folder: Path) -> int:
    return folder.stat().st_mode & _FILE | 0o600


def _has_acl(folder: Path) -> bool:
    """Whether new files of a folder get an access list, which a mode would cut."""
    if not hasattr(os, "getxattr"):
        return False
    with suppress(OSError):
        return bool(os.getxattr(folder, _DEFAULT_ACL))
    return False
