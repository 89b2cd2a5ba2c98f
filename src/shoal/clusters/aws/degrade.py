"""Fewer workers than asked: to wait, to go on with fewer, or to give up. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from shoal.clusters.aws.file import AwsFile
from shoal.clusters.aws.members import MASTER, Member

PERMANENT = (
    "vcpu limit", "vcpulimitexceeded", "instancelimitexceeded", "not authorized",
    "unauthorizedoperation", "accessdenied", "unsupported", "not supported",
    "invalidami", "invalid ami", "invalid image", "does not exist",
    "invalid iam instance profile", "invalidparameter",
)  # fmt: skip
"""Words in the service's text of a launch that fails however long one waits."""

SPARE_S = 120.0
"""The decision comes before the stack's own wait ends."""


@final
@dataclass(frozen=True)
class Wait:
    """More may come."""


@final
@dataclass(frozen=True)
class Complete:
    """All are there."""


@final
@dataclass(frozen=True)
class Fewer:
    """Goes on with those that came.

    Args:
        workers: Number of workers that came.
        reason: Why not all, in the service's words where it said some.
    """

    workers: int
    reason: str


@final
@dataclass(frozen=True)
class GiveUp:
    """Too few.

    Args:
        reason: Why, in the service's words where it said some.
    """

    reason: str


Decision: TypeAlias = Wait | Complete | Fewer | GiveUp


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


def failures_of(activities: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns reasons of failed launches, the newest first, each once."""
    said = [
        str(one.get("StatusMessage") or one.get("Description") or "")
        for one in activities
        if one.get("StatusCode") == "Failed"
    ]
    return list(dict.fromkeys(filter(None, said)))


def decide(
    spec: AwsFile,
    members: Sequence[Member],
    failures: Mapping[str, Sequence[str]],
    *,
    elapsed_s: float,
    quiet_s: float,
) -> Decision:
    """Returns what to do about the machines that have come so far.

    Args:
        spec: The file.
        members: Members, as they are known now.
        failures: "master" and "worker" -> reasons of failed launches.
        elapsed_s: Seconds since the stack was asked for.
        quiet_s: Seconds since the last node came.
    """
    masters = [one for one in members if one.role == MASTER]
    workers = [one for one in members if one.role != MASTER]
    came = sum(one.is_ready for one in workers)
    is_late = elapsed_s >= spec.wait_minutes * 60 - SPARE_S
    has_master = any(one.is_ready for one in masters)
    if not has_master:
        return _without_master(masters, failures.get("master", ()), is_late=is_late)
    if came >= spec.workers.count:
        return Complete()
    refused = list(failures.get("worker", ()))
    broken = [
        f"{one.instance}: {one.reason}" for one in workers if one.boot == "failed"
    ]
    said = "; ".join([*refused, *broken]) or "no reason was given"
    is_final = any(is_permanent(reason) for reason in refused)
    pending = [one for one in workers if not one.is_ready and one.boot != "failed"]
    is_settled = quiet_s >= spec.settle_minutes * 60
    is_over = came + len(broken) >= spec.workers.count
    if is_late or is_over or (is_final and not pending):
        if came >= spec.workers.min:
            return Fewer(came, said)
        return GiveUp(said)
    if refused and is_settled and came >= spec.workers.min and not pending:
        return Fewer(came, said)
    return Wait()


def _without_master(
    masters: Sequence[Member], refused: Sequence[str], *, is_late: bool
) -> Decision:
    broken = [one.reason for one in masters if one.boot == "failed"]
    if broken:
        return GiveUp(f"the master did not boot: {broken[0]}")
    if is_late or any(is_permanent(reason) for reason in refused):
        said = "; ".join(refused) or "it did not come in time"
        return GiveUp(f"there is no master: {said}")
    return Wait()
