"""Rows of values as tables, with numbers formatted for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from shoal.terminal import one_line


def table_of(rows: Iterable[Sequence[Any]], columns: Sequence[str]) -> Table:
    """Returns rows under column names; numbers are right-aligned."""
    cells = [[format_cell(value) for value in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(columns):
        is_numeric = all(_is_numeric(row[place]) for row in cells)
        # People copy names and ids: they are never cut.
        table.add_column(
            Text(one_line(column)),
            justify="right" if cells and is_numeric else "left",
            no_wrap=place == 0,
            overflow="fold",
        )
    for row in cells:
        # Plain text, or rich would drop a name such as "[red]".
        table.add_row(*map(Text, row))
    return table


def table_of_records(records: Sequence[Mapping[str, Any]]) -> Table:
    """Returns mappings as a table; the columns are their keys, in order."""
    columns = list(dict.fromkeys(key for record in records for key in record))
    rows = [[record.get(column) for column in columns] for record in records]
    return table_of(rows, columns)


def format_cell(value: Any) -> str:
    """Returns a value formatted for people.

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
    return one_line(str(value))


def _is_numeric(cell: str) -> bool:
    bare = cell.replace(",", "").replace(".", "").lstrip("-").replace("e-", "")
    return cell in ("-", "nan", "inf") or bare.isdigit()
