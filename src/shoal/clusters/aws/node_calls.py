"""Calls of AWS by the agent of a node, through the AWS command line.

Nothing else is on every image before an installation.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

AWS_LIMIT_S = 120.0


class Failure(Exception):
    """A step that failed, in words."""


class Group(NamedTuple):
    """An Auto Scaling group of the cluster.

    Args:
        name: Its name.
        created: Time of its creation, in ISO form.
    """

    name: str
    created: str


def aws(*words: str, content: bytes | None = None) -> bytes:
    """Runs the AWS command line; returns its output.

    Raises:
        Failure: It ended with an error.
    """
    try:
        done = subprocess.run(
            ["aws", *words], input=content, capture_output=True, check=False,
            stdin=subprocess.DEVNULL if content is None else None,
            timeout=AWS_LIMIT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failure(f"aws {words[0]} {words[1]}: {error}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise Failure(f"aws {words[0]} {words[1]}: {said}")
    return done.stdout


@final
class NodeCalls:
    """Calls of AWS with the role of the node.

    Args:
        id_of: Id of the cluster.
        folder: Its part of the bucket.
        place: Folder here for copies of objects.
    """

    def __init__(self, id_of: str, folder: str, place: Path) -> None:
        self._id, self.folder, self._place = id_of, folder, place

    # ------------------------------------------------------------------ the bucket

    def read(self, name: str) -> dict[str, Any] | None:
        """Returns an object, None without one."""
        try:
            found: Any = json.loads(self.content(name))
        except (Failure, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def content(self, name: str) -> bytes:
        """Returns the content of an object.

        Raises:
            Failure: It cannot be read.
        """
        return aws("s3", "cp", "--quiet", f"{self.folder}/{name}", "-")

    def put(self, name: str, content: bytes) -> None:
        """Writes an object.

        Raises:
            Failure: It cannot be written.
        """
        aws("s3", "cp", "--quiet", "-", f"{self.folder}/{name}", content=content)

    def objects(self, kind: str) -> dict[str, Any]:
        """Returns objects of nodes: instance -> content; broken ones are left out.

        Args:
            kind: "nodes", which boots write, or "joined", which agents do.

        Raises:
            Failure: They cannot be read.
        """
        place = self._place / kind
        place.mkdir(parents=True, exist_ok=True)
        aws("s3", "sync", "--quiet", "--delete", f"{self.folder}/{kind}", str(place))
        found: dict[str, Any] = {}
        for path in place.glob("i-*.json"):
            try:
                found[path.stem] = json.loads(path.read_bytes())
            except (OSError, ValueError):
                continue
        return found

    # -------------------------------------------------------------------- machines

    def instances(self) -> list[dict[str, Any]]:
        """Returns EC2's descriptions of the cluster's instances.

        Raises:
            Failure: EC2 does not answer.
        """
        wanted = f"Name=tag:shoal:id,Values={self._id}"
        told = self._ask("ec2", "describe-instances", "--filters", wanted)
        return [one for r in told["Reservations"] for one in r["Instances"]]

    def groups(self) -> dict[str, Group]:
        """Returns the Auto Scaling groups of the cluster, by role.

        Raises:
            Failure: Auto Scaling does not answer.
        """
        wanted = f"Name=tag:shoal:id,Values={self._id}"
        told = self._ask(
            "autoscaling", "describe-auto-scaling-groups", "--filters", wanted
        )
        found: dict[str, Group] = {}
        for one in told["AutoScalingGroups"]:
            tags = {tag["Key"]: tag["Value"] for tag in one["Tags"]}
            group = Group(one["AutoScalingGroupName"], str(one["CreatedTime"]))
            found[tags.get("shoal:role", "")] = group
        return found

    def activities(self, group: str) -> list[dict[str, Any]]:
        """Returns the activities of a group, the newest first.

        Raises:
            Failure: Auto Scaling does not answer.
        """
        told = self._ask(
            "autoscaling", "describe-scaling-activities",
            "--auto-scaling-group-name", group,
        )  # fmt: skip
        return list(told["Activities"])

    def resize(self, group: str, size: int) -> None:
        """Sets the size of a group.

        Raises:
            Failure: It is refused.
        """
        aws(
            "autoscaling", "set-desired-capacity", "--auto-scaling-group-name", group,
            "--desired-capacity", str(size),
        )  # fmt: skip

    def leave(self, instance: str, *, shrinks: bool) -> None:
        """Ends an instance, which its group replaces unless it shrinks.

        Raises:
            Failure: It is refused.
        """
        size = "should" if shrinks else "no-should"
        aws(
            "autoscaling", "terminate-instance-in-auto-scaling-group", "--instance-id",
            instance, f"--{size}-decrement-desired-capacity",
        )  # fmt: skip

    def secret(self, name: str) -> str:
        """Returns a secret.

        Raises:
            Failure: It cannot be read.
        """
        told = self._ask("secretsmanager", "get-secret-value", "--secret-id", name)
        return str(told["SecretString"])

    def _ask(self, *words: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads(aws(*words, "--output", "json"))
        return found
