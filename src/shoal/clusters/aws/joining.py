"""What lets nodes join by themselves: the agent's text, and `join.json`."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from shoal.clusters.aws.calls import Calls
from shoal.clusters.aws.nodes import Place
from shoal.clusters.aws.ways_in import names_in
from shoal.clusters.cluster_state import ClusterState
from shoal.clusters.host_setup import Installation
from shoal.clusters.remote_call import BOOT, program
from shoal.errors import ClusterError

PARTS = ("node_decisions", "degrade", "node_calls", "node_forming", "node_agent")
OBJECT = "join.json"


@cache
def agent_text() -> str:
    """Returns the program of a node's agent: a file of the standard library alone."""
    lines = ["from __future__ import annotations"]
    for part in PARTS:
        text = Path(__file__).with_name(f"{part}.py").read_text(encoding="utf-8")
        own = re.sub(r"from shoal\.\S+ import (\([^)]*\)|.*)\n", "", text)
        lines.append(own.replace("from __future__ import annotations\n", ""))
    lines += [f"HOST_PROGRAM = {program()!r}", f"HOST_BOOT = {BOOT!r}", "main()", ""]
    return "\n".join(lines)


def send_agent(calls: Calls, place: Place) -> str:
    """Puts the agent to the bucket; returns its digest."""
    content = agent_text().encode()
    digest = hashlib.sha256(content).hexdigest()
    calls.ask(
        "s3", "PutObject", Bucket=place.bucket, Key=f"{place.prefix}/agent-{digest}",
        Body=content, ExpectedBucketOwner=place.account,
    )  # fmt: skip
    return digest


def join_of(state: ClusterState, installation: Installation | None) -> dict[str, Any]:
    """Returns `join.json`: how a node that comes later joins; it has no secret.

    Args:
        state: State of the cluster.
        installation: The environment of its hosts; None for one that exists there.
    """
    by_name = {name: instance for instance, name in names_in(state.facts).items()}
    asked = None if state.hosts is None else state.hosts.environment
    return {
        "form": 1, "name": state.name, "backend": state.backend,
        "head": state.head.private, "port": state.port,
        "python": None if asked is None else asked.python,
        "base": None if asked is None else asked.base,
        "environment": state.environment,
        "archive": f"environments/{state.environment}.tar",
        "requirements": [] if installation is None else installation.requirements,
        "options": [] if installation is None else installation.options,
        "files": [] if installation is None else installation.files,
        "nodes": {
            by_name[node.address]: node.number
            for node in state.nodes
            if node.address in by_name
        },
    }  # fmt: skip


def hold_joins(calls: Calls, place: Place) -> None:
    """Removes `join.json`: agents start no node until it is back."""
    with suppress(ClusterError):  # the cluster is gone
        calls.ask(
            "s3", "DeleteObjects", Bucket=place.bucket,
            ExpectedBucketOwner=place.account,
            Delete={"Objects": [{"Key": f"{place.prefix}/{OBJECT}"}], "Quiet": True},
        )  # fmt: skip


def send_join(
    calls: Calls, place: Place, state: ClusterState, installation: Installation | None
) -> None:
    """Puts what nodes need to join to the bucket."""
    told = join_of(state, installation)
    if installation is not None:
        key = f"{place.prefix}/{told['archive']}"
        listed = calls.ask(
            "s3", "ListObjectsV2", Bucket=place.bucket, Prefix=key,
            ExpectedBucketOwner=place.account,
        )  # fmt: skip
        if not listed.get("KeyCount"):
            calls.ask(
                "s3", "PutObject", Bucket=place.bucket, Key=key,
                Body=installation.payload(), ExpectedBucketOwner=place.account,
            )  # fmt: skip
    calls.ask(
        "s3", "PutObject", Bucket=place.bucket, Key=f"{place.prefix}/{OBJECT}",
        Body=json.dumps(told).encode(), ExpectedBucketOwner=place.account,
    )  # fmt: skip
