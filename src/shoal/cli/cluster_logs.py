"""`shoal cluster logs`: what machines wrote while they were made."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from shoal.clusters.cluster_state import ClusterState, ClusterStore
from shoal.clusters.providers import provider_of, read_cluster_file
from shoal.clusters.refreshing import refreshed
from shoal.plan import environment
from shoal.terminal import say

EVERY_S = 5.0


def show_logs(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the cluster.")],
    node: Annotated[
        str | None,
        typer.Argument(help="Number, address or machine id of a node; default all."),
    ] = None,
    follows: Annotated[
        bool, typer.Option("-f", "--follow", help="Follow new lines.")
    ] = False,
    hosts: Annotated[
        Path | None,
        typer.Option(help="File of a cluster that this machine no longer knows."),
    ] = None,
) -> None:
    """Prints what a provider's machines wrote while they booted.

    The logs are in the provider's storage, so they outlive the machine. Pass --hosts
    for a cluster that is down.
    """
    state = _state_of(name, hosts)
    provider, instance = provider_of(state), _instance_of(state, node)
    shown: dict[tuple[str, str], int] = {}
    while True:
        found = list(provider.logs(state, instance))
        for log in found:
            key = log.machine, log.name
            lines, shown[key] = new_lines(
                log.text, shown.get(key, 0), is_growing=follows
            )
            for line in lines:
                say(f"{log.machine} {log.name}: {line}")
        if not follows:
            break
        time.sleep(EVERY_S)
    if not shown:
        say(f"The provider {state.provider} has no logs of {name}.", err=True)


def new_lines(text: str, begin: int, *, is_growing: bool) -> tuple[list[str], int]:
    r"""Returns the lines of a log from a position, and the position after them.

    Args:
        text: The log so far.
        begin: Characters that were shown before.
        is_growing: A line without its end is left until the rest of it is there.

    Example:
        >>> new_lines("one\ntw", 0, is_growing=True)
        (['one'], 4)
        >>> new_lines("one\ntwo\n", 4, is_growing=True)
        (['two'], 8)
        >>> new_lines("one\ntw", 0, is_growing=False)
        (['one', 'tw'], 6)
    """
    end = max(begin, text.rfind("\n") + 1) if is_growing else len(text)
    return text[begin:end].splitlines(), end


def _state_of(name: str, hosts: Path | None) -> ClusterState:
    known = ClusterStore(environment().clusters)
    found = known.read(name)
    if found is None and hosts is not None:
        asked = read_cluster_file(hosts)
        spec = asked.spec.model_copy(update={"name": name})
        return ClusterState.new(asked.provider.name, spec, "")
    return refreshed(known, name)


def _instance_of(state: ClusterState, node: str | None) -> str:
    """Returns the machine id of a node, which the provider's facts name."""
    if node is None or node.startswith("i-"):
        return node or ""
    names = state.facts.get("names")
    known = names if isinstance(names, dict) else {}
    address = node if node in known.values() else state.find(node).address
    return next((one for one, alias in known.items() if alias == address), address)
