"""What `up` would make of a file, and its price: without credentials or network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from shoal.clusters.aws.cost import Cost, cost_of
from shoal.clusters.aws.file import AwsFile
from shoal.clusters.aws.parameters import Choices, end_of, parameters_of, tags_of
from shoal.clusters.aws.policy import calls_of, policy_of
from shoal.clusters.aws.prices import Prices, listed_prices
from shoal.clusters.aws.template import template
from shoal.clusters.provider import Preview, Section

_RESOURCE = re.compile(
    r"^  (\w+):\n(?:    #.*\n)*    Type: (AWS::\S+)\n(?:    Condition: (\w+)\n)?", re.M
)
LATER_ID = "00000000"


def preview_of(spec: AwsFile, now: datetime, prices: Prices | None = None) -> Preview:
    """Returns what `up` would make of a file.

    Args:
        spec: The file, with its region.
        now: Present time.
        prices: Prices; default None means the table of this package.
    """
    cost = cost_of(spec, prices or listed_prices(spec.region or ""))
    sources = spec.access.ssh_from
    text = template([s for s in sources if s != "me"], spec.tags)
    end_at = end_of(cost.hours, now)
    values = parameters_of(spec, Choices(), id_of=LATER_ID, end_at=end_at)
    calls = calls_of(spec)
    sections = (
        Section(
            title=f"Stack {spec.stack} in {spec.region}",
            columns=("resource", "type", "only if"),
            rows=tuple(resources_of(text)),
        ),
        Section(
            title="Parameters", columns=("name", "value"), rows=tuple(values.items())
        ),
        Section(
            title="Calls of AWS, in order", columns=("call", "why"),
            rows=tuple((call.name, call.why) for call in calls),
        ),
        cost_section(cost),
    )  # fmt: skip
    return Preview(
        sections=sections,
        closing=(
            *closing_of(spec, cost, end_at),
            "`shoal cluster template FILE` prints the template, `policy FILE` the IAM "
            "policy that the caller needs.",
        ),
        details={
            "stack": spec.stack,
            "region": spec.region,
            "parameters": dict(values),
            "tags": dict(tags_of(spec, LATER_ID)),
            "calls": [call.name for call in calls],
            "cost": cost_details(cost),
            "end": end_at or None,
            "policy": policy_of(spec),
            "template": text,
        },
    )


def resources_of(text: str) -> list[tuple[str, str, str]]:
    """Returns the resources of a template: name, type, condition."""
    body = text.partition("\nResources:\n")[2].partition("\nOutputs:\n")[0]
    return [(name, kind, only or "") for name, kind, only in _RESOURCE.findall(body)]


def cost_section(cost: Cost) -> Section:
    """Returns the parts of a price as a table."""
    rows: list[tuple[str, int | str, str, str]] = [
        (
            part.name, part.count, dollars(part.dollars),
            "-" if part.spot is None else dollars(part.spot),
        )
        for part in cost.parts
    ]  # fmt: skip
    rows.append(("all", "", dollars(cost.hour), ""))
    return Section(
        title=f"Price of an hour ({cost.origin})",
        columns=("part", "number", "on demand", "spot"),
        rows=tuple(rows),
    )


def closing_of(spec: AwsFile, cost: Cost, end_at: str) -> tuple[str, ...]:
    """Returns the price until the end, and what is added by use, as sentences."""
    day = None if cost.hour is None else 24 * cost.hour
    lines = [f"An hour costs {dollars(cost.hour)}, a day {dollars(day)}."]
    if cost.hours is None:
        lines.append("No end is set: it costs until `shoal cluster down`.")
    else:
        lines.append(
            f"It ends by itself at {end_at} UTC, after {cost.hours:.1f} hours, and has "
            f"cost {dollars(cost.total)} then."
        )
    used = [f"{name} {dollars(price)} a {unit}" for name, price, unit in cost.by_use]
    lines.append(f"By use: {'; '.join(used)}.")
    if cost.unknown:
        lines.append(f"Unknown is the price of {', '.join(cost.unknown)}.")
    if spec.access.session_manager:
        lines.append("No port is open; the way in is Session Manager.")
    else:
        lines.append(
            f"SSH to the master is open to {_listed(spec.access.ssh_from)}, and no "
            "other port to anybody outside."
        )
    return tuple(lines)


def cost_details(cost: Cost) -> dict[str, object]:
    """Returns a price as JSON."""
    return {
        "prices": cost.origin,
        "parts": [
            {"name": p.name, "count": p.count, "dollars": p.dollars, "spot": p.spot}
            for p in cost.parts
        ],
        "hour": cost.hour,
        "hours": cost.hours,
        "total": cost.total,
        "by_use": [
            {"name": name, "dollars": price, "unit": unit}
            for name, price, unit in cost.by_use
        ],
    }


def dollars(price: float | None) -> str:
    """Returns a price for people.

    Example:
        >>> dollars(1234.5), dollars(0.0045), dollars(None)
        ('1,234.50 $', '0.0045 $', 'unknown')
    """
    if price is None:
        return "unknown"
    return f"{price:,.2f} $" if price >= 0.1 else f"{price:.4f} $"


def _listed(sources: Sequence[str]) -> str:
    return ", ".join("this machine's address" if s == "me" else s for s in sources)
