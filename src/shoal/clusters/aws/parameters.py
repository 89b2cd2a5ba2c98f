"""From a file, and what AWS was asked, to the stack's parameters and tags. Pure."""

from __future__ import annotations

import ipaddress
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import final

from shoal.clusters.aws.file import AwsFile
from shoal.clusters.aws.instance_types import has_efa, has_placement

LATER = "(chosen by `up`)"
"""Value of a parameter that only AWS knows, in a dry run."""


@final
@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a file leaves open, chosen with answers of AWS.

    Args:
        image: Id of the image.
        login: Its login user.
        root_device: Name of its root device.
        zone: Availability zone.
        bucket: Name of the bucket.
        key_name: Name of the EC2 key pair; "" for none.
        sources: Ranges of addresses that may use SSH.
        end_role: ARN of the role that deletes the stack.
        files_group: Security group of an existing file system to be opened; "" for
            one that is open.
    """

    image: str = LATER
    login: str = LATER
    root_device: str = LATER
    zone: str = LATER
    bucket: str = LATER
    key_name: str = LATER
    sources: tuple[str, ...] = ()
    end_role: str = LATER
    files_group: str = ""


def end_of(hours: float | None, now: datetime) -> str:
    """Returns the end as the schedule takes it: UTC, whole seconds; "" for none.

    Example:
        >>> end_of(1.5, datetime(2026, 1, 2, 3, 0, tzinfo=UTC)), end_of(None, None)
        ('2026-01-02T04:30:00', '')
    """
    if hours is None:
        return ""
    end = now.astimezone(UTC) + timedelta(hours=hours)
    return end.strftime("%Y-%m-%dT%H:%M:%S")


def subnets_of(cidr: str) -> tuple[str, str]:
    """Returns the addresses of the public and of the private subnet.

    Example:
        >>> subnets_of("10.0.0.0/16")
        ('10.0.0.0/20', '10.0.128.0/17')
    """
    whole = ipaddress.ip_network(cidr)
    public = next(whole.subnets(prefixlen_diff=4))
    _, private = whole.subnets(prefixlen_diff=1)
    return str(public), str(private)


def parameters_of(
    spec: AwsFile,
    choices: Choices,
    *,
    id_of: str,
    end_at: str,
    setup: str = "",
    agent: str = "",
    keeps_failed: bool = False,
) -> dict[str, str]:
    """Returns the parameters of the stack.

    Args:
        spec: The file.
        choices: What it leaves open.
        id_of: Id of the cluster.
        end_at: End in UTC; "" for none.
        setup: Digest of the setup script; "" for none.
        agent: Digest of the nodes' agent; "" for none.
        keeps_failed: Whether nodes that cannot boot stay, to be looked at.
    """
    public, private = subnets_of(spec.network.cidr)
    master, workers, network = spec.master, spec.workers, spec.network
    return {
        "ClusterName": spec.name,
        "ClusterId": id_of,
        "ImageId": choices.image,
        "LoginUser": choices.login,
        "RootDevice": choices.root_device,
        "Python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "MasterType": master.type,
        "MasterDiskGib": str(master.disk_gib),
        "WorkerType": workers.type,
        "WorkerCount": str(workers.count),
        "WorkerDiskGib": str(workers.disk_gib),
        "LeastWorkers": str(workers.min),
        "SettleSeconds": str(spec.settle_minutes * 60),
        "KeepsFailed": _yes(keeps_failed),
        "UsesPlacement": _yes(has_placement(workers.type) and workers.count > 1),
        "UsesEfa": _yes(has_efa(workers.type)),
        "KeyName": "" if spec.access.session_manager else choices.key_name,
        "UsesSessionManager": _yes(spec.access.session_manager),
        "Zone": choices.zone,
        "Cidr": network.cidr,
        "PublicCidr": public,
        "PrivateCidr": private,
        "Vpc": network.vpc or "",
        "PublicSubnet": network.public_subnet or "",
        "PrivateSubnet": network.private_subnet or "",
        "Proxy": network.proxy or "",
        "Bucket": choices.bucket,
        "FileSystem": "new" if spec.storage.shared == "efs" else spec.storage.shared,
        "FileSystemGroup": choices.files_group,
        "Mount": spec.storage.mount,
        "Runs": spec.runs_in(choices.bucket),
        "SetupDigest": setup,
        "AgentDigest": agent,
        "NodeRoleName": spec.roles.node or "",
        "EndRole": choices.end_role,
        "PermissionsBoundary": spec.roles.permissions_boundary or "",
        "EndAt": end_at,
        "WaitSeconds": str(spec.wait_minutes * 60),
    }


def tags_of(spec: AwsFile, id_of: str) -> dict[str, str]:
    """Returns the tags of the stack, which CloudFormation hands on to its resources."""
    return {**spec.tags, "shoal:cluster": spec.name, "shoal:id": id_of}


def _yes(said: bool) -> str:
    return "yes" if said else "no"
