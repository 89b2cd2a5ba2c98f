"""What a cluster costs, by parts, and when its end comes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from shoal.clusters.aws.file import AwsFile
from shoal.clusters.aws.prices import Prices
from shoal.errors import PlanError

HOURS_A_MONTH = 730.0


@final
@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the price.

    Args:
        name: Its name, for people.
        count: Number of it, such as machines or GiB.
        dollars: Price of an hour of all of it; None if it is unknown.
        spot: The same at spot prices; None if it has none, or it is unknown.
    """

    name: str
    count: int
    dollars: float | None
    spot: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a cluster costs while all its machines run.

    Args:
        parts: Parts that cost by the hour.
        origin: Where the prices are from.
        hours: Hours until its end is set; None for no end.
        by_use: What costs by use: name, price and unit.
    """

    parts: tuple[Part, ...]
    origin: str
    hours: float | None
    by_use: tuple[tuple[str, float | None, str], ...]

    @property
    def unknown(self) -> tuple[str, ...]:
        """Returns the parts whose price is unknown."""
        return tuple(part.name for part in self.parts if part.dollars is None)

    @property
    def hour(self) -> float | None:
        """Returns the price of an hour; None if a part of it is unknown."""
        return _sum([part.dollars for part in self.parts])

    @property
    def total(self) -> float | None:
        """Returns the price until its end; None without one, or if it is unknown."""
        if self.hour is None or self.hours is None:
            return None
        return self.hour * self.hours


def _sum(prices: Sequence[float | None]) -> float | None:
    known = [price for price in prices if price is not None]
    return sum(known) if len(known) == len(prices) else None


def _times(count: float, price: float | None) -> float | None:
    return None if price is None else count * price


def cost_of(spec: AwsFile, prices: Prices) -> Cost:
    """Returns what the cluster of a file costs, and when it ends."""
    master, workers = spec.master, spec.workers
    disk = prices.other("disk_gib_month")
    gib = master.disk_gib + workers.count * workers.disk_gib
    parts = [
        Part(
            name=f"master {master.type}", count=1,
            dollars=prices.instance(master.type), spot=prices.spot.get(master.type),
        ),
        Part(
            name=f"workers {workers.type}", count=workers.count,
            dollars=_times(workers.count, prices.instance(workers.type)),
            spot=_times(workers.count, prices.spot.get(workers.type)),
        ),
        Part(name="disks, GiB", count=gib, dollars=_times(gib / HOURS_A_MONTH, disk)),
    ]  # fmt: skip
    secret = _times(1 / HOURS_A_MONTH, prices.other("secret_month"))
    parts.append(Part(name="secret of the token", count=1, dollars=secret))
    addresses = 0 if spec.access.session_manager else 1
    by_use: list[tuple[str, float | None, str]] = []
    if spec.network.vpc is None:
        nat = Part(name="NAT gateway", count=1, dollars=prices.other("nat_hour"))
        parts.append(nat)
        by_use.append(("data through the NAT gateway", prices.other("nat_gb"), "GB"))
        addresses += 1
    if addresses:
        price = _times(addresses, prices.other("address_hour"))
        parts.append(Part(name="public addresses", count=addresses, dollars=price))
    if spec.storage.shared == "efs":
        price = prices.other("efs_gb_month")
        by_use.append(("shared file system", price, "GB and month"))
    price = prices.other("bucket_gb_month")
    by_use.append(("bucket", price, "GB and month"))
    hour = _sum([part.dollars for part in parts])
    hours = _hours(spec, hour)
    return Cost(
        parts=tuple(parts), origin=prices.origin, hours=hours, by_use=tuple(by_use)
    )


def _hours(spec: AwsFile, hour: float | None) -> float | None:
    """Returns the hours until the end: the earlier of both limits."""
    limits = spec.limits
    ends = [limits.max_hours] if limits.max_hours != "none" else []
    if limits.budget_dollars != "none" and hour:
        ends.append(limits.budget_dollars / hour)
    return min(ends) if ends else None


def require_budget(spec: AwsFile, cost: Cost) -> None:
    """Refuses a budget that cannot be kept.

    Raises:
        PlanError: A price is unknown, or the budget does not pay for an hour.
    """
    budget = spec.limits.budget_dollars
    if budget == "none":
        return
    if cost.hour is None:
        raise PlanError(
            f"the budget of {budget:,.2f} $ cannot be checked in {spec.region}: no "
            f"price is known of {', '.join(cost.unknown)}. Expected a known list price "
            "of every part. Choose types and a region whose prices `shoal cluster "
            "cost` knows, or say `budget_dollars: none` and rely on max_hours."
        )
    if budget < cost.hour:
        raise PlanError(
            f"the budget of {budget:,.2f} $ does not pay for an hour of cluster "
            f"{spec.name}, which costs {cost.hour:,.2f} $. Expected at least that. "
            "Raise budget_dollars, or take fewer or smaller machines."
        )
