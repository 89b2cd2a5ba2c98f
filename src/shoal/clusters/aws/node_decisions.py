"""Decisions of the agent that runs on each node of a cluster on AWS. Pure.

It runs on nodes before anything is installed there, so it has the standard library
alone. Objects in the bucket are written by nodes: EC2's description of an instance
counts, and what differs from it is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

FORM = 1
MOST_TRIES = 3
"""Failures for the same reason, of one node or of several, that make it permanent."""
ROLES = ("master", "worker")
SOON_S, PAUSE_S, LONG_S = 5.0, 15.0, 60.0
"""Pauses between two turns: while a node is on its way, usually, and of a worker that
has nothing to do."""


class Me(NamedTuple):
    """A node, as its boot has written it.

    Args:
        instance: Id of its instance.
        address: Its private address.
        role: "master" or "worker".
    """

    instance: str
    address: str
    role: str


class Seen(NamedTuple):
    """What a node has found out about itself.

    Args:
        is_installed: Whether the environment of `join.json` is complete here.
        joined: Address "host:port" of the head that its Ray joined; "" if Ray does not
            run.
        failures: Reasons of failed attempts since `join.json` has changed.
    """

    is_installed: bool
    joined: str
    failures: tuple[str, ...] = ()


class Step(NamedTuple):
    """What a node does next.

    Args:
        do: "wait", "leave" (to the `up` that started it), "install", "start", "stay"
            or "give up".
        why: Reason, in words.
        number: Its number in the cluster; -1 for none.
    """

    do: str
    why: str = ""
    number: int = -1


def next_step(
    join: Mapping[str, Any] | None,
    cluster: Mapping[str, Any] | None,
    me: Me,
    seen: Seen,
) -> Step:
    """Decides what a node does next.

    Args:
        join: `join.json`, which `up` has written at its end; None without one.
        cluster: `cluster.json` of the master's agent; None without one.
        me: The node.
        seen: What it knows about itself.
    """
    if join is None:
        return Step("wait", "no `up` has ended yet")
    if me.instance in join["nodes"]:
        return Step("leave", "an `up` has started it", int(join["nodes"][me.instance]))
    if me.role == "master":
        return Step("wait", "a master is taken in by `up`")
    number = number_in(cluster, me)
    if number < 0:
        return Step("wait", "the master does not list it yet")
    last = seen.failures[-MOST_TRIES:]
    if len(last) == MOST_TRIES and len({kind_of(reason) for reason in last}) == 1:
        return Step("give up", seen.failures[-1], number)
    if not seen.is_installed:
        return Step("install", "", number)
    if seen.joined != head_of(join):
        return Step("start", "", number)
    return Step("stay", "", number)


def pause_s(
    me: Me, step: Step, join: Mapping[str, Any] | None, *, expects: bool
) -> float:
    """Returns the seconds until the next turn of a node.

    Args:
        me: The node.
        step: What it has just done.
        join: `join.json`; None without one.
        expects: Whether a master knows machines that run and are not listed yet.
    """
    if me.role == "master":
        return SOON_S if expects else PAUSE_S
    if step.do in ("leave", "stay"):
        return LONG_S
    # Before the first `up` has ended it waits for long, and only for that.
    return SOON_S if step.do == "wait" and join is not None else PAUSE_S


def expects_more(
    instances: Sequence[Mapping[str, Any]], cluster: Mapping[str, Any]
) -> bool:
    """Returns whether machines run, or start, that `cluster.json` does not list.

    Args:
        instances: EC2's descriptions of the cluster's instances.
        cluster: `cluster.json`.

    Example:
        >>> told = {"InstanceId": "i-1", "State": {"Name": "pending"}}
        >>> expects_more([told], {"nodes": []})
        True
        >>> expects_more([told], {"nodes": [{"instance": "i-1"}]})
        False
    """
    listed = {one["instance"] for one in cluster["nodes"]}
    return any(
        told.get("State", {}).get("Name") in ("pending", "running")
        and told["InstanceId"] not in listed
        for told in instances
    )


def kind_of(reason: str) -> str:
    """Returns a reason without what differs between nodes: numbers and addresses.

    Example:
        >>> kind_of("port 6379 of 10.0.0.7 is in use: i-0ab1") == kind_of(
        ...     "port 6380 of 10.0.0.91 is in use: i-0cd2")
        True
    """
    return re.sub(r"[\w.:/-]*\d[\w.:/-]*", "#", reason)


def head_of(join: Mapping[str, Any]) -> str:
    """Returns the address of Ray's head."""
    return f"{join['head']}:{join['port']}"


def number_in(cluster: Mapping[str, Any] | None, me: Me) -> int:
    """Returns the number that the master gave a node; -1 for none."""
    for one in (cluster or {}).get("nodes", ()):
        if (one.get("instance"), one.get("address")) == (me.instance, me.address):
            return int(one.get("number", -1))
    return -1


def cluster_of(
    instances: Sequence[Mapping[str, Any]],
    objects: Mapping[str, Any],
    join: Mapping[str, Any] | None,
    before: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Returns `cluster.json`: the nodes that have booted, the master first.

    A node keeps its number, and no number is given twice: processes of a node are
    known by it.

    Args:
        instances: EC2's descriptions of the cluster's instances.
        objects: Instance -> content of `nodes/INSTANCE.json`, as read from JSON.
        join: `join.json`; None without one.
        before: The last `cluster.json`; None without one.
    """
    given: Mapping[str, int] = (join or {}).get("nodes", {})
    numbers = dict(given)
    for one in (before or {}).get("nodes", ()):
        number = one.get("number")
        # An `up` may have given the number of a node that has not started yet.
        if isinstance(number, int) and number >= 0 and number not in given.values():
            numbers.setdefault(str(one["instance"]), number)
    free = max([-1, *numbers.values(), int((before or {}).get("next", 0)) - 1]) + 1
    found: list[tuple[bool, str, dict[str, Any]]] = []
    for told in instances:
        instance = str(told["InstanceId"])
        node = objects.get(instance)
        if node is None or not is_booted(node, told):
            continue
        gpus = node.get("gpus")
        entry = {
            "address": str(told["PrivateIpAddress"]),
            "gpus": gpus if isinstance(gpus, int) and gpus >= 0 else 0,
            "instance": instance,
        }
        is_worker = role_of(told) != "master"
        found.append((is_worker, str(told.get("LaunchTime", "")), entry))
    found.sort(key=lambda one: (one[0], one[1], one[2]["instance"]))
    nodes = [entry for _, _, entry in found]
    for entry in nodes:
        if entry["instance"] not in numbers:
            numbers[entry["instance"]] = free
            free += 1
        entry["number"] = numbers[entry["instance"]]
    return {"form": FORM, "nodes": nodes, "next": free}


def is_booted(node: Any, told: Mapping[str, Any]) -> bool:
    """Whether an object says that a node has booted, and EC2 says that it is this one.

    Args:
        node: Content of `nodes/INSTANCE.json`, as read from JSON.
        told: EC2's description of the instance.

    Example:
        >>> told = {"InstanceId": "i-1", "PrivateIpAddress": "10.0.0.7",
        ...         "State": {"Name": "running"}}
        >>> node = {"instance": "i-1", "address": "10.0.0.7", "role": "worker"}
        >>> is_booted({**node, "state": "ready"}, told)
        True
        >>> is_booted({**node, "state": "booting"}, told), is_booted(None, told)
        (False, False)
    """
    if not isinstance(node, dict) or told.get("State", {}).get("Name") != "running":
        return False
    said = tuple(node.get(name) for name in Me._fields)
    address, role = str(told.get("PrivateIpAddress", "")), role_of(told)
    is_known = re.fullmatch(r"[0-9.]{7,15}", address) and role in ROLES
    is_own = said == (str(told["InstanceId"]), address, role)
    return bool(is_known) and is_own and node.get("state") == "ready"


def role_of(told: Mapping[str, Any]) -> str:
    """Returns the role of an instance, from EC2's description."""
    tags = {tag.get("Key"): tag.get("Value") for tag in told.get("Tags", ())}
    return str(tags.get("shoal:role") or "worker")
