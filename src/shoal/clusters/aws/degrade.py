"""Fewer workers than asked: to wait, to go on with fewer, or to fail. Pure.

The agent of the master decides, so this has the standard library alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shoal.clusters.aws.node_decisions import (
    MOST_TRIES,
    is_booted,
    kind_of,
    role_of,
)

PERMANENT = (
    "vcpu limit", "vcpulimitexceeded", "instancelimitexceeded", "not authorized",
    "unauthorizedoperation", "accessdenied", "unsupported", "not supported",
    "invalidami", "invalid ami", "invalid image", "does not exist",
    "invalid iam instance profile", "invalidparameter",
)  # fmt: skip
"""Words in the service's text of a launch that fails however long one waits."""

MARGIN_S = 120.0
"""The decision comes before the stack's own wait ends."""

GONE = ("terminated", "shutting-down")


class Asked(NamedTuple):
    """What the file of a cluster asks for.

    Args:
        workers: Number of workers.
        least: Number of workers with which it goes on.
        settle_s: Seconds without a new node after which fewer are accepted.
        wait_s: Seconds that the stack waits.
    """

    workers: int
    least: int
    settle_s: float
    wait_s: float


class Came(NamedTuple):
    """Workers that have come so far.

    Args:
        ready: Number that have booted.
        booting: Number that may still become ready.
        refused: Reasons of failed launches, in the service's words.
        failed: Reasons of nodes that could not boot, one for each node.
    """

    ready: int
    booting: int = 0
    refused: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class Formation(NamedTuple):
    """A decision about the number of workers.

    Args:
        do: "wait", "complete", "fewer" or "fail".
        why: Why not all came, in the service's words where it said some.
    """

    do: str
    why: str = ""


def decide(asked: Asked, came: Came, *, elapsed_s: float, quiet_s: float) -> Formation:
    """Decides what to do about the workers that have come so far.

    Args:
        asked: What the file asks for.
        came: Workers that have come.
        elapsed_s: Seconds since the group of the master was made.
        quiet_s: Seconds since the last worker came.

    Example:
        >>> asked = Asked(workers=4, least=1, settle_s=300.0, wait_s=3300.0)
        >>> short = Came(ready=2, refused=("insufficient capacity",))
        >>> decide(asked, short, elapsed_s=600.0, quiet_s=310.0)
        Formation(do='fewer', why='insufficient capacity')
    """
    if came.ready >= asked.workers:
        return Formation("complete")
    why = "; ".join(dict.fromkeys((*came.refused, *came.failed)))
    why = why or "no reason was given"
    is_permanent_now = bool(repeated(came.failed)) or any(
        is_permanent(reason) for reason in came.refused
    )
    if is_permanent_now and came.ready + came.booting < asked.least:
        return Formation("fail", why)
    if elapsed_s >= asked.wait_s - MARGIN_S or (is_permanent_now and not came.booting):
        return Formation("fewer" if came.ready >= asked.least else "fail", why)
    is_settled = bool(came.refused) and quiet_s >= asked.settle_s
    if is_settled and not came.booting and came.ready >= asked.least:
        return Formation("fewer", why)
    return Formation("wait")


def came_of(
    instances: Sequence[Mapping[str, Any]],
    objects: Mapping[str, Any],
    refused: Sequence[str],
) -> Came:
    """Returns the workers that have come.

    Args:
        instances: EC2's descriptions of the cluster's instances, also of ended ones.
        objects: Instance -> content of `nodes/INSTANCE.json`, as read from JSON.
        refused: Reasons of failed launches of workers.
    """
    ready = booting = 0
    failed: list[str] = []
    for told in instances:
        if role_of(told) != "worker":
            continue
        node = objects.get(str(told["InstanceId"]))
        state = node.get("state") if isinstance(node, dict) else None
        is_here = told.get("State", {}).get("Name") not in GONE
        if isinstance(node, dict) and state == "failed":
            failed.append(str(node.get("reason") or "it did not say why"))
        elif is_here and is_booted(node, told):
            ready += 1
        elif is_here:
            booting += 1
    return Came(ready, booting, tuple(refused), tuple(failed))


def is_permanent(reason: str) -> bool:
    """Tells whether a launch fails however long one waits.

    Example:
        >>> is_permanent("You have requested more vCPU capacity than your current vCPU "
        ...              "limit of 8 allows")
        True
        >>> is_permanent("We currently do not have sufficient g5.2xlarge capacity")
        False
    """
    text = reason.lower()
    return any(words in text for words in PERMANENT)


def repeated(reasons: Sequence[str]) -> str:
    """Returns a reason that as many nodes gave as make it permanent; "" for none.

    Example:
        >>> repeated(["no disk on 10.0.0.1", "no disk on 10.0.0.2", "no disk on ::3"])
        'no disk on 10.0.0.1'
        >>> repeated(["no disk", "no disk", "no Python"])
        ''
    """
    counts = Counter(kind_of(reason) for reason in reasons)
    often = (one for one in reasons if counts[kind_of(one)] >= MOST_TRIES)
    return next(often, "")


def failures_of(activities: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns reasons of failed launches, the newest first, each once."""
    said = [
        str(one.get("StatusMessage") or one.get("Description") or "")
        for one in activities
        if one.get("StatusCode") == "Failed"
    ]
    return list(dict.fromkeys(filter(None, said)))
