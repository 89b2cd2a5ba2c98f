"""Judgements about answers of AWS, before anything is made. Pure.

Each function returns sentences for what is wrong, or raises PlanError with them.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.clusters.aws.file import AwsFile, is_open
from shoal.clusters.aws.instance_types import QUOTAS, architecture, quota_of
from shoal.errors import PlanError

UBUNTU_PYTHON = "3.12"


def faults_of_file(spec: AwsFile, *, opens: bool) -> list[str]:
    """Returns what a file says that cannot work, without asking AWS.

    Args:
        spec: The file.
        opens: Whether SSH may be open to everybody.
    """
    faults: list[str] = []
    wide = [source for source in spec.access.ssh_from if is_open(source)]
    if wide and not opens:
        faults.append(
            f"ssh_from has {', '.join(wide)}, which is everybody. Expected your own "
            "addresses, such as [me]. Name them, or insist by --force-open."
        )
    kinds = {spec.master.type, spec.workers.type}
    if len({architecture(kind) for kind in kinds}) > 1:
        faults.append(
            f"{' and '.join(sorted(kinds))} have processors of different kinds. "
            "Expected one, as one image and environment serves all. Change a type."
        )
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if spec.image == "ubuntu-24.04" and python != UBUNTU_PYTHON:
        faults.append(
            f"ubuntu-24.04 has Python {UBUNTU_PYTHON} only, and this one is {python}. "
            "Expected the same on both sides. Take `image: al2023`."
        )
    return faults


def common_zone(offered: Mapping[str, Sequence[str]], wanted: str, region: str) -> str:
    """Returns the zone for all machines: the first that offers all types.

    Args:
        offered: Type -> zones that offer it.
        wanted: Zone of the file; "auto" for any.
        region: Region, for messages.

    Raises:
        PlanError: There is none.

    Example:
        >>> common_zone({"m5.large": ["b", "a"], "g5.xlarge": ["b"]}, "auto", "eu")
        'b'
    """
    for kind, zones in offered.items():
        if not zones:
            raise PlanError(
                f"the type {kind} does not exist, or is not offered, in {region}. "
                "Expected one of this region. Change the type or the region."
            )
    shared = set.intersection(*(set(zones) for zones in offered.values()))
    if wanted == "auto" and shared:
        return min(shared)
    if wanted in shared:
        return wanted
    listed = "; ".join(
        f"{kind} in {', '.join(sorted(zones))}" for kind, zones in offered.items()
    )
    what = f"zone {wanted}" if wanted != "auto" else "one zone"
    raise PlanError(
        f"not all types are offered in {what}: {listed}. Expected a zone with all of "
        "them. Change a type, `network.zone` or the region."
    )


def vcpus_needed(spec: AwsFile, vcpus: Mapping[str, int]) -> dict[str, int]:
    """Returns how many vCPUs of each quota a cluster needs.

    Args:
        spec: The file.
        vcpus: Type -> vCPUs.
    """
    needed: dict[str, int] = {}
    counts = ((spec.master.type, 1), (spec.workers.type, spec.workers.count))
    for kind, count in counts:
        if family := quota_of(kind):
            needed[family] = needed.get(family, 0) + count * vcpus.get(kind, 0)
    return needed


def faults_of_quotas(
    needed: Mapping[str, int], allowed: Mapping[str, float], region: str
) -> list[str]:
    """Returns quotas that are too low."""
    faults: list[str] = []
    for family, count in needed.items():
        code, name = QUOTAS[family]
        if family in allowed and count > allowed[family]:
            faults.append(
                f"the cluster needs {count} vCPUs of the quota {name!r} ({code}), and "
                f"the account has {allowed[family]:g} in {region}. Expected at least "
                "as many. Ask for more at https://console.aws.amazon.com/"
                f"servicequotas/home/services/ec2/quotas/{code}, or take fewer."
            )
    return faults


def faults_of_image(spec: AwsFile, image: Mapping[str, Any]) -> list[str]:
    """Returns why an image cannot be used: its state, processor, or disk."""
    faults: list[str] = []
    name = f"the image {image.get('ImageId')} ({image.get('Name', '')})"
    if image.get("State", "available") != "available":
        faults.append(
            f"{name} is {image['State']}. Expected one that is available. Name another."
        )
    kind = architecture(spec.workers.type)
    if image.get("Architecture", kind) != kind:
        faults.append(
            f"{name} is for {image['Architecture']}, and {spec.workers.type} is "
            f"{kind}. Expected the same. Change `image` or the types."
        )
    least = least_disk(image)
    small = {spec.master.disk_gib, spec.workers.disk_gib}
    if min(small) < least:
        faults.append(
            f"{name} needs a disk of {least} GiB, and disk_gib is {min(small)}. "
            "Expected at least the image's size. Raise it."
        )
    return faults


def least_disk(image: Mapping[str, Any]) -> int:
    """Returns the size of an image's root disk, GiB."""
    for device in image.get("BlockDeviceMappings", ()):
        if device.get("DeviceName") == image.get("RootDeviceName"):
            return int(device.get("Ebs", {}).get("VolumeSize") or 0)
    return 0


def faults_of_network(
    spec: AwsFile,
    subnets: Sequence[Mapping[str, Any]],
    routes: Sequence[Mapping[str, Any]],
    attributes: Mapping[str, bool],
) -> list[str]:
    """Returns what an existing VPC lacks.

    Args:
        spec: The file, with `vpc` and both subnets.
        subnets: DescribeSubnets' description of both.
        routes: Route tables of the VPC.
        attributes: "enableDnsSupport" and "enableDnsHostnames" of the VPC.
    """
    network = spec.network
    faults = [
        f"the VPC {network.vpc} has {name} off. Expected it on: nodes find the file "
        f"system and the bucket by name. Turn it on: aws ec2 modify-vpc-attribute."
        for name, is_on in attributes.items()
        if not is_on
    ]
    known = {one["SubnetId"]: one for one in subnets}
    wanted = {"public": network.public_subnet, "private": network.private_subnet}
    zones: set[str] = set()
    for part, name in wanted.items():
        subnet = known.get(name or "")
        if subnet is None or subnet.get("VpcId") != network.vpc:
            faults.append(
                f"the {part} subnet {name} is not in the VPC {network.vpc}. Expected "
                "one of this VPC. Change `network`."
            )
            continue
        zones.add(str(subnet.get("AvailabilityZone")))
        if subnet.get("Ipv6Native"):
            faults.append(
                f"the {part} subnet {name} has IPv6 only. Expected IPv4. Name another."
            )
        if not has_way_out(routes, str(name), to_gateway=part == "public"):
            way = "an internet gateway" if part == "public" else "a NAT gateway"
            faults.append(
                f"the {part} subnet {name} has no way out. Expected a route of "
                f"0.0.0.0/0, such as to {way}. Add it to its route table."
            )
    if len(zones) > 1:
        faults.append(
            f"the subnets are in different zones, {', '.join(sorted(zones))}. Expected "
            "one, as traffic between zones costs. Name two of one zone."
        )
    return faults


def has_way_out(
    routes: Sequence[Mapping[str, Any]], subnet: str, *, to_gateway: bool
) -> bool:
    """Tells whether a subnet has a route to everywhere.

    Args:
        routes: Route tables of its VPC.
        subnet: Id of the subnet.
        to_gateway: Whether it must be an internet gateway.
    """
    main: list[Mapping[str, Any]] = []
    own: list[Mapping[str, Any]] = []
    for table in routes:
        for link in table.get("Associations", ()):
            if link.get("SubnetId") == subnet:
                own.append(table)
            elif link.get("Main"):
                main.append(table)
    for route in (r for table in own or main for r in table.get("Routes", ())):
        if route.get("DestinationCidrBlock") == "0.0.0.0/0":
            is_gateway = str(route.get("GatewayId", "")).startswith("igw-")
            return is_gateway or not to_gateway
    return False


def faults_of_files(
    spec: AwsFile, targets: Sequence[Mapping[str, Any]], zone: str, vpc: str | None
) -> list[str]:
    """Returns why an existing file system cannot be used.

    Args:
        spec: The file.
        targets: Its mount targets.
        zone: Zone of the machines.
        vpc: VPC of the machines; None for one that is yet to be made.
    """
    name = spec.storage.shared
    if vpc is None:
        return [
            f"the file system {name} exists, and the network is to be made. Expected "
            "the VPC of its mount target. Name `network.vpc` and its subnets."
        ]
    here = [one for one in targets if one.get("AvailabilityZoneName") == zone]
    if not here:
        zones = sorted({str(one.get("AvailabilityZoneName")) for one in targets})
        return [
            f"the file system {name} has no mount target in {zone}, but in "
            f"{', '.join(zones) or 'none'}. Expected one: they are never made for a "
            "file system of yours. Make one, or choose `network.zone`."
        ]
    if all(one.get("VpcId", vpc) != vpc for one in here):
        return [
            f"the mount target of {name} in {zone} is in another VPC than {vpc}. "
            "Expected the same. Name the VPC of the target."
        ]
    return []


def own_source(told: str) -> str:
    """Returns the range of the one address that "me" stands for.

    Raises:
        PlanError: What was told is no address.

    Example:
        >>> own_source("203.0.113.7"), own_source("2001:db8::1")
        ('203.0.113.7/32', '2001:db8::1/128')
    """
    try:
        return str(ipaddress.ip_network(told.strip()))
    except ValueError as error:
        raise PlanError(
            f"ssh_from says 'me', and this machine's address is unknown: {error}. "
            "Expected a network that is reached from outside. Write the address."
        ) from error
