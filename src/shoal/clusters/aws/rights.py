"""Dry runs: whether the caller may make machines and a network, before money.

EC2 carries out all of a call but its effect where `DryRun` is set. Other services have
no dry run.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from shoal.clusters.aws.calls import CallDenied, CallRefused, Calls, denial_of
from shoal.clusters.aws.file import AwsFile
from shoal.errors import ProvisionError

DryRun: TypeAlias = tuple[str, Mapping[str, Any]]
"""An operation of EC2, such as "RunInstances", and its arguments."""


def dry_runs_of(spec: AwsFile, image: str) -> list[DryRun]:
    """Returns the calls that stand for what the stack makes. Pure.

    Machines have the types, tags and metadata options of the template, as a policy
    may demand these.

    Args:
        spec: The file, with its region.
        image: Id of the image.
    """
    tags = [{"Key": name, "Value": value} for name, value in spec.tags.items()]
    network = spec.network
    machine: dict[str, Any] = {
        "ImageId": image, "MinCount": 1, "MaxCount": 1,
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
    }  # fmt: skip
    if tags:
        machine["TagSpecifications"] = [
            {"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")
        ]
    where = {"VpcId": network.vpc} if network.vpc is not None else {}
    found: list[DryRun] = [
        (
            "CreateSecurityGroup",
            {"GroupName": spec.stack, "Description": spec.stack, **where},
        ),
        (
            "CreateLaunchTemplate",
            {
                "LaunchTemplateName": spec.stack,
                "LaunchTemplateData": {"ImageId": image},
            },
        ),
    ]
    if network.vpc is None:
        found += [
            ("CreateVpc", {"CidrBlock": network.cidr}),
            ("CreateInternetGateway", {}),
            ("AllocateAddress", {"Domain": "vpc"}),
        ]
    else:
        machine["SubnetId"] = network.private_subnet
    found += [
        ("RunInstances", {**machine, "InstanceType": kind})
        for kind in sorted({spec.master.type, spec.workers.type})
    ]
    return found


def require_rights(spec: AwsFile, calls: Calls, image: str) -> None:
    """Refuses credentials that may not make what the stack needs.

    Args:
        spec: The file, with its region.
        calls: Calls of AWS.
        image: Id of the image.

    Raises:
        CredentialsError: Some actions are denied; all of them in one message.
    """
    asked = dry_runs_of(spec, image)
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda one: _denied(calls, one), asked))
    denied = [one for one in answers if one is not None]
    if denied:
        raise denial_of(
            sorted({one.name for one in denied}), denied[0].said,
            region=calls.region, profile=calls.profile,
        )  # fmt: skip


def _denied(calls: Calls, asked: DryRun) -> CallDenied | None:
    """Makes a dry run; returns its denial, None where it may be called.

    What else is wrong with it, such as an account without a default VPC, says nothing
    about rights.
    """
    operation, request = asked
    try:
        calls.ask("ec2", operation, DryRun=True, **request)
    except CallDenied as error:
        return error
    except (CallRefused, ProvisionError):
        pass
    return None
