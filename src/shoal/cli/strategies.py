"""`shoal strategies`: lists the strategies."""

from __future__ import annotations

from shoal.cli.tables import AsJson, show_json, show_table
from shoal.strategies import registry
from shoal.strategies.describing import describe_strategy


def show_strategies(
    as_json: AsJson = False,
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
