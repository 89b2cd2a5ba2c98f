"""The temporary directory of this process, which may be removed while a run goes on.

Cleaners, batch systems and people remove it. What is made in it from now on needs it
all the same, also what libraries make there: Keras writes an archive through it.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from shoal.host.private import make_private

SYSTEM = frozenset({"/tmp", "/var/tmp", "/usr/tmp"})
"""Folders of all users, which are not this process' to make."""


KERAS_SAVING = "keras.src.saving.saving_lib"


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


@contextmanager
def keras_saving() -> Generator[None]:
    """Keras saves a model in here, for which it needs the temporary directory.

    Keras removes its folders there after the last write, so not where one fails: each
    model that a full disk does not take would leave one. They are removed here.

    Raises:
        NoTemporaryFolder: See `temporary_folder`.
    """
    temporary_folder()
    config = import_module("keras").config
    is_filtered = config.is_traceback_filtering_enabled()
    config.disable_traceback_filtering()  # the error tells where they are
    try:
        yield
    except Exception as error:
        _remove_left(error)
        raise
    finally:
        if is_filtered:
            config.enable_traceback_filtering()


def _remove_left(error: BaseException) -> None:
    """Removes folders that calls of Keras' saving have made and did not come to."""
    if error.__context__ is not None:  # closing the file failed as well
        _remove_left(error.__context__)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") != KERAS_SAVING:
            continue
        found = frame.f_locals
        owners = [found.get(name) for name in ("self", "asset_store")]
        folders = [found.get("temp_dir"), *(getattr(o, "tmp_dir", "") for o in owners)]
        for folder in folders:
            if folder and Path(folder).parent == Path(tempfile.gettempdir()):
                shutil.rmtree(folder, ignore_errors=True)


def _again(folder: Path) -> Path:
    if str(folder) not in SYSTEM:
        try:
            make_private(folder)
            return folder
        except OSError:
            pass  # its parent is not ours to write to, or gone for good
    tempfile.tempdir = None
    return Path(tempfile.gettempdir())
