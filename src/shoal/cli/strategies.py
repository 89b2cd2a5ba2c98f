"""`shoal strategies`: lists the strategies."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Annotated, Any

import typer

from shoal.cli.tables import show_json, show_table
from shoal.strategies import Strategy, registry


def show_strategies(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Lists the strategies: name, kind, period, parameters, paper."""
    rows = [describe_strategy(registry.load(name)) for name in registry.names()]
    if as_json:
        show_json(rows)
        return
    show_table(
        [
            (
                row["name"],
                row["kind"],
                row["period"] or "epoch",
                ", ".join(f"{k}={v}" for k, v in row["parameters"].items()),
                row["paper"],
            )
            for row in rows
        ],
        columns=("name", "kind", "period", "parameters", "paper"),
    )


def describe_strategy(strategy: type[Strategy]) -> dict[str, Any]:
    """Returns the table row of a strategy.

    Example:
        >>> from shoal.strategies import AEASGD
        >>> found = describe_strategy(AEASGD)
        >>> found["kind"], found["period"], found["paper"]
        ('asynchronous', 10, 'Zhang, Choromanska, LeCun (2015), arXiv:1412.6651')
    """
    defaults = {field.name: field.default for field in fields(strategy)}
    return {
        "name": strategy.name,
        "kind": "asynchronous" if strategy.is_asynchronous else "rounds",
        "period": defaults.pop("period"),
        "parameters": defaults,
        "paper": paper_of(strategy.__doc__ or ""),
    }


def paper_of(docstring: str) -> str:
    r"""Returns the first reference of a docstring, up to its identifier.

    Example:
        >>> paper_of("Title.\n\nReferences:\n    Stich (2018), arXiv:1805.09767, x.")
        'Stich (2018), arXiv:1805.09767'
    """
    found = re.search(r"References:\n(.+)", inspect.cleandoc(docstring), re.DOTALL)
    if not found:
        return ""
    text = " ".join(found[1].split())
    short = re.match(r".*?(arXiv:|doi:)[\w./]*\w", text)
    return short[0] if short else text.rstrip(".")
