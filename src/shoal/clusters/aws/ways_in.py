"""The hosts of a cluster on AWS, and the files by which OpenSSH reaches them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.clusters.aws.file import AwsFile
from shoal.clusters.aws.members import Joined, Member, aliases_of
from shoal.clusters.aws.ways import known_hosts_of, ssh_command, ssh_config
from shoal.clusters.cluster_state import ClusterState, NodeState
from shoal.clusters.hosts_file import Host, HostsFile
from shoal.paths import one_inside


def names_in(facts: Mapping[str, Any]) -> dict[str, str]:
    """Returns instance -> name for OpenSSH, of all machines that ever were there."""
    found = facts.get("names")
    known: Mapping[str, Any] = found if isinstance(found, dict) else {}
    return {str(instance): str(name) for instance, name in known.items()}


def hosts_of(
    spec: AwsFile, facts: Mapping[str, Any], members: Sequence[Member], folder: Path
) -> HostsFile:
    """Returns the hosts by their aliases; writes how OpenSSH reaches them.

    Args:
        spec: The file.
        facts: Facts of the cluster's state.
        members: Machines, the master first; each has a name in the facts.
        folder: Folder of the states of clusters.
    """
    config = one_inside(folder, f"{spec.name}.ssh")
    keys = one_inside(folder, f"{spec.name}.known_hosts")
    names = names_in(facts)
    _write(keys, known_hosts_of(members))
    text = ssh_config(
        members, names, user=str(facts.get("login")), known_hosts=keys,
        key=str(facts.get("key") or ""), session=_session(spec, facts),
    )  # fmt: skip
    _write(config, text)
    shared = None if spec.storage.shared == "none" else spec.storage.mount
    return HostsFile.model_validate(
        {
            "name": spec.name,
            "hosts": [
                {"address": names[one.instance], "private": one.private}
                for one in members
            ],
            "ssh": ssh_command(config),
            "shared": shared,
            "runs": spec.runs_in(str(facts.get("bucket", ""))),
            "head_trains": spec.master.trains or len(members) == 1,
            "min_workers": 1 + min(spec.workers.min, len(members) - 1),
            "environment": spec.environment,
        }
    )


def refreshed(
    state: ClusterState,
    found: Sequence[Member],
    folder: Path,
    joined: Mapping[str, Joined] | None = None,
) -> ClusterState:
    """Returns a state with the machines that AWS describes now; rewrites the files.

    A worker whose machine is gone is no node any more. The head stays even then, as
    its place is the address of the cluster until `up` makes another. A worker that has
    joined the head by itself is a node.

    Args:
        state: State as last seen, of a cluster that has nodes.
        found: Machines now, the master first.
        folder: Folder of the states of clusters.
        joined: Instance -> what its agent says.
    """
    before = names_in(state.facts)
    names = {**before, **aliases_of(state.name, found, before)}
    facts = {**state.facts, "names": names, "machines": len(found)}
    told = state.model_copy(update={"facts": facts})
    present = {names[one.instance]: one for one in found}
    nodes = [
        node.model_copy(update={"private": present[node.address].private})
        if node.address in present
        else node
        for place, node in enumerate(state.nodes)
        if node.address in present or place == 0
    ]
    nodes += _new_nodes(state, nodes, present, joined or {})
    kept = {node.address for node in nodes}
    reached = [one for name, one in present.items() if one.is_ready or name in kept]
    if not reached:
        return told
    spec = AwsFile.model_validate(state.spec)
    hosts = hosts_of(spec, facts, reached, folder)
    gone = [node for node in nodes if node.address not in present]
    entries = (
        *(
            Host.model_validate({"address": node.address, "private": node.private})
            for node in gone
        ),
        *hosts.hosts,
    )
    update = {
        "nodes": tuple(nodes),
        "hosts": hosts.model_copy(update={"hosts": entries}),
    }
    return told.model_copy(update=update)


def _new_nodes(
    state: ClusterState,
    nodes: Sequence[NodeState],
    present: Mapping[str, Member],
    joined: Mapping[str, Joined],
) -> list[NodeState]:
    """Returns the workers that have joined the head by themselves."""
    known = {node.address for node in nodes}
    numbers = {node.number for node in nodes}
    found: list[NodeState] = []
    for name, member in present.items():
        told = joined.get(member.instance)
        is_new = name not in known and member.is_ready and bool(nodes)
        if told is None or told.state != "joined" or not is_new:
            continue
        if told.head != f"{nodes[0].private}:{state.port}" or told.number in numbers:
            continue
        numbers.add(told.number)
        found.append(
            NodeState(
                number=told.number, address=name, private=member.private,
                python=told.python, path=told.path, gpus=told.gpus,
            )
        )  # fmt: skip
    return found


def _session(spec: AwsFile, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the words of the AWS command line, for Session Manager."""
    if not spec.access.session_manager:
        return ()
    region, profile = facts.get("region") or spec.region, facts.get("profile")
    words = ["aws", "--region", str(region)]
    words += ["--profile", str(profile)] if profile else []
    return tuple(words)


def _write(path: Path, text: str) -> None:
    """Writes a file that another process may be reading."""
    new = one_inside(path.parent, f"{path.name}.{os.getpid()}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
