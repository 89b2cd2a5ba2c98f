"""Clusters in all regions of an account, also those that this machine does not know."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

from shoal.clusters.aws.calls import Calls
from shoal.clusters.aws.choices import FIRST_REGION, enabled_regions, identity_of
from shoal.errors import ShoalError


@final
@dataclass(frozen=True, kw_only=True)
class FoundStack:
    """A stack of Shoal.

    Args:
        name: Name of the cluster.
        id: Its id.
        region: Its region.
        status: Status of the stack.
        end: Its end in UTC; "" for none.
    """

    name: str
    id: str
    region: str
    status: str
    end: str


def search(
    profile: str | None, first: str = FIRST_REGION["aws"]
) -> tuple[list[FoundStack], dict[str, str]]:
    """Returns the stacks of Shoal in all enabled regions, and regions that failed.

    Args:
        profile: Profile of the credentials; None for the environment's.
        first: Region that is asked which there are.

    Raises:
        CredentialsError: The credentials are missing, expired or too weak.
    """
    calls = Calls(first, profile)
    try:
        regions = enabled_regions(calls, identity_of(calls))
        with ThreadPoolExecutor(8) as pool:
            futures = {name: pool.submit(_in_region, calls, name) for name in regions}
        found: list[FoundStack] = []
        failed: dict[str, str] = {}
        for name, future in futures.items():
            try:
                found += future.result()
            except ShoalError as error:  # one region does not hide the others
                failed[name] = str(error)
        return found, failed
    finally:
        calls.close()


def _in_region(calls: Calls, region: str) -> list[FoundStack]:
    told = calls.pages("cloudformation", "DescribeStacks", "Stacks", region=region)
    found: list[FoundStack] = []
    for one in told:
        tags = _pairs(one.get("Tags", ()), "Key", "Value")
        if "shoal:cluster" in tags and one["StackStatus"] != "DELETE_COMPLETE":
            values = one.get("Parameters", ())
            end = _pairs(values, "ParameterKey", "ParameterValue").get("EndAt", "")
            found.append(
                FoundStack(
                    name=tags["shoal:cluster"], id=tags.get("shoal:id", ""),
                    region=region, status=str(one["StackStatus"]), end=end,
                )
            )  # fmt: skip
    return found


def _pairs(listed: Any, key: str, value: str) -> Mapping[str, str]:
    return {str(one.get(key)): str(one.get(value, "")) for one in listed}
