"""What stays of a cluster after its stack: how big it is, and its removal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shoal.clusters.aws.calls import CallRefused, Calls
from shoal.clusters.aws.file import RUNS
from shoal.clusters.aws.policy import END_ROLE
from shoal.clusters.aws.preview import dollars
from shoal.clusters.aws.prices import listed_prices
from shoal.errors import ClusterError

MOST_AT_ONCE = 1000
"""Objects that S3 removes in a call."""
IN_USE, GONE = "FileSystemInUse", "FileSystemNotFound"


def kept_sentences(
    calls: Calls, name: str, *, account: str, bucket: str, files: str
) -> list[str]:
    """Returns what stays on purpose, its size, its price, and how to remove it.

    Args:
        calls: Calls of AWS.
        name: Name of the cluster.
        account: Id of the account.
        bucket: Its bucket.
        files: Id of the file system that its stack has made; "" for none.
    """
    again = f"shoal cluster down {name} --region {calls.region} --delete-storage"
    return [
        *_files_that_stay(calls, files, again),
        _objects_that_stay(calls, name, account, bucket, again),
        f"Runs stay in s3://{bucket}/{RUNS}, which all clusters share.",
        _role_that_stays(),
    ]


def remove(calls: Calls, name: str, *, account: str, bucket: str) -> list[str]:
    """Removes the file systems that stacks of a cluster made, and its objects.

    Args:
        calls: Calls of AWS.
        name: Name of the cluster; its stack is gone.
        account: Id of the account.
        bucket: Its bucket.

    Returns:
        Sentences about what was removed and what stays.

    Raises:
        ClusterError: A part cannot be removed.
    """
    said: list[str] = []
    for one in _file_systems(calls, name):
        _remove_files(calls, one)
        said.append(f"The file system {one} is removed.")
    names = [one["Key"] for one in _objects(calls, name, account, bucket)]
    for first in range(0, len(names), MOST_AT_ONCE):
        part = [{"Key": key} for key in names[first : first + MOST_AT_ONCE]]
        told = calls.ask(
            "s3", "DeleteObjects", Bucket=bucket, ExpectedBucketOwner=account,
            Delete={"Objects": part, "Quiet": True},
        )  # fmt: skip
        if told.get("Errors"):
            error = told["Errors"][0]
            raise ClusterError(
                f"{error.get('Key')} in the bucket {bucket} cannot be removed: "
                f"{error.get('Message')}. Expected permission to remove all of "
                f"clusters/{name}. Repeat the command with that permission."
            )
    said.append(
        f"{len(names)} objects of clusters/{name} in the bucket {bucket} are removed."
    )
    runs = f"s3://{bucket}/{RUNS}"
    said.append(
        f"Runs stay in {runs}, of all clusters: shoal runs prune --root {runs}."
    )
    return [*said, _role_that_stays()]


def forgotten(calls: Calls, id_of: str, files: str) -> list[str]:
    """Returns sentences about whatever still has the tag of the cluster."""
    found = calls.pages(
        "resourcegroupstaggingapi", "GetResources", "ResourceTagMappingList",
        TagFilters=[{"Key": "shoal:id", "Values": [id_of]}],
    )  # fmt: skip
    try:
        names = [str(one["ResourceARN"]) for one in found]
    except ClusterError as error:
        return [f"What else has the tag of the cluster cannot be told: {error}"]
    return [
        f"Still has the tag of the cluster: {name}."
        for name in names
        if not files or not name.endswith(f"/{files}")
    ]


def _role_that_stays() -> str:
    return (
        f"The role {END_ROLE}, which ends clusters, stays: it is free, one an account."
    )


def _files_that_stay(calls: Calls, name: str, again: str) -> list[str]:
    """Returns a sentence about the file system that the stack has made."""
    if not name:
        return []
    try:
        told = calls.ask("efs", "DescribeFileSystems", FileSystemId=name)
    except CallRefused:
        return []  # it is gone
    except ClusterError:
        size = None  # the stack is deleted: a report is no reason to fail
    else:
        size = told["FileSystems"][0].get("SizeInBytes", {}).get("Value", 0) / 1e9
    return [
        f"The file system {name} stays: {_priced(calls, size, 'efs_gb_month')}. Use it "
        f"again by `shared: {name}`, or remove it: {again}."
    ]


def _objects_that_stay(
    calls: Calls, name: str, account: str, bucket: str, again: str
) -> str:
    try:
        sizes = [one["Size"] for one in _objects(calls, name, account, bucket)]
    except ClusterError:
        size = None
    else:
        size = sum(sizes) / 1e9
    known = _priced(calls, size, "bucket_gb_month")
    return (
        f"The bucket {bucket} stays, with logs of this cluster in clusters/{name}: "
        f"{known}. Remove those: {again}."
    )


def _priced(calls: Calls, size: float | None, what: str) -> str:
    if size is None:
        return "its size is unknown"
    price = listed_prices(calls.region).other(what)
    return f"{size:.1f} GB, {dollars(None if price is None else price * size)} a month"


def _objects(
    calls: Calls, name: str, account: str, bucket: str
) -> Iterator[Mapping[str, Any]]:
    return calls.pages(
        "s3", "ListObjectsV2", "Contents", Bucket=bucket, Prefix=f"clusters/{name}/",
        ExpectedBucketOwner=account,
    )  # fmt: skip


def _file_systems(calls: Calls, name: str) -> Iterator[str]:
    """Yields the file systems that a stack of the cluster has made, by their tag."""
    marker: dict[str, str] = {}
    while True:
        told = calls.ask("efs", "DescribeFileSystems", **marker)
        for one in told["FileSystems"]:
            tags = {tag["Key"]: tag["Value"] for tag in one.get("Tags", ())}
            if tags.get("shoal:cluster") == name:
                yield str(one["FileSystemId"])
        if not told.get("NextMarker"):
            return
        marker = {"Marker": told["NextMarker"]}


def _remove_files(calls: Calls, name: str) -> None:
    try:
        calls.ask("efs", "DeleteFileSystem", FileSystemId=name)
    except CallRefused as error:
        if error.code == GONE:
            return
        advice = (
            "another cluster, or a machine of yours, mounts it: end that before"
            if error.code == IN_USE
            else "look at the reason"
        )
        raise ClusterError(
            f"the file system {name} cannot be removed: {error.said}. Expected nothing "
            f"to use it; {advice}, then repeat."
        ) from error
