"""From the nodes' own objects, and what EC2 says of them, to the members. Pure.

Nodes write their objects themselves, so a broken or forged one must do no harm: EC2's
description of an instance counts, and an object with another address is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

KEY = r"^(ssh|ecdsa)-[a-z0-9-]+ [A-Za-z0-9+/=]+$"
MASTER, WORKER = "master", "worker"


class NodeObject(BaseModel):
    """`nodes/INSTANCE.json`, as a node writes it.

    Args:
        state: "booting", "ready" or "failed".
        reason: Why its boot failed.
        instance: Id of its instance.
        address: Its private address.
        role: "master" or "worker".
        gpus: Number of its GPUs.
        keys: Its public SSH host keys.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    state: str = Field(pattern="^(booting|ready|failed)$")
    reason: str = Field(default="", max_length=4096)
    instance: str = Field(pattern="^i-[0-9a-f]+$")
    address: str = Field(pattern=r"^[0-9.]{7,15}$")
    role: str = Field(pattern="^(master|worker)$")
    gpus: int = Field(default=0, ge=0, le=64)
    keys: tuple[str, ...] = Field(default=(), max_length=8)


@final
class Joined(BaseModel):
    """`joined/INSTANCE.json`, as a node's agent writes it.

    Args:
        state: "joined" or "failed".
        reason: Why it failed.
        instance: Id of its instance.
        address: Its private address.
        role: "master" or "worker".
        number: Its number in the cluster.
        head: Head that it joined.
        python: Its interpreter.
        path: Its PATH.
        gpus: Its GPUs.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    state: str = Field(pattern="^(joined|failed)$")
    reason: str = Field(default="", max_length=4096)
    instance: str
    address: str
    role: str
    number: int = Field(default=-1, ge=-1, le=1_000_000)
    head: str = ""
    python: str = Field(default="", pattern=r"^(/[\w./+-]+)?$")
    path: str = Field(default="", max_length=4096, pattern=r"^[\w./:+-]*$")
    gpus: tuple[str, ...] = Field(default=(), max_length=64)


@final
class Formed(BaseModel):
    """`formed.json`, as the master's agent writes it.

    Args:
        state: "complete", "fewer" or "fail".
        came: Number of workers that have come.
        why: Why not all, in the service's words where it said some.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    state: str = Field(pattern="^(complete|fewer|fail)$")
    came: int = Field(ge=0, le=500)
    why: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Member:
    """A machine of the cluster.

    Args:
        instance: Id of the instance.
        role: "master" or "worker".
        private: Private address.
        public: Public address; "" for none.
        state: EC2's state of it.
        boot: "unheard" until its object is there; then its state.
        reason: Why its boot failed.
        gpus: Number of its GPUs.
        keys: Its SSH host keys.
        launched: Time of its launch, as text that can be ordered.
    """

    instance: str
    role: str
    private: str
    public: str
    state: str
    boot: str
    reason: str
    gpus: int
    keys: tuple[str, ...]
    launched: str

    @property
    def is_ready(self) -> bool:
        """Whether SSH can reach it."""
        return self.boot == "ready" and self.state == "running"


def members_of(
    instances: Iterable[Mapping[str, Any]], objects: Mapping[str, bytes]
) -> tuple[list[Member], list[str]]:
    """Returns the members, the master first, and sentences about others.

    Those are objects that are wrong, and nodes that could not boot and are gone.

    Args:
        instances: EC2's descriptions of the cluster's instances.
        objects: Instance id in the name of an object -> its content.
    """
    known: list[Member] = []
    wrong: list[str] = []
    for told in instances:
        state = str(told.get("State", {}).get("Name", ""))
        instance, private = told["InstanceId"], str(told.get("PrivateIpAddress", ""))
        role = _tag(told, "shoal:role") or WORKER
        node: NodeObject | None = None
        if state in ("terminated", "shutting-down"):
            wrong += _why_it_left(objects.get(instance, b""), instance, role)
            continue
        if instance in objects:
            node, fault = _read(objects[instance], instance, private, role)
            wrong += [fault] if fault else []
        known.append(
            Member(
                instance=instance, role=role, private=private, state=state,
                public=str(told.get("PublicIpAddress") or ""),
                boot=node.state if node else "unheard",
                reason=node.reason if node else "",
                gpus=node.gpus if node else 0,
                keys=node.keys if node else (),
                launched=str(told.get("LaunchTime", "")),
            )
        )  # fmt: skip
    known.sort(key=lambda one: (one.role != MASTER, one.launched, one.instance))
    return known, wrong


def _read(
    content: bytes, instance: str, private: str, role: str
) -> tuple[NodeObject | None, str]:
    """Returns an object, or None and what is wrong with it."""
    try:
        node = NodeObject.model_validate(json.loads(content))
    except (ValueError, ValidationError):
        return None, f"the object of {instance} is broken, and ignored"
    said = node.instance, node.address, node.role
    if said != (instance, private, role):
        return None, (
            f"the object of {instance} says it is {' '.join(said)}, and EC2 says "
            f"{instance} {private} {role}; it is ignored"
        )
    return node, ""


def _why_it_left(content: bytes, instance: str, role: str) -> list[str]:
    """Returns why a machine that is gone has left, if it could not boot."""
    try:
        node = NodeObject.model_validate_json(content)
    except ValidationError:
        return []
    if node.state != "failed" or (node.instance, node.role) != (instance, role):
        return []
    return [f"the {role} {instance} could not boot, and has left: {node.reason}"]


def joined_of(content: bytes, member: Member) -> Joined | None:
    """Returns what a node says about its joining; None if it is broken or forged."""
    try:
        found = Joined.model_validate_json(content)
    except (ValueError, ValidationError):
        return None
    said = found.instance, found.address, found.role
    return found if said == (member.instance, member.private, member.role) else None


def _tag(told: Mapping[str, Any], key: str) -> str:
    return next((t["Value"] for t in told.get("Tags", ()) if t["Key"] == key), "")


def lists_of(
    members: Iterable[Member], before: Mapping[str, Any] | None = None
) -> dict[str, object]:
    """Returns `cluster.json`, which nodes follow: who is there, the master first.

    Args:
        members: Members, the master first.
        before: The last one, of the master's agent: nodes keep its numbers.
    """
    told: Any = (before or {}).get("nodes")
    kept = {
        str(one.get("instance")): {"number": one["number"]}
        for one in (told if isinstance(told, list) else ())
        if isinstance(one, dict) and isinstance(one.get("number"), int)
    }
    listed: list[dict[str, object]] = [
        {
            "address": one.private, "gpus": one.gpus, "instance": one.instance,
            **kept.get(one.instance, {}),
        }
        for one in members
    ]  # fmt: skip
    following = {} if before is None else {"next": before.get("next", 0)}
    return {"form": 1, "nodes": listed, **following}


def aliases_of(
    name: str, members: Iterable[Member], known: Mapping[str, str]
) -> dict[str, str]:
    """Returns instance -> name for OpenSSH; a known one keeps its name.

    Args:
        name: Name of the cluster.
        members: Members, the master first.
        known: Instance -> name of before.

    A replaced worker gets a new number, so that no name stands for two machines.
    """
    found: dict[str, str] = {}
    last = max([_number(alias) for alias in known.values()], default=0)
    for member in members:
        if member.instance in known:
            found[member.instance] = known[member.instance]
        elif member.role == MASTER:
            taken = f"{name}-master" in known.values()
            found[member.instance] = f"{name}-master" + (
                f"-{member.instance[-8:]}" if taken else ""
            )
        else:
            last += 1
            found[member.instance] = f"{name}-worker{last}"
    return found


def _number(alias: str) -> int:
    digits = alias.rpartition("-worker")[2]
    return int(digits) if digits.isdecimal() else 0
