"""List prices: a dated table of this package. A price that is not in it is unknown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, final


@final
@dataclass(frozen=True, kw_only=True)
class Prices:
    """Prices of a region in US dollars; None for one that is unknown.

    Args:
        origin: Where they are from, with the date, for people.
        instances: Instance type -> price of an hour.
        others: Name in prices.json -> price, such as "nat_hour".
        spot: Instance type -> price of a spot instance's hour, where it was asked.
    """

    origin: str
    instances: Mapping[str, float]
    others: Mapping[str, float]
    spot: Mapping[str, float]

    def instance(self, name: str) -> float | None:
        """Returns the price of an hour of a type."""
        return self.instances.get(name)

    def other(self, name: str) -> float | None:
        """Returns another price of the table."""
        return self.others.get(name)


def listed_prices(region: str) -> Prices:
    """Returns the prices of the package's table for a region.

    Example:
        >>> listed_prices("us-east-1").instance("m5.xlarge")
        0.192
        >>> listed_prices("ap-south-1").instance("m5.xlarge") is None
        True
    """
    path = files("shoal.clusters.aws") / "prices.json"
    text = path.read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    found: dict[str, Any] = table["prices"].get(table["regions"].get(region), {})
    return Prices(
        origin=f"list prices of {table['date']}, from a table of this package",
        instances=found.get("instances", {}),
        others={name: price for name, price in found.items() if name != "instances"},
        spot={},
    )
