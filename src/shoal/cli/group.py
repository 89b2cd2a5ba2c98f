"""Errors on the command line: a message, a status, and no traceback."""

from __future__ import annotations

from typing import Any, final

import typer
from typer.core import TyperGroup

from shoal.backends import BACKENDS
from shoal.cli.backend import missing_backend
from shoal.errors import ConfigError, DataError, PlanError, ShoalError
from shoal.terminal import say

USER_ERROR, FAILURE = 2, 1


@final
class ErrorGroup(TyperGroup):
    """Runs a command; turns its errors into a message on standard error.

    `--debug` lets the exception through, with its traceback.
    """

    def invoke(self, ctx: Any) -> Any:
        """Runs the command that the command line names."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if ctx.params.get("debug") or _is_typers_own(error):
                raise
            say(_message(error), err=True)
            raise typer.Exit(exit_status(error)) from error


def exit_status(error: Exception) -> int:
    """Returns 2 for an error that the user can correct, 1 for a failure.

    Example:
        >>> exit_status(ConfigError("workers=0")), exit_status(OSError("disk full"))
        (2, 1)
    """
    is_user_error = isinstance(error, (ConfigError, PlanError, DataError))
    return USER_ERROR if is_user_error or missing_backend(error) else FAILURE


def _is_typers_own(error: Exception) -> bool:
    """Whether an error is Typer's own: an exit, a usage error or a closed pipe."""
    is_usage = hasattr(error, "format_message")
    return is_usage or isinstance(error, (typer.Exit, typer.Abort, BrokenPipeError))


def _message(error: Exception) -> str:
    if name := missing_backend(error):
        return (
            f"Keras computes with {name}, which is not installed. Expected it, "
            f"or another one chosen by KERAS_BACKEND: {', '.join(BACKENDS)}. "
            f"Run: pip install 'shoal[{name}]'."
        )
    notes = getattr(error, "__notes__", [])
    said = "\n".join([f"{type(error).__name__}: {error}", *notes])
    if isinstance(error, ShoalError):
        return said
    return (
        f"{said}\n"
        "This error was not expected; `shoal --debug` shows where it was raised."
    )
