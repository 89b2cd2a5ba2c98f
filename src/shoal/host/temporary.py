"""The temporary directory of this process, which may be removed during a run.

Cleaners, batch systems and people remove it. Later temporary files need it again,
also those of libraries: Keras writes an archive through it.
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
"""Folders of all users, which this process must not create."""


KERAS_SAVING = "keras.src.saving.saving_lib"


class NoTemporaryFolder(OSError):
    """There is no folder for temporary files, and none can be made."""


def temporary_folder() -> Path:
    """Returns the temporary directory; makes it again if it was removed.

    If that is not allowed, Python chooses another one, for the whole process.

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
    """Context in which Keras saves a model, with a temporary directory.

    Keras removes its folders there after the last write, but not after a failing one:
    each model that a full disk refuses would leave a folder. They are removed here.

    Raises:
        NoTemporaryFolder: See `temporary_folder`.
    """
    temporary_folder()
    config = import_module("keras").config
    is_filtered = config.is_traceback_filtering_enabled()
    config.disable_traceback_filtering()  # the traceback has their paths
    try:
        yield
    except Exception as error:
        _remove_left(error)
        raise
    finally:
        if is_filtered:
            config.enable_traceback_filtering()


def _remove_left(error: BaseException) -> None:
    """Removes folders that Keras' saving created and did not remove."""
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
            pass  # its parent is not writable, or gone
    tempfile.tempdir = None
    return Path(tempfile.gettempdir())
