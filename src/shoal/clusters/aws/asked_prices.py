"""Prices of today, asked from AWS; the dated table is behind them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from shoal.clusters.aws.calls import Calls
from shoal.clusters.aws.prices import Prices, listed_prices
from shoal.errors import ShoalError

PRICE_LISTS = {"aws": "us-east-1", "aws-cn": "cn-northwest-1"}
"""Regions that answer for the prices of all regions of a partition."""
COMMON = {
    "operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA",
    "capacitystatus": "Used", "licenseModel": "No License required",
}  # fmt: skip
LINUX = "Linux/UNIX"


def asked_prices(
    calls: Calls, types: Sequence[str], *, zone: str = "", partition: str = "aws"
) -> Prices:
    """Returns prices of today; those that AWS does not tell are of the table.

    Args:
        calls: Calls of AWS, in the region of the machines.
        types: Instance types.
        zone: Zone of spot prices; "" for the lowest of all.
        partition: Partition of AWS.
    """
    listed = listed_prices(calls.region)
    wanted = list(dict.fromkeys(types))
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    try:
        found = _on_demand(calls, wanted, PRICE_LISTS.get(partition, "us-east-1"))
        why = ", ".join(one for one in wanted if one not in found)
    except ShoalError as error:  # a policy without it is no reason to make nothing
        found, why = {}, f"all of it: {str(error).split('. Expected')[0]}"
    try:
        spot = _spot(calls, wanted, zone)
    except ShoalError:
        spot = {}
    if not found:
        origin = f"{listed.origin}; AWS did not tell {why}"
    elif why:
        origin = f"list prices of {today} from AWS; for {why} {listed.origin}"
    else:
        origin = f"list prices of machines of {today} from AWS; else {listed.origin}"
    instances = {**listed.instances, **found}
    return replace(listed, origin=origin, instances=instances, spot=spot)


def _on_demand(calls: Calls, types: Sequence[str], region: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in types:
        fields = {**COMMON, "regionCode": calls.region, "instanceType": one}
        told = calls.ask(
            "pricing", "GetProducts", region=region, ServiceCode="AmazonEC2",
            Filters=[
                {"Type": "TERM_MATCH", "Field": name, "Value": value}
                for name, value in fields.items()
            ],
        )  # fmt: skip
        price = hourly_price(told.get("PriceList", ()))
        if price is not None:
            found[one] = price
    return found


def hourly_price(products: Iterable[str]) -> float | None:
    """Returns the price of an hour in an answer of the Price List API.

    Args:
        products: Entries of `PriceList`, as JSON.

    Returns:
        The price; None if there is none, or if several differ.
    """
    prices: set[float] = set()
    for text in products:
        try:
            terms: Any = json.loads(text)["terms"]["OnDemand"]
            for term in terms.values():
                for part in term["priceDimensions"].values():
                    if part["unit"] == "Hrs":
                        prices.add(float(part["pricePerUnit"]["USD"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    prices.discard(0.0)  # reservations of capacity, which are no machines
    return prices.pop() if len(prices) == 1 else None


def _spot(calls: Calls, types: Sequence[str], zone: str) -> dict[str, float]:
    where = {"AvailabilityZone": zone} if zone else {}
    listed = calls.pages(
        "ec2", "DescribeSpotPriceHistory", "SpotPriceHistory",
        InstanceTypes=list(types), ProductDescriptions=[LINUX],
        StartTime=datetime.now(UTC), **where,
    )  # fmt: skip
    return lowest(listed)


def lowest(entries: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Returns instance type -> its lowest spot price.

    Example:
        >>> lowest([{"InstanceType": "a", "SpotPrice": "0.3"},
        ...         {"InstanceType": "a", "SpotPrice": "0.2"}])
        {'a': 0.2}
    """
    found: dict[str, float] = {}
    for one in entries:
        name, price = str(one["InstanceType"]), float(one["SpotPrice"])
        found[name] = min(price, found.get(name, price))
    return found
