"""What is known of a cluster: its state, as its provider describes it now.

Every command takes the state from here, so that a replaced machine's new address is
met everywhere. Where the provider cannot be asked, the state is as last seen.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from shoal.clusters.cluster_state import ClusterState, ClusterStore
from shoal.clusters.providers import provider_of
from shoal.errors import ClusterError, ShoalError
from shoal.terminal import say

Report: TypeAlias = Callable[[str], None]
"""Called with a sentence if a state is not of now."""


def _complain(text: str) -> None:
    say(text, err=True)


def refreshed(
    store: ClusterStore, name: str, report: Report = _complain
) -> ClusterState:
    """Returns the state of a cluster, and stores what has changed.

    Args:
        store: Store of states.
        name: Name of the cluster.
        report: Called if its provider cannot be asked, with the reason.

    Raises:
        ConfigError: The cluster is unknown.
        ClusterError: Its file is broken.
    """
    state = store.get(name)
    try:
        now = provider_of(state).refresh(state, store.folder)
    except ShoalError as error:
        report(f"{name} is shown as it was last seen: {error}")
        return state
    if now != state:
        _keep(store, state, now)
    return now


def _keep(store: ClusterStore, before: ClusterState, now: ClusterState) -> None:
    """Stores a new state, unless another process is changing the cluster."""
    with suppress(ClusterError), store.lock(before.name, limit_s=0.0):
        if store.read(before.name) == before:
            store.write(now)
