"""Asks AWS about the machines of a cluster: instances, groups, the nodes' objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from shoal.clusters.aws.calls import Calls
from shoal.clusters.aws.degrade import failures_of
from shoal.clusters.aws.members import (
    MASTER,
    WORKER,
    Joined,
    Member,
    joined_of,
    members_of,
)


@final
@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a cluster is in AWS; a fact of its state.

    Args:
        id: Id of the cluster.
        name: Name of the cluster.
        account: Id of the account.
        bucket: Its bucket.
    """

    id: str
    name: str
    account: str
    bucket: str

    @property
    def prefix(self) -> str:
        """Returns the start of all keys of the cluster in the bucket."""
        return f"clusters/{self.name}/{self.id}"


def instances_of(calls: Calls, id_of: str) -> list[Mapping[str, Any]]:
    """Returns EC2's descriptions of the instances of a cluster."""
    found = calls.pages(
        "ec2", "DescribeInstances", "Reservations",
        Filters=[{"Name": "tag:shoal:id", "Values": [id_of]}],
    )  # fmt: skip
    return [one for reservation in found for one in reservation["Instances"]]


def objects_of(calls: Calls, place: Place, kind: str = "nodes") -> dict[str, bytes]:
    """Returns objects of nodes: instance -> content.

    Args:
        calls: Calls of AWS.
        place: Where the cluster is.
        kind: "nodes", which their boots write, or "joined", which their agents do.
    """
    start = f"{place.prefix}/{kind}/"
    listed = calls.pages(
        "s3", "ListObjectsV2", "Contents", Bucket=place.bucket, Prefix=start,
        ExpectedBucketOwner=place.account,
    )  # fmt: skip
    found: dict[str, bytes] = {}
    for one in listed:
        name = str(one["Key"]).removeprefix(start)
        if name.endswith(".json") and "/" not in name and one["Size"] < 1 << 16:
            answer = calls.ask(
                "s3", "GetObject", Bucket=place.bucket, Key=one["Key"],
                ExpectedBucketOwner=place.account,
            )  # fmt: skip
            found[name.removesuffix(".json")] = answer["Body"].read()
    return found


def members(calls: Calls, place: Place) -> tuple[list[Member], list[str]]:
    """Returns the members as they are now, and sentences about wrong objects."""
    return members_of(instances_of(calls, place.id), objects_of(calls, place))


def joined(calls: Calls, place: Place, members: Sequence[Member]) -> dict[str, Joined]:
    """Returns instance -> what its agent says about its joining Ray."""
    found: dict[str, Joined] = {}
    content = objects_of(calls, place, "joined")
    for one in members:
        told = joined_of(content.get(one.instance, b""), one)
        if told is not None:
            found[one.instance] = told
    return found


@final
class Groups:
    """The Auto Scaling groups of a cluster.

    Args:
        calls: Calls of AWS.
        names: "master" and "worker" -> name of the group.
    """

    def __init__(self, calls: Calls, names: Mapping[str, str]) -> None:
        self._calls, self._names = calls, names

    def failures(self) -> dict[str, list[str]]:
        """Returns "master" and "worker" -> reasons of failed launches."""
        return {
            role: failures_of(
                self._calls.ask(
                    "autoscaling", "DescribeScalingActivities",
                    AutoScalingGroupName=name,
                )["Activities"]
            )
            for role, name in self._names.items()
        }  # fmt: skip

    def lower(self, members: Sequence[Member], count: int) -> None:
        """Lowers the workers' group to those that came, so that it stops to try.

        A machine that did not become a node leaves first: the group would choose any.
        """
        for one in members:
            if one.role == WORKER and not one.is_ready:
                self._calls.ask(
                    "autoscaling", "TerminateInstanceInAutoScalingGroup",
                    InstanceId=one.instance, ShouldDecrementDesiredCapacity=True,
                )  # fmt: skip
        self._calls.ask(
            "autoscaling", "UpdateAutoScalingGroup",
            AutoScalingGroupName=self._names[WORKER], DesiredCapacity=count,
        )  # fmt: skip


def group_names(outputs: Mapping[str, str]) -> dict[str, str]:
    """Returns "master" and "worker" -> name of the group, from a stack's outputs."""
    return {MASTER: outputs["Masters"], WORKER: outputs["Workers"]}
