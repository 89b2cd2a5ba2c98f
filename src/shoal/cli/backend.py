"""The choice of Keras' backend, if the user has made none."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from shoal.backends import BACKENDS
from shoal.errors import ConfigError

KERAS_DEFAULT = "tensorflow"
"""The default of Keras, which it writes into its own keras.json."""


def choose_backend(wanted: str = "") -> None:
    """Sets KERAS_BACKEND to an installed backend that can train.

    A choice of the user is kept: the variable, or another name than Keras'
    default in keras.json. A Keras that is already loaded is kept, too.

    Args:
        wanted: Name of the backend that is needed, "" for any.

    Raises:
        ConfigError: No backend has that name.
    """
    if wanted and wanted not in BACKENDS:
        raise ConfigError(
            f"no backend is called {wanted!r}. Expected one of {', '.join(BACKENDS)}. "
            "See backend in plan.json of the run."
        )
    if "keras" in sys.modules or os.environ.get("KERAS_BACKEND"):
        return
    if wanted:
        os.environ["KERAS_BACKEND"] = wanted
        return
    configured = _configured()
    if configured != KERAS_DEFAULT and find_spec(configured):
        return
    for name in BACKENDS:
        if find_spec(name):
            os.environ["KERAS_BACKEND"] = name
            return


def missing_backend(error: BaseException) -> str:
    """Returns the backend of Keras that an import failed for, empty for none.

    Example:
        >>> missing_backend(ModuleNotFoundError("No module", name="torch.nn"))
        'torch'
    """
    if not isinstance(error, ModuleNotFoundError):
        return ""
    name = (error.name or "").partition(".")[0]
    return name if name in BACKENDS else ""


def _configured() -> str:
    """Returns the backend in Keras' settings file."""
    folder = os.environ.get("KERAS_HOME") or Path.home() / ".keras"
    try:
        settings = json.loads(Path(folder, "keras.json").read_text())
        return str(settings.get("backend") or KERAS_DEFAULT)
    except (OSError, ValueError, AttributeError):
        return KERAS_DEFAULT
