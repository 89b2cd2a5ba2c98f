"""The AWS command line, as user data and agents call it, on boto3.

A program in its place: `python command_line.py s3 cp --quiet FROM TO`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPTIONS = ("--quiet", "--delete", "--output", "json")


def run(
    client: Callable[[str], Any], words: list[str], content: bytes | None = None
) -> bytes:
    """Does what a command line says; returns its output.

    Args:
        client: Returns boto3's client of a service.
        words: The command line, without its program.
        content: Standard input.
    """
    match [word for word in words if word not in OPTIONS]:
        case ["s3", *rest]:
            return _s3(client("s3"), rest, content)
        case ["ec2", "describe-instances", "--filters", text]:
            return _json(client("ec2").describe_instances(Filters=_filters(text)))
        case ["autoscaling", "describe-auto-scaling-groups", "--filters", text]:
            groups = client("autoscaling")
            return _json(groups.describe_auto_scaling_groups(Filters=_filters(text)))
        case [
            "autoscaling", "describe-scaling-activities",
            "--auto-scaling-group-name", name,
        ]:  # fmt: skip
            groups = client("autoscaling")
            return _json(groups.describe_scaling_activities(AutoScalingGroupName=name))
        case [
            "autoscaling", "set-desired-capacity", "--auto-scaling-group-name", name,
            "--desired-capacity", size,
        ]:  # fmt: skip
            client("autoscaling").set_desired_capacity(
                AutoScalingGroupName=name, DesiredCapacity=int(size)
            )
        case [
            "autoscaling", "terminate-instance-in-auto-scaling-group",
            "--instance-id", name, how,
        ]:  # fmt: skip
            client("autoscaling").terminate_instance_in_auto_scaling_group(
                InstanceId=name,
                ShouldDecrementDesiredCapacity=how.startswith("--should"),
            )
        case ["secretsmanager", "get-secret-value", "--secret-id", name]:
            return _json(client("secretsmanager").get_secret_value(SecretId=name))
        case _:
            raise SystemExit(f"unknown: {words}")
    return b""


def _s3(s3: Any, words: list[str], content: bytes | None) -> bytes:
    match words:
        case ["sync", url, folder]:
            where = _split(f"{url}/")
            found = s3.list_objects_v2(Bucket=where["Bucket"], Prefix=where["Key"])
            for one in found.get("Contents", ()):
                body = s3.get_object(Bucket=where["Bucket"], Key=one["Key"])["Body"]
                (Path(folder) / Path(one["Key"]).name).write_bytes(body.read())
        case ["cp", source, url] if url.startswith("s3://"):
            body = content if source == "-" else Path(source).read_bytes()
            s3.put_object(**_split(url), Body=body or b"")
        case ["cp", url, target]:
            body = s3.get_object(**_split(url))["Body"].read()
            if target == "-":
                return body
            Path(target).write_bytes(body)
        case _:
            raise SystemExit(f"unknown: s3 {words}")
    return b""


def _split(url: str) -> dict[str, str]:
    bucket, _, key = url.removeprefix("s3://").partition("/")
    return {"Bucket": bucket, "Key": key}


def _filters(text: str) -> list[dict[str, Any]]:
    name, _, values = text.partition(",Values=")
    return [{"Name": name.removeprefix("Name="), "Values": values.split(",")}]


def _json(told: Any) -> bytes:
    return json.dumps(told, default=_iso).encode()


def _iso(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def main() -> None:
    import boto3

    words = sys.argv[1:]
    content = sys.stdin.buffer.read() if "-" in words[2:-1] else None
    try:
        told = run(boto3.client, words, content)
    except Exception as error:  # as the command line says it
        sys.exit(f"{type(error).__name__}: {error}")
    with os.fdopen(1, "wb", closefd=False) as output:
        output.write(told)


if __name__ == "__main__":
    main()
