"""Asks AWS whether a file can work, and what it leaves open; makes nothing."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

from shoal.clusters.aws import checks
from shoal.clusters.aws.calls import CallRefused, Calls
from shoal.clusters.aws.file import ME, AwsFile
from shoal.clusters.aws.instance_types import QUOTAS, architecture, has_gpu
from shoal.clusters.aws.keys import PublicKey, key_of
from shoal.clusters.aws.parameters import Choices
from shoal.clusters.aws.rights import require_rights
from shoal.clusters.aws.storage import Identity, bucket_name, has_bucket
from shoal.errors import ClusterError, PlanError

ADDRESS_OF_ME = "https://checkip.amazonaws.com"
FIRST_REGION = {
    "aws": "us-east-1",
    "aws-cn": "cn-north-1",
    "aws-us-gov": "us-gov-west-1",
}


@final
@dataclass(frozen=True, kw_only=True)
class Answers:
    """What AWS was asked before anything is made.

    Args:
        who: Whose the credentials are.
        choices: What the file leaves open; without the role of the end.
        has_bucket: Whether the bucket exists.
        key: The public key to import; None for one that AWS has.
        private_key: Path of the private key here; "" for the agent's.
    """

    who: Identity
    choices: Choices
    has_bucket: bool
    key: PublicKey | None
    private_key: str


@final
@dataclass(frozen=True, kw_only=True)
class _KeyPair:
    """A key pair of EC2, what is to be imported for it, and its private key here."""

    name: str
    imported: PublicKey | None
    private: str


def identity_of(calls: Calls) -> Identity:
    """Returns whose the credentials are."""
    found = calls.ask("sts", "GetCallerIdentity")
    return Identity(account=str(found["Account"]), arn=str(found["Arn"]))


def ask(spec: AwsFile, calls: Calls, folder: str, *, opens: bool = False) -> Answers:
    """Asks everything, at once where it can be.

    Args:
        spec: The file, with its region.
        calls: Calls of AWS.
        folder: Folder of the state of clusters; keys are kept there.
        opens: Whether SSH may be open to everybody.

    Raises:
        PlanError: The file cannot work; all reasons in one message.
        CredentialsError: The credentials are missing, expired or too weak.
        ClusterError: AWS cannot be asked.
    """
    faults = checks.faults_of_file(spec, opens=opens)
    who = identity_of(calls)
    _check_region(spec, calls, who)
    with ThreadPoolExecutor(8) as pool:
        zone = pool.submit(_zone, spec, calls)
        image = pool.submit(_image, spec, calls)
        bucket = pool.submit(has_bucket, spec, calls, who.account)
        key = pool.submit(_key, spec, calls, folder)
        quotas = pool.submit(_quotas, spec, calls)
        network = pool.submit(_network, spec, calls)
        sources = pool.submit(_sources, spec)
        done = zone, image, bucket, key, quotas, network, sources
    for one in done:
        error = one.exception()
        if isinstance(error, PlanError):
            faults.append(str(error))
        elif error is not None:
            raise error
    files_group = ""
    if not faults:
        faults += quotas.result() + network.result() + image.result()[1]
        files_group, more = _files(spec, calls, zone.result())
        faults += more
    if faults:
        raise PlanError("\n".join(faults))
    found = image.result()[0]
    require_rights(spec, calls, str(found["ImageId"]))
    name = str(found.get("Name", "")).lower()
    return Answers(
        who=who,
        has_bucket=bucket.result(),
        key=key.result().imported,
        private_key=key.result().private,
        choices=Choices(
            image=found["ImageId"],
            login="ubuntu" if "ubuntu" in name else "ec2-user",
            root_device=str(found.get("RootDeviceName") or "/dev/xvda"),
            zone=zone.result(),
            bucket=bucket_name(spec, who.account),
            key_name=key.result().name,
            sources=sources.result(),
            files_group=files_group,
        ),
    )


def _check_region(spec: AwsFile, calls: Calls, who: Identity) -> None:
    """Refuses a region that is not enabled: its own answer looks like a wrong key."""
    names = enabled_regions(calls, who)
    if spec.region not in names:
        raise PlanError(
            f"the region {spec.region} does not exist, or is not enabled in the "
            f"account {who.account}. Expected one of {', '.join(names)}. Change "
            "`region`, or enable it in the account's settings."
        )


def enabled_regions(calls: Calls, who: Identity) -> list[str]:
    """Returns the regions that an account can use, sorted."""
    first = FIRST_REGION.get(who.partition, "us-east-1")
    found = calls.ask("ec2", "DescribeRegions", region=first)
    return sorted(
        one["RegionName"]
        for one in found["Regions"]
        if one.get("OptInStatus") != "not-opted-in"
    )


def _zone(spec: AwsFile, calls: Calls) -> str:
    offered: dict[str, list[str]] = {spec.master.type: [], spec.workers.type: []}
    found = calls.pages(
        "ec2", "DescribeInstanceTypeOfferings", "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": sorted(offered)}],
    )  # fmt: skip
    for one in found:
        offered.setdefault(one["InstanceType"], []).append(one["Location"])
    wanted = spec.network.zone
    if spec.network.vpc and wanted == "auto":
        wanted = _zone_of(spec, calls)
    return checks.common_zone(offered, wanted, str(spec.region))


def _zone_of(spec: AwsFile, calls: Calls) -> str:
    """Returns the zone of an existing private subnet; "auto" if there is none."""
    try:
        found = calls.ask(
            "ec2", "DescribeSubnets", SubnetIds=[spec.network.private_subnet]
        )
    except CallRefused as error:
        if "NotFound" not in error.code:
            raise
        return "auto"  # the check of the network says so
    return str(found["Subnets"][0]["AvailabilityZone"])


def image_names(spec: AwsFile) -> tuple[list[str], str]:
    """Returns SSM parameters of the image, and a pattern of its name; the first counts.

    Deep Learning AMIs have been called by more than one name.
    """
    kind = architecture(spec.workers.type)
    is_gpu = has_gpu(spec.workers.type) or has_gpu(spec.master.type)
    is_ubuntu = spec.image == "ubuntu-24.04"
    if spec.image.startswith("/"):
        return [spec.image], ""
    if is_gpu:
        system = "ubuntu-24.04" if is_ubuntu else "amazon-linux-2023"
        words = "Ubuntu 24.04" if is_ubuntu else "Amazon Linux 2023"
        start = f"/aws/service/deeplearning/ami/{kind}/base-oss-nvidia-driver"
        return (
            [f"{start}-gpu-{system}/latest/ami-id", f"{start}-{system}/latest/ami-id"],
            f"Deep Learning Base OSS Nvidia Driver GPU AMI ({words})*",
        )
    if is_ubuntu:
        short = {"x86_64": "amd64"}.get(kind, kind)
        return (
            ["/aws/service/canonical/ubuntu/server/24.04/stable/current/"
             f"{short}/hvm/ebs-gp3/ami-id"],
            "",
        )  # fmt: skip
    start = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel"
    return (
        [f"{start}-default-{kind}", f"{start}-6.1-{kind}"],
        f"al2023-ami-2023*-{kind}",
    )


def _image(spec: AwsFile, calls: Calls) -> tuple[Mapping[str, Any], list[str]]:
    """Returns the image, its id fixed now, and what is wrong with it."""
    if spec.image.startswith("ami-"):
        return _described(spec, calls, spec.image)
    names, pattern = image_names(spec)
    for name in names:
        try:
            found = calls.ask("ssm", "GetParameter", Name=name)
        except CallRefused as error:
            if error.code != "ParameterNotFound":
                raise
            continue
        return _described(spec, calls, str(found["Parameter"]["Value"]))
    images = list(
        calls.pages(
            "ec2", "DescribeImages", "Images", Owners=["amazon"],
            Filters=[{"Name": "name", "Values": [pattern]}],
        )
    ) if pattern else []  # fmt: skip
    if not images:
        tried = [*names, *([pattern] if pattern else [])]
        raise PlanError(
            f"no image for {spec.image} is found in {spec.region}; tried were "
            f"{', '.join(tried)}. Expected one of these in the region. Name an image "
            "yourself: `image: ami-...`."
        )
    newest = max(images, key=lambda one: str(one.get("CreationDate", "")))
    return newest, checks.faults_of_image(spec, newest)


def _described(
    spec: AwsFile, calls: Calls, name: str
) -> tuple[Mapping[str, Any], list[str]]:
    try:
        found = calls.ask("ec2", "DescribeImages", ImageIds=[name])["Images"]
    except CallRefused as error:
        if not error.code.startswith("InvalidAMI"):
            raise
        found = []
    if not found:
        raise PlanError(
            f"the image {name} is not in {spec.region}. Expected one of this region "
            "that you may use. Name another `image`."
        )
    return found[0], checks.faults_of_image(spec, found[0])


def _quotas(spec: AwsFile, calls: Calls) -> list[str]:
    kinds = sorted({spec.master.type, spec.workers.type})
    try:
        found = calls.ask("ec2", "DescribeInstanceTypes", InstanceTypes=kinds)
    except CallRefused as error:
        if error.code != "InvalidInstanceType":
            raise
        return []  # the check of zones says which
    told = found["InstanceTypes"]
    vcpus = {one["InstanceType"]: one["VCpuInfo"]["DefaultVCpus"] for one in told}
    needed = checks.vcpus_needed(spec, vcpus)
    allowed: dict[str, float] = {}
    for family in needed:
        code = QUOTAS[family][0]
        try:
            quota = calls.ask(
                "service-quotas", "GetServiceQuota", ServiceCode="ec2", QuotaCode=code
            )
        except CallRefused as error:
            if error.code != "NoSuchResourceException":
                raise
            continue
        allowed[family] = float(quota["Quota"]["Value"])
    return checks.faults_of_quotas(needed, allowed, str(spec.region))


def _network(spec: AwsFile, calls: Calls) -> list[str]:
    network = spec.network
    if network.vpc is None:
        return []
    attributes: dict[str, bool] = {}
    try:
        for name in ("enableDnsSupport", "enableDnsHostnames"):
            told = calls.ask(
                "ec2", "DescribeVpcAttribute", VpcId=network.vpc, Attribute=name
            )
            attributes[name] = bool(told[name[0].upper() + name[1:]]["Value"])
        subnets = calls.ask(
            "ec2", "DescribeSubnets",
            SubnetIds=[network.public_subnet, network.private_subnet],
        )["Subnets"]  # fmt: skip
    except CallRefused as error:
        if "NotFound" not in error.code:
            raise
        return [
            f"the network of the file is not in {spec.region}: {error.said}. Expected "
            "a VPC and two of its subnets. Change `network`."
        ]
    routes = calls.pages(
        "ec2", "DescribeRouteTables", "RouteTables",
        Filters=[{"Name": "vpc-id", "Values": [network.vpc]}],
    )  # fmt: skip
    return checks.faults_of_network(spec, subnets, list(routes), attributes)


def _files(spec: AwsFile, calls: Calls, zone: str) -> tuple[str, list[str]]:
    """Returns the group to open of an existing file system, and what is wrong."""
    name = spec.storage.shared
    if not name.startswith("fs-"):
        return "", []
    if spec.network.vpc is None:
        return "", checks.faults_of_files(spec, [], zone, None)
    try:
        targets = calls.ask("efs", "DescribeMountTargets", FileSystemId=name)
    except CallRefused as error:
        return "", [
            f"the file system {name} is not in {spec.region}: {error.said}. Expected "
            "one that exists. Change `storage.shared`."
        ]
    listed = targets["MountTargets"]
    faults = checks.faults_of_files(spec, listed, zone, spec.network.vpc)
    if faults:
        return "", faults
    here = next(one for one in listed if one.get("AvailabilityZoneName") == zone)
    groups = calls.ask(
        "efs", "DescribeMountTargetSecurityGroups", MountTargetId=here["MountTargetId"]
    )["SecurityGroups"]
    return (str(groups[0]) if groups else ""), []


def _sources(spec: AwsFile) -> tuple[str, ...]:
    said = spec.access.ssh_from
    return tuple(my_address() if source == ME else source for source in said)


def my_address(fetch: Callable[[], str] | None = None) -> str:
    """Returns the range of this machine's address, as AWS sees it.

    Args:
        fetch: Returns the address as text; default asks AWS.

    Raises:
        PlanError: It cannot be found out.
    """
    try:
        return checks.own_source((fetch or _fetch_address)())
    except OSError as error:
        raise PlanError(
            f"ssh_from says 'me', and {ADDRESS_OF_ME} does not answer: {error}. "
            "Expected an answer with the public address of this machine. Write the "
            "address instead of 'me', such as 203.0.113.7/32."
        ) from error


def _fetch_address() -> str:
    with urllib.request.urlopen(ADDRESS_OF_ME, timeout=10) as answer:
        return answer.read(100).decode("ascii", "replace")


def _key(spec: AwsFile, calls: Calls, folder: str) -> _KeyPair:
    """Returns the key pair of the nodes, and what has to be imported for it."""
    if spec.access.session_manager:
        return _KeyPair(name="", imported=None, private="")
    found = key_of(spec.access.key, folder)
    name = found.public.name if found.public else spec.access.key
    there = is_known(calls, name)
    if found.public is None and not there:
        raise PlanError(
            f"the key pair {name!r} is not in {spec.region}. Expected one that exists, "
            "the path of a public key, or `auto`. Change `access.key`."
        )
    if found.public is None and not found.private:
        raise PlanError(
            f"the key pair {name!r} is in {spec.region}, and its private key is not "
            f"here. Expected ~/.ssh/{name} or ~/.ssh/{name}.pem. Put it there, or "
            "name the path of another public key."
        )
    imported = None if there else found.public
    return _KeyPair(name=name, imported=imported, private=found.private)


def is_known(calls: Calls, name: str) -> bool:
    """Tells whether AWS has a key pair of this name."""
    try:
        calls.ask("ec2", "DescribeKeyPairs", KeyNames=[name])
    except ClusterError as error:
        if isinstance(error, CallRefused) and error.code.startswith("InvalidKeyPair"):
            return False
        raise
    return True
