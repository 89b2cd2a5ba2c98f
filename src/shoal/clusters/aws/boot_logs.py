"""Logs of the nodes' boots, from the bucket: also after a rollback, or `down`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shoal.clusters.aws.calls import Calls
from shoal.clusters.aws.nodes import Place
from shoal.clusters.provider import LogText

MOST_BYTES = 1 << 24


def newest(calls: Calls, place: Place) -> Place:
    """Returns the place of the last cluster of a name that wrote a log.

    Args:
        calls: Calls of AWS.
        place: Its name, account and bucket; the id does not count.
    """
    start = f"clusters/{place.name}/"
    listed = calls.pages(
        "s3", "ListObjectsV2", "Contents", Bucket=place.bucket, Prefix=start,
        ExpectedBucketOwner=place.account,
    )  # fmt: skip
    written = [
        (one["LastModified"], str(one["Key"]).removeprefix(start).split("/")[0])
        for one in listed
        if "/logs/" in str(one["Key"])
    ]
    return replace(place, id=max(written)[1]) if written else place


def logs_of(calls: Calls, place: Place, instance: str = "") -> Iterator[LogText]:
    """Yields the logs of a cluster's nodes, or of one, as far as they are written.

    Args:
        calls: Calls of AWS.
        place: Where the cluster is, or was.
        instance: Id of an instance; "" for all.
    """
    start = f"{place.prefix}/logs/" + (f"{instance}/" if instance else "")
    listed = calls.pages(
        "s3", "ListObjectsV2", "Contents", Bucket=place.bucket, Prefix=start,
        ExpectedBucketOwner=place.account,
    )  # fmt: skip
    for one in listed:
        whose, _, name = (
            str(one["Key"]).removeprefix(f"{place.prefix}/logs/").partition("/")
        )
        most = {"Range": f"bytes=-{MOST_BYTES}"} if one["Size"] > MOST_BYTES else {}
        found = calls.ask(
            "s3", "GetObject", Bucket=place.bucket, Key=one["Key"],
            ExpectedBucketOwner=place.account, **most,
        )  # fmt: skip
        text = found["Body"].read().decode("utf-8", "replace")
        yield LogText(machine=whose, name=name, text=text)
