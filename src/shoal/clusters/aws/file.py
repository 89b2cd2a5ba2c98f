"""`prod.yaml`: the fields of a file with `provider: aws`, and what they may be."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal, TypeAlias, final

from pydantic import AfterValidator, Field, model_validator

from shoal.clusters.cluster_state import RUNS_FOLDER
from shoal.clusters.hosts_file import Python
from shoal.clusters.spec_file import ClusterSpec, SpecPart

AWS_NAME = r"^[A-Za-z][A-Za-z0-9-]{0,31}$"
TYPE = r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$"
MOST_SOURCES = 20
"""Source ranges of SSH; a security group of AWS has room for 60 rules."""

RUNS = "runs"
"""Prefix of runs in the bucket, which all clusters of an account and region share."""

ME = "me"
RESERVED_TAGS = ("aws:", "shoal:")


def _source(value: str) -> str:
    """Checks a range of addresses that may use SSH; returns it as AWS writes it."""
    if value == ME:
        return value
    try:
        return str(ipaddress.ip_network(value, strict=False))
    except ValueError as error:
        raise ValueError(
            f"{value!r} is no range of addresses, such as 203.0.113.7/32, and not "
            f"{ME!r}"
        ) from error


Source: TypeAlias = Annotated[str, AfterValidator(_source)]
InstanceType: TypeAlias = Annotated[str, Field(pattern=TYPE)]
Disk: TypeAlias = Annotated[int, Field(ge=8, le=16384)]


def is_open(source: str) -> bool:
    """Tells whether a range of addresses is that of everybody.

    Example:
        >>> is_open("0.0.0.0/0"), is_open("::/0"), is_open("203.0.113.7/32")
        (True, True, False)
    """
    return source != ME and ipaddress.ip_network(source).prefixlen == 0


@final
class Master(SpecPart):
    """The machine that users reach, Ray's head.

    Args:
        type: Its instance type.
        disk_gib: Size of its disk.
        trains: Whether workers of a run may be on it.
    """

    type: InstanceType = "m5.xlarge"
    disk_gib: Disk = 100
    trains: bool = True


@final
class Workers(SpecPart):
    """The other machines.

    Args:
        type: Their instance type.
        count: Number of them.
        min: Number below which the cluster fails; 0 if the master alone will do.
        disk_gib: Size of the disk of each.
    """

    type: InstanceType
    count: int = Field(ge=1, le=500)
    min: int = Field(default=1, ge=0)
    disk_gib: Disk = 150

    @model_validator(mode="after")
    def _can_be(self) -> Workers:
        if self.min > self.count:
            raise ValueError(f"min is {self.min}, and count is {self.count}")
        return self


@final
class Access(SpecPart):
    """The way in: SSH to the master from stated addresses, or Session Manager.

    Args:
        ssh_from: Ranges of addresses that may use SSH; "me" is the own one.
        key: Name of an EC2 key pair, path of a public key, or "auto".
        session_manager: Whether Session Manager takes the place of both.
    """

    ssh_from: tuple[Source, ...] = Field(default=(), max_length=MOST_SOURCES)
    key: str = "auto"
    session_manager: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> Access:
        if self.session_manager and self.ssh_from:
            raise ValueError("session_manager needs no open port: leave ssh_from out")
        if not self.session_manager and not self.ssh_from:
            raise ValueError(
                "ssh_from is missing: give the addresses that may use SSH, such as "
                "[me], or `session_manager: true`"
            )
        return self


@final
class Network(SpecPart):
    """A network of the cluster's own, or an existing one.

    Args:
        cidr: Addresses of the own one, /16 to /24.
        zone: Availability zone; "auto" takes one that offers all types.
        vpc: Existing VPC, with both subnets of it.
        public_subnet: Subnet of the master.
        private_subnet: Subnet of the workers, with a way out.
        proxy: Address of an HTTP proxy for everything outside.
    """

    cidr: str = "10.0.0.0/16"
    zone: str = "auto"
    vpc: str | None = Field(default=None, pattern=r"^vpc-[0-9a-f]+$")
    public_subnet: str | None = Field(default=None, pattern=r"^subnet-[0-9a-f]+$")
    private_subnet: str | None = Field(default=None, pattern=r"^subnet-[0-9a-f]+$")
    proxy: str | None = Field(default=None, pattern=r"^https?://[\w.:@-]+$")

    @model_validator(mode="after")
    def _can_be(self) -> Network:
        given = (self.vpc, self.public_subnet, self.private_subnet)
        if any(given) and not all(given):
            raise ValueError("vpc, public_subnet and private_subnet go together")
        try:
            own = ipaddress.ip_network(self.cidr)
        except ValueError as error:
            raise ValueError(f"cidr: {error}") from error
        if own.version != 4 or not 16 <= own.prefixlen <= 24 or not own.is_private:
            raise ValueError(
                f"cidr is {self.cidr}; expected private IPv4 addresses, /16 to /24"
            )
        return self


@final
class Storage(SpecPart):
    """What outlives the machines.

    Args:
        bucket: Name of a bucket of this account; "auto" makes one for all clusters.
        shared: "efs" for a new file system, the id of one that exists, or "none".
        mount: Path of the file system on all nodes.
        runs: Where runs go: "bucket" or "shared".
    """

    bucket: str = Field(default="auto", pattern=r"^[a-z0-9][a-z0-9.-]{2,62}$")
    shared: str = Field(default="efs", pattern=r"^(efs|none|fs-[0-9a-f]+)$")
    mount: str = Field(default="/efs", pattern=r"^/[\w.-]+(/[\w.-]+)*$")
    runs: Literal["bucket", "shared"] = "bucket"

    @model_validator(mode="after")
    def _can_be(self) -> Storage:
        if self.runs == "shared" and self.shared == "none":
            raise ValueError("runs is 'shared', and shared is 'none'")
        return self


@final
class Limits(SpecPart):
    """The end of the cluster, set when it is made; "none" is a value.

    Args:
        max_hours: Hours after which it is deleted.
        budget_dollars: What it may cost at list prices; it is deleted when machines
            of full number would have cost this.
    """

    max_hours: Annotated[float, Field(gt=0, le=8760)] | Literal["none"]
    budget_dollars: Annotated[float, Field(gt=0)] | Literal["none"]


@final
class Roles(SpecPart):
    """IAM roles for accounts in which users may not make any.

    Args:
        node: Name of the role of the nodes.
        end: ARN of the role that deletes the stack.
        permissions_boundary: ARN of a boundary for all roles that are made.
    """

    node: str | None = Field(default=None, pattern=r"^[\w+=,.@-]{1,64}$")
    end: str | None = Field(default=None, pattern=r"^arn:[\w-]+:iam::\d{12}:role/.+$")
    permissions_boundary: str | None = Field(
        default=None, pattern=r"^arn:[\w-]+:iam::(\d{12}|aws):policy/.+$"
    )


@final
class AwsFile(ClusterSpec):
    """The whole file.

    Args:
        name: Name of the cluster; the stack is called shoal-NAME.
        region: Region; default that of the profile or the environment.
        profile: Profile of the AWS configuration; default the environment.
        master: The master.
        workers: The workers.
        image: "al2023", "ubuntu-24.04", an AMI, or the path of an SSM parameter.
        access: The way in.
        network: The network.
        storage: What outlives the machines.
        limits: The end of the cluster.
        tags: Tags of everything that is made.
        roles: Existing IAM roles.
        setup: Script that each node runs at the end of its boot.
        environment: Python environment of the nodes.
        wait_minutes: Time for all nodes to come up.
        settle_minutes: Time without a new node after which fewer are accepted, if a
            launch has failed.
    """

    region: str | None = Field(default=None, pattern=r"^[a-z]{2}(-[a-z]+)+-\d$")
    profile: str | None = None
    master: Master = Master()
    workers: Workers
    image: str = Field(
        default="al2023", pattern=r"^(al2023|ubuntu-24\.04|ami-[0-9a-f]+|/[\w./-]+)$"
    )
    access: Access
    network: Network = Network()
    storage: Storage = Storage()
    limits: Limits
    tags: dict[str, str] = Field(default={}, max_length=40)
    roles: Roles = Roles()
    setup: str | None = None
    environment: Python = Python()
    wait_minutes: int = Field(default=55, ge=5, le=720)
    settle_minutes: int = Field(default=5, ge=1, le=120)

    @classmethod
    def expected(cls) -> str:
        """Returns which fields the file may have, for messages."""
        return f"the fields provider, {', '.join(cls.model_fields)}"

    @model_validator(mode="after")
    def _can_be(self) -> AwsFile:
        if self.name and not re.match(AWS_NAME, self.name):
            raise ValueError(
                f"name is {self.name!r}; on AWS expected letters, digits and -, a "
                "letter first"
            )
        if not self.master.trains and self.workers.min == 0:
            raise ValueError(
                "master.trains is false, and workers.min is 0: nobody might train"
            )
        for key, value in self.tags.items():
            if key.lower().startswith(RESERVED_TAGS) or not 1 <= len(key) <= 128:
                raise ValueError(f"tags: {key!r} is reserved, empty or too long")
            if len(value) > 256:
                raise ValueError(f"tags: the value of {key!r} has over 256 characters")
        return self

    def runs_in(self, bucket: str) -> str:
        """Returns the folder or URL of runs, for a bucket of this name."""
        if self.storage.runs == "bucket":
            return f"s3://{bucket}/{RUNS}"
        return f"{self.storage.mount}/{RUNS_FOLDER}"

    @property
    def stack(self) -> str:
        """Returns the name of the CloudFormation stack."""
        return f"shoal-{self.name}"
