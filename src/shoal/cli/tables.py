"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

PIPE_WIDTH = 200
"""Columns assumed where there is no terminal, so that no id is cut in a pipe."""


def show_json(value: Any) -> None:
    """Prints a value as JSON, and nothing else."""
    typer.echo(json.dumps(value, indent=2, default=str))


def show_table(rows: Iterable[Sequence[Any]], *, columns: Sequence[str]) -> None:
    """Prints rows under column names; numbers are set to the right."""
    cells = [[format_cell(value) for value in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(columns):
        is_numeric = all(_is_numeric(row[place]) for row in cells)
        # Names and ids are what people copy: they are never cut.
        table.add_column(
            column,
            justify="right" if cells and is_numeric else "left",
            no_wrap=place == 0,
            overflow="fold",
        )
    for row in cells:
        table.add_row(*row)
    _console().print(table)


def show_records(records: Sequence[Mapping[str, Any]]) -> None:
    """Prints mappings as a table; the columns are their keys, in order."""
    columns = list(dict.fromkeys(key for record in records for key in record))
    rows = [[record.get(column) for column in columns] for record in records]
    show_table(rows, columns=columns)


def format_cell(value: Any) -> str:
    """Returns a value as people read it.

    Example:
        >>> format_cell(1234567), format_cell(0.123456), format_cell(None)
        ('1,234,567', '0.1235', '-')
    """
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"
    return str(value)


def format_seconds(seconds: float) -> str:
    """Returns a duration as people say it.

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


def _is_numeric(cell: str) -> bool:
    bare = cell.replace(",", "").replace(".", "").lstrip("-").replace("e-", "")
    return cell == "-" or bare.isdigit()
