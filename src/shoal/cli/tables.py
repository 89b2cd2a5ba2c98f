"""Output of commands: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console

from shoal.terminal import say
from shoal.training.tables import table_of, table_of_records

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
"""Option of the commands that print a table, or JSON."""

PIPE_WIDTH = 200
"""Columns assumed if there is no terminal, so that no id is cut in a pipe."""


def show_json(value: Any) -> None:
    """Prints a value as JSON, and nothing else."""
    say(json.dumps(value, indent=2, default=str))


def show_table(rows: Iterable[Sequence[Any]], *, columns: Sequence[str]) -> None:
    """Prints rows under column names; numbers are right-aligned."""
    _console().print(table_of(rows, columns))


def show_records(records: Sequence[Mapping[str, Any]]) -> None:
    """Prints mappings as a table; the columns are their keys, in order."""
    _console().print(table_of_records(records))


def format_seconds(seconds: float) -> str:
    """Returns a duration in words.

    Example:
        >>> format_seconds(3.21), format_seconds(75), format_seconds(7260)
        ('3.2 s', '1 min 15 s', '2 h 01 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _console() -> Console:
    is_terminal = sys.stdout.isatty()
    return Console(width=None if is_terminal else PIPE_WIDTH, highlight=False)
