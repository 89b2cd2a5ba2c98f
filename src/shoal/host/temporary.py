"""The temporary directory of this process, which may be removed while a run goes on.

Cleaners, batch systems and people remove it. What is made in it from now on needs it
all the same, also what libraries make there: Keras writes an archive through it.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

from shoal.host.private import make_private

SYSTEM = frozenset({"/tmp", "/var/tmp", "/usr/tmp"})
"""Folders of all users, which are not this process' to make."""


class NoTemporaryFolder(OSError):
    """There is no folder for temporary files, and none can be made."""


def temporary_folder() -> Path:
    """Returns the temporary directory; makes it again where it has been removed.

    Where that is not allowed, Python chooses another one, for the whole process.

    Raises:
        NoTemporaryFolder: There is none, and none can be made.

    Example:
        >>> temporary_folder().is_dir()
        True
    """
    try:
        folder = Path(tempfile.gettempdir())
        if os.path.isdir(folder):
            return folder
        found = _again(folder)
    except OSError as error:
        raise NoTemporaryFolder(
            error.errno,
            f"there is no temporary directory any more ({error.strerror or error}). "
            "Expected one that stays, with free space, until the run has ended. Set "
            "TMPDIR to a folder that no cleaner removes",
        ) from error
    logging.getLogger("shoal").warning(
        f"the temporary directory {folder} was removed while it is in use; "
        f"temporary files go to {found} now. Set TMPDIR to a folder that stays until "
        "the run has ended."
    )
    return found


def _again(folder: Path) -> Path:
    if str(folder) not in SYSTEM:
        try:
            make_private(folder)
            return folder
        except OSError:
            pass  # its parent is not ours to write to, or gone for good
    tempfile.tempdir = None
    return Path(tempfile.gettempdir())
