"""Asks AWS about the machines of a cluster: instances, groups, the nodes' objects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from shoal.clusters.aws.calls import CallRefused, Calls
from shoal.clusters.aws.degrade import failures_of
from shoal.clusters.aws.members import (
    Formed,
    Joined,
    Member,
    joined_of,
    members_of,
)
from shoal.errors import ClusterError


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
    """Returns the members as they are now, and sentences about others."""
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


def refused_launches(calls: Calls, group: str) -> list[str]:
    """Returns reasons of failed launches of an Auto Scaling group."""
    told = calls.ask(
        "autoscaling", "DescribeScalingActivities", AutoScalingGroupName=group
    )
    return failures_of(told["Activities"])


def formed(calls: Calls, place: Place) -> Formed | None:
    """Returns what the master's agent has decided; None before it has.

    Raises:
        ClusterError: The object is broken.
    """
    try:
        answer = calls.ask(
            "s3", "GetObject", Bucket=place.bucket, Key=f"{place.prefix}/formed.json",
            ExpectedBucketOwner=place.account,
        )  # fmt: skip
    except CallRefused as error:
        if error.code != "NoSuchKey":
            raise
        return None
    try:
        return Formed.model_validate_json(answer["Body"].read())
    except ValueError as error:
        raise ClusterError(
            f"s3://{place.bucket}/{place.prefix}/formed.json is broken: {error}. "
            "Expected what the master's agent writes. Look at the log of the master: "
            f"shoal cluster logs {place.name}."
        ) from error


def token_of(calls: Calls, place: Place) -> str:
    """Returns Ray's token, which the stack has made.

    Raises:
        ClusterError: The secret has no token.
    """
    name = f"shoal-{place.name}-{place.id}"
    told = calls.ask("secretsmanager", "GetSecretValue", SecretId=name)
    token = str(told.get("SecretString", ""))
    if not re.fullmatch("[0-9A-Za-z]{64}", token):
        raise ClusterError(
            f"the secret {name} is no token of Ray. Expected the 64 characters that "
            f"the stack has made. Run `shoal cluster down {place.name}`, then `up`."
        )
    return token
