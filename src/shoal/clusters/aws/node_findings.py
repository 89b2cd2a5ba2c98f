"""What AWS and a node itself say about its health, beside the checks of any host."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from shoal.clusters.aws.calls import Calls
from shoal.clusters.aws.members import Member
from shoal.clusters.bring_up import on_all
from shoal.clusters.cluster_state import ClusterState, NodeState
from shoal.clusters.doctor import Finding
from shoal.clusters.ssh import over
from shoal.errors import ClusterError

SERVICES = ("shoal-lists", "shoal-agent")
SSH_LIMIT_S = 45.0


def statuses_of(calls: Calls, instances: Sequence[str]) -> dict[str, str]:
    """Returns instance -> what EC2's checks of it say, such as "ok" or "impaired"."""
    if not instances:
        return {}
    listed = calls.pages(
        "ec2", "DescribeInstanceStatus", "InstanceStatuses",
        InstanceIds=list(instances), IncludeAllInstances=True,
    )  # fmt: skip
    return {str(one["InstanceId"]): status_in(one) for one in listed}


def status_in(told: Mapping[str, Any]) -> str:
    """Returns the worse of the two checks of an instance.

    Example:
        >>> ok, bad = {"Status": "ok"}, {"Status": "impaired"}
        >>> status_in({"SystemStatus": ok, "InstanceStatus": bad})
        'impaired'
    """
    both = [
        str(told.get(name, {}).get("Status", "unknown"))
        for name in ("SystemStatus", "InstanceStatus")
    ]
    return next((one for one in both if one != "ok"), "ok")


def said_by_nodes(state: ClusterState, mount: str) -> dict[str, dict[str, str]]:
    """Asks each node by SSH; returns address -> what its services and its mount say.

    Args:
        state: State of the cluster.
        mount: Path of the shared file system; "" for none.
    """
    listed = " ".join(SERVICES)
    script = f"for one in {listed}; do echo $one $(systemctl is-active $one); done"
    if mount:
        mounted = f"mountpoint -q {shlex.quote(mount)}"
        script += f"; {mounted} && echo mount yes || echo mount no"

    def ask(node: NodeState) -> dict[str, str]:
        words = over(state.way_to(node).words, ["sh", "-c", script])
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                check=False, timeout=SSH_LIMIT_S,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ClusterError(str(error)) from error
        lines = (line.split() for line in done.stdout.splitlines())
        return {words[0]: words[1] for words in lines if len(words) == 2}

    found, _ = on_all(state.nodes, ask)  # `ssh` of the other checks tells who fails
    return {node.address: told for node, told in found.items()}


def findings_of(
    name: str, member: Member, status: str, said: Mapping[str, str] | None
) -> list[Finding]:
    """Returns the findings about a machine.

    Args:
        name: Name of the cluster, for commands.
        member: The machine.
        status: What EC2's checks say; "" if they were not told.
        said: What the node says of its services and its mount; None if it was silent.
    """
    logs = f"see shoal cluster logs {name} {member.instance}"
    found = [
        Finding(name="boot", found="ready")
        if member.boot == "ready"
        else Finding(
            name="boot", state="wrong", found=member.reason or member.boot, fix=logs
        )
    ]
    if status:
        is_bad = status not in ("ok", "initializing")
        fix = f"end the machine: its group starts another ({member.instance})"
        found.append(_of("EC2", status, is_bad=is_bad, fix=fix))
    if said is None:
        return found
    states = {one: said.get(one, "active") for one in SERVICES}
    bad = [f"{one} is {state}" for one, state in states.items() if state != "active"]
    told = "; ".join(bad) or "active"
    found.append(_of("service", told, is_bad=bool(bad), fix=logs))
    if "mount" in said:
        is_bad = said["mount"] != "yes"
        told = "not mounted" if is_bad else "mounted"
        found.append(_of("mount", told, is_bad=is_bad, fix="run `sudo mount -a` there"))
    return found


def end_finding(end: str, now: datetime) -> Finding:
    """Returns when a cluster ends by itself.

    Example:
        >>> end_finding("2026-01-02T05:00:00", datetime(2026, 1, 2, 3, 30, tzinfo=UTC))
        Finding(name='ends', found='in 1.5 h', state='good', fix='')
    """
    if not end:
        return Finding(name="ends", found="never")
    left_s = (datetime.fromisoformat(end).replace(tzinfo=UTC) - now).total_seconds()
    if left_s > 0:
        return Finding(name="ends", found=f"in {left_s / 3600:.1f} h")
    fix = "save what you need: it is being deleted, or its schedule has failed"
    return Finding(name="ends", state="wrong", found=f"since {end} UTC", fix=fix)


def _of(name: str, told: str, *, is_bad: bool, fix: str) -> Finding:
    if is_bad:
        return Finding(name=name, found=told, state="wrong", fix=fix)
    return Finding(name=name, found=told)
