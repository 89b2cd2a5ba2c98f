"""What a cluster tells other machines of its user, by an object in its bucket.

Nodes may write there too, so nothing of it is believed that this machine would run:
the ways in are made anew, names are checked, and the login user is the stack's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shoal.clusters.aws.calls import CallRefused, Calls
from shoal.clusters.aws.file import AwsFile
from shoal.clusters.aws.nodes import Place
from shoal.clusters.cluster_state import ClusterState, NodeState
from shoal.errors import ClusterError

OBJECT = "state.json"
TOLD = ("came", "why", "hour", "file", "names")
"""Facts that other machines get; the others are of this machine, or of the stack."""


@final
class Published(BaseModel):
    """The object.

    Args:
        name: Name of the cluster.
        id: Its id.
        created: Seconds since 1970.
        backend: Keras backend of its hosts.
        environment: Name of the environment that was installed.
        port: Port of Ray's head.
        nodes: Nodes, the head first.
        spec: The file.
        came: Number of workers that came.
        why: Why not all did.
        hour: Price of an hour.
        file: The file that the stack was made of.
        names: Instance -> name for OpenSSH.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    id: str
    created: float
    backend: str = Field(pattern=r"^\w+$")
    environment: str | None = Field(default=None, pattern=r"^[0-9a-f]+$")
    port: int | None = Field(default=None, ge=1, le=65535)
    nodes: tuple[NodeState, ...] = ()
    spec: AwsFile
    came: int | None = None
    why: str = Field(default="", max_length=4096)
    hour: float | None = None
    file: Mapping[str, Any] | None = None
    names: Mapping[str, str] = {}

    @property
    def facts(self) -> dict[str, Any]:
        """Returns the facts that it tells."""
        told = self.model_dump(include=set(TOLD))
        return {name: value for name, value in told.items() if value is not None}


def publish(calls: Calls, place: Place, state: ClusterState) -> None:
    """Writes the object; it has no secret, and nothing of this machine.

    Args:
        calls: Calls of AWS.
        place: Where the cluster is.
        state: Its state.
    """
    told = state.model_dump(
        mode="json",
        include={
            "name", "id", "created", "backend", "environment", "port", "nodes", "spec",
        },
    )  # fmt: skip
    told |= {name: state.facts[name] for name in TOLD if name in state.facts}
    calls.ask(
        "s3", "PutObject", Bucket=place.bucket, Key=f"{place.prefix}/{OBJECT}",
        Body=json.dumps(told).encode(), ExpectedBucketOwner=place.account,
    )  # fmt: skip


def published(calls: Calls, place: Place) -> Published:
    """Reads the object.

    Raises:
        ClusterError: It is not there, or is not of this cluster.
    """
    where = f"s3://{place.bucket}/{place.prefix}/{OBJECT}"
    try:
        answer = calls.ask(
            "s3", "GetObject", Bucket=place.bucket, Key=f"{place.prefix}/{OBJECT}",
            ExpectedBucketOwner=place.account,
        )  # fmt: skip
    except CallRefused as error:
        raise ClusterError(
            f"the description of cluster {place.name} cannot be read from {where}: "
            f"{error.said}. Expected the file that `shoal cluster up` writes at its "
            "end. Wait for that `up`, or repeat it on the machine where it ran."
        ) from error
    try:
        return checked(answer["Body"].read(), place)
    except (ValueError, ValidationError) as error:
        raise ClusterError(
            f"{where} is not what `up` has written: {error}. Expected the file as "
            "it was written. Repeat `shoal cluster up` on the machine where it ran."
        ) from error


def checked(content: bytes, place: Place) -> Published:
    """Returns an object.

    Raises:
        ValueError: It is broken or forged.
    """
    found = Published.model_validate_json(content)
    if (found.name, found.id, found.spec.name) != (place.name, place.id, place.name):
        raise ValueError(f"it is of {found.name!r} with the id {found.id!r}")
    name = re.compile(rf"{re.escape(place.name)}-(master|worker\d+)(-[0-9a-f]{{8}})?")
    odd = [text for text in found.names.values() if not name.fullmatch(text)]
    odd += [n.address for n in found.nodes if n.address not in found.names.values()]
    odd += [n.private for n in found.nodes if not re.fullmatch(r"[0-9.]*", n.private)]
    if odd:
        raise ValueError(f"{odd[0]!r} is no name or address of a node")
    return found
