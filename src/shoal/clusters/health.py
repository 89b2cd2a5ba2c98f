"""The health of a cluster on hosts: measurements, and their meaning.

`examine` measures; `judge` is pure.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, final

from shoal.clusters.bring_up import look, on_all
from shoal.clusters.cluster_state import ClusterState, NodeState
from shoal.clusters.doctor import GIB, LEAST_FREE, Finding
from shoal.clusters.provider import Instance
from shoal.clusters.remote_call import RemoteCall
from shoal.errors import ClusterError

LIMIT_S = 120.0
LEAST_MEMORY = 256 << 20
MOST_AHEAD_S = 1.0
CHECKS = (
    "machine", "ssh", "ray", "ports", "shared", "clock", "disk", "memory", "GPUs",
    "latency", "bandwidth",
)  # fmt: skip


@final
@dataclass(frozen=True, kw_only=True)
class NodeMeasurements:
    """Measurements of a node.

    Args:
        unreached: Why it could not be asked; empty if it could.
        own: Its facts about itself.
        reach: Its measurements of the connections to other nodes.
        is_in_ray: Whether Ray's head has it.
    """

    unreached: str = ""
    own: Mapping[str, Any] = field(default_factory=dict[str, Any])
    reach: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_in_ray: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class NodeHealth:
    """Findings about a node.

    Args:
        address: Address of the host, for OpenSSH.
        private: Address for the other hosts.
        findings: One for each of `CHECKS` that was possible, and those of its provider.
    """

    address: str
    private: str
    findings: tuple[Finding, ...]

    @property
    def is_well(self) -> bool:
        """Whether there is no fault."""
        return all(finding.state != "wrong" for finding in self.findings)


def examine(
    state: ClusterState, instances: Sequence[Instance] = ()
) -> list[NodeHealth]:
    """Asks all nodes at once for their condition and their connections.

    Args:
        state: State of the cluster.
        instances: Its machines, from their provider.

    Raises:
        ClusterError: The cluster has no nodes.
    """
    machines = {one.address: one for one in instances}
    secret = secrets.token_hex(16)
    with ExitStack() as stack:
        ray, _ = on_all([state.head], lambda node: look(state, node, asks_ray=True))
        nodes = ray.get(state.head, {}).get("nodes", [])
        alive = {one["address"]: one["ports"] for one in nodes if one["is_alive"]}
        talks = {
            node: stack.enter_context(closing(_talk(state, node, secret)))
            for node in state.nodes
        }
        own, unreached = on_all(state.nodes, lambda node: talks[node].hear())
        for node in own:
            talks[node].say(_question(state, node, own, alive))
        reach, lost = on_all(own, lambda node: talks[node].hear())
        return [
            NodeHealth(
                address=node.address, private=node.private,
                findings=(
                    *_machine(machines.get(node.address)),
                    *judge(
                        node,
                        NodeMeasurements(
                            unreached=unreached.get(node) or lost.get(node, ""),
                            own=own.get(node, {}), reach=reach.get(node, {}),
                            is_in_ray=node.private in alive,
                        ),
                        is_head=node == state.head, has_shared=bool(state.shared),
                    ),
                ),
            )
            for node in state.nodes
        ]  # fmt: skip


def _machine(instance: Instance | None) -> list[Finding]:
    """Returns the provider's finding; none for the user's own hosts."""
    if instance is None:
        return []
    bad = "" if instance.is_running else instance.state
    return [_either("machine", instance.state, bad, "shoal cluster up replaces it")]


def _talk(state: ClusterState, node: NodeState, secret: str) -> RemoteCall:
    request = {
        "mark": state.mark_of(node), "private": node.private, "secret": secret,
        "shared": state.shared, "limit_s": LIMIT_S,
    }  # fmt: skip
    way, pythons = state.way_to(node), [node.python, "python3"]
    try:
        return RemoteCall(way, pythons, "probe", request, limit_s=LIMIT_S)
    except OSError as error:
        raise ClusterError(f"ssh cannot be run: {error}") from error


def _question(
    state: ClusterState,
    node: NodeState,
    own: Mapping[NodeState, Mapping[str, Any]],
    alive: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    """Returns a node's request: listeners of the others, and Ray's ports on them."""
    others = [one for one in own if one != node]
    ports = [[one.private, own[one]["port"]] for one in others]
    for one in others:
        ports += [[one.private, port] for port in alive.get(one.private, ())]
    if state.head in others and state.head.private in alive:
        ports.append([state.head.private, state.port])
    head = (
        [state.head.private, own[state.head]["port"]] if state.head in others else None
    )
    written = [one.private for one in own if not own[one]["shared"]]
    return {"ports": ports, "shared": written, "head": head}


def judge(
    node: NodeState, reading: NodeMeasurements, *, is_head: bool, has_shared: bool
) -> list[Finding]:
    """Returns the findings from the measurements of a node.

    Args:
        node: Node, as it was at `up`.
        reading: Measurements.
        is_head: Whether it is the head.
        has_shared: Whether there should be a shared folder.
    """
    if reading.unreached:
        fix = "check that the host runs, and that `ssh` reaches it without a password"
        return [_wrong("ssh", reading.unreached, fix)]
    own, reach = reading.own, reading.reach
    found = [Finding(name="ssh", found="reached"), _ray(own, reading.is_in_ray)]
    closed = [f"{address}:{port} {why}" for address, port, why in reach["closed"]]
    fix = "let the hosts reach one another at all ports of their private addresses"
    found.append(_either("ports", "all open", "; ".join(closed), fix))
    if has_shared:
        unseen = ", ".join(reach["unseen"])
        told = own["shared"] or (unseen and f"files of {unseen} are not seen")
        fix = "mount the same folder on all hosts, writable for this user"
        found.append(_either("shared", "written and seen", told, fix))
    if not is_head:
        found += _towards_head(reach)
    return [*found, *_room(own), *_gpus(node, own)]


def _ray(own: Mapping[str, Any], is_in_ray: bool) -> Finding:
    if own["is_alive"] and is_in_ray:
        return Finding(name="ray", found="alive")
    told = "the head has lost it" if own["is_alive"] else "it does not run"
    return _wrong("ray", told, "shoal cluster up starts it again")


def _towards_head(reach: Mapping[str, Any]) -> list[Finding]:
    if "latency_s" not in reach:
        fix = "check `ports`, and that the head runs"
        return [_wrong("latency", "the head does not answer", fix)]
    ahead_s, rate = reach["ahead_s"], reach["bytes_per_s"]
    is_off = abs(ahead_s) > MOST_AHEAD_S
    told = f"{ahead_s:+.3f} s"
    fix = "have the hosts keep the time: chrony, or systemd-timesyncd"
    return [
        _either("clock", told, told if is_off else "", fix),
        Finding(name="latency", found=f"{reach['latency_s'] * 1e3:.2f} ms"),
        Finding(name="bandwidth", found=f"{rate * 8 / 1e6:,.0f} Mbit/s"),
    ]


def _room(own: Mapping[str, Any]) -> list[Finding]:
    free: Mapping[str, int] = own["free"]
    full = [
        f"{left / GIB:.2f} GiB for {what}"
        for what, left in free.items()
        if left < LEAST_FREE
    ]
    least = min(free.values(), default=0)
    memory = f"{own['memory'] / GIB:.1f} GiB"
    is_short = own["memory"] < LEAST_MEMORY
    return [
        _either("disk", f"{least / GIB:.1f} GiB", ", ".join(full), "make room there"),
        _either(
            "memory", memory, memory if is_short else "", "end what else runs there"
        ),
    ]  # fmt: skip


def _gpus(node: NodeState, own: Mapping[str, Any]) -> list[Finding]:
    listed: list[list[str]] = own["gpus"]
    if not listed and not node.gpus:
        return []
    fix = "run nvidia-smi there; a GPU that is lost comes back with a restart"
    if len(listed) != len(node.gpus):
        return [_wrong("GPUs", f"{len(listed)}, and {len(node.gpus)} at `up`", fix)]
    odd = [" ".join(gpu) for gpu in listed if not gpu[-1].isdecimal()]
    told = "; ".join(
        f"{name} {used}/{total} MiB {heat} °C" for name, used, total, heat, *_ in listed
        if not odd
    )  # fmt: skip
    return [_either("GPUs", told, "; ".join(odd), fix)]


def _wrong(name: str, told: str, fix: str) -> Finding:
    return Finding(name=name, found=told, state="wrong", fix=fix)


def _either(name: str, good: str, bad: str, fix: str) -> Finding:
    """Returns a fault if there is a text for it, else a good finding."""
    return _wrong(name, bad, fix) if bad else Finding(name=name, found=good)
