"""Libraries that only some formats need: imported late, reported if absent."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from shoal.errors import ConfigError


def library(name: str, what: str, extra: str = "files") -> Any:
    """Imports a module that may not be installed.

    Args:
        name: Name of the module: "pyarrow.csv".
        what: What needs it, for the message: "CSV files".
        extra: Extra of Shoal that installs it.

    Raises:
        ConfigError: It is not installed; names the command that installs it.

    Example:
        >>> library("math", "Numbers").floor(1.5)
        1
        >>> library("no_such_module", "Riddles")
        Traceback (most recent call last):
        shoal.errors.ConfigError: Riddles need no_such_module, which is not ...
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{what} need {name.partition('.')[0]}, which is not installed here "
            f"({error}). Expected the extra {extra!r}, on every machine that reads "
            f"them. Install it: pip install 'shoal[{extra}]'"
        ) from error
