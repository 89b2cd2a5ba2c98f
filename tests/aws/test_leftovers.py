"""What stays of a cluster is priced, and removed on request; moto in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import boto3
import pytest

from shoal.clusters.aws import leftovers
from shoal.clusters.aws.calls import Calls
from shoal.errors import ClusterError
from tests.aws.conftest import OUTSIDE

pytestmark = [pytest.mark.aws, pytest.mark.slow]

ACCOUNT, BUCKET = "123456789012", "shoal-123456789012-us-east-1"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    moto = pytest.importorskip("moto")
    for name in (*OUTSIDE, "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with moto.mock_aws(), closing(Calls("us-east-1", None)) as found:
        found.ask("s3", "CreateBucket", Bucket=BUCKET)
        yield found


def make_files(calls: Calls, cluster: str) -> str:
    made = calls.ask(
        "efs", "CreateFileSystem", CreationToken=cluster,
        Tags=[{"Key": "shoal:cluster", "Value": cluster}],
    )  # fmt: skip
    return str(made["FileSystemId"])


def put(calls: Calls, *keys: str) -> None:
    for key in keys:
        calls.ask("s3", "PutObject", Bucket=BUCKET, Key=key, Body=b"x" * 1000)


def test_what_stays_is_told_with_its_price_and_the_command(calls: Calls) -> None:
    files = make_files(calls, "prod")
    put(calls, "clusters/prod/0/logs/i-1/boot.log", "clusters/other/0/logs/boot.log")
    told = leftovers.kept_sentences(
        calls, "prod", account=ACCOUNT, bucket=BUCKET, files=files
    )
    again = "shoal cluster down prod --region us-east-1 --delete-storage"
    assert told[0].startswith(
        f"The file system {files} stays: 0.0 GB, 0.0000 $ a month."
    )
    assert again in told[0]
    assert "logs of this cluster in clusters/prod: 0.0 GB, 0.0000 $ a month" in told[1]
    assert again in told[1]
    assert f"s3://{BUCKET}/runs" in told[2]
    assert "The role shoal-end" in told[3]


def test_only_what_is_of_the_cluster_is_removed(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "MOST_AT_ONCE", 2)
    mine, other = make_files(calls, "prod"), make_files(calls, "prod2")
    kept = ["clusters/prod2/0/a", "runs/2026/events", "mine"]
    put(calls, *kept, *(f"clusters/prod/0/{n}" for n in range(5)))
    told = leftovers.remove(calls, "prod", account=ACCOUNT, bucket=BUCKET)
    assert told[0] == f"The file system {mine} is removed."
    assert told[1].startswith("5 objects of clusters/prod in the bucket")
    left = calls.ask("efs", "DescribeFileSystems")["FileSystems"]
    assert [one["FileSystemId"] for one in left] == [other]
    listed = calls.ask("s3", "ListObjectsV2", Bucket=BUCKET)["Contents"]
    assert sorted(one["Key"] for one in listed) == sorted(kept)
    told = leftovers.remove(calls, "prod", account=ACCOUNT, bucket=BUCKET)
    assert told[0].startswith("0 objects of")


def test_a_file_system_that_is_mounted_stays_with_the_reason(calls: Calls) -> None:
    make_files(calls, "prod")
    [files] = [
        one["FileSystemId"]
        for one in calls.ask("efs", "DescribeFileSystems")["FileSystems"]
    ]
    client = boto3.client("ec2", region_name="us-east-1")
    [subnet, *_] = client.describe_subnets()["Subnets"]
    client.close()
    calls.ask(
        "efs", "CreateMountTarget", FileSystemId=files, SubnetId=subnet["SubnetId"]
    )
    put(calls, "clusters/prod/0/a")
    with pytest.raises(ClusterError, match="mounts it: end that before"):
        leftovers.remove(calls, "prod", account=ACCOUNT, bucket=BUCKET)
    listed = calls.ask("s3", "ListObjectsV2", Bucket=BUCKET)
    assert listed["KeyCount"] == 1  # nothing was removed
