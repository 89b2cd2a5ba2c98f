"""Which backend Keras computes with, where the user has not said."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from shoal.backends import BACKENDS
from shoal.errors import ConfigError

KERAS_DEFAULT = "tensorflow"
"""What Keras takes unless told otherwise, and writes into its own keras.json."""


def choose_backend(wanted: str = "") -> None:
    """Sets KERAS_BACKEND to an installed backend that can train.

    A choice of the user's is left alone: the variable, or another name than Keras'
    own default in keras.json. So is a Keras that is loaded already.

    Args:
        wanted: The one that is needed, "" for any.

    Raises:
        ConfigError: None is called so.
    """
    if wanted and wanted not in BACKENDS:
        raise ConfigError(
            f"no backend is called {wanted!r}. Expected one of {', '.join(BACKENDS)}. "
            "Look at backend in plan.json of the run."
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
    """Returns which backend of Keras an import failed for, empty for none.

    Example:
        >>> missing_backend(ModuleNotFoundError("No module", name="torch.nn"))
        'torch'
    """
    if not isinstance(error, ModuleNotFoundError):
        return ""
    name = (error.name or "").partition(".")[0]
    return name if name in BACKENDS else ""


def _configured() -> str:
    """The backend in Keras' file of settings."""
    folder = os.environ.get("KERAS_HOME") or Path.home() / ".keras"
    try:
        settings = json.loads(Path(folder, "keras.json").read_text())
        return str(settings.get("backend") or KERAS_DEFAULT)
    except (OSError, ValueError, AttributeError):
        return KERAS_DEFAULT
