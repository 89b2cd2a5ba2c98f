"""What is known of a cluster: as its provider says now, or as last seen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.clusters import refreshing
from shoal.clusters.cluster_state import ClusterState, ClusterStore, NodeState
from shoal.clusters.hosts_file import parse_hosts
from shoal.clusters.refreshing import refreshed
from shoal.errors import ClusterError, ConfigError, CredentialsError

HOSTS = parse_hosts("name: lab\nhosts: [a, b]", "hosts.yaml")
Refresh = Callable[[ClusterState], ClusterState]


class Moving:
    """A provider whose machines have other addresses now."""

    def __init__(self, refresh: Refresh) -> None:
        self._refresh = refresh

    def refresh(self, state: ClusterState, folder: Path) -> ClusterState:
        assert folder.is_dir()
        return self._refresh(state)


@pytest.fixture
def store(tmp_path: Path) -> ClusterStore:
    found = ClusterStore(str(tmp_path))
    nodes = (NodeState(number=0, address="a", private="10.0.0.1"),)
    state = ClusterState.new("hosts", HOSTS, "jax")
    found.write(state.model_copy(update={"nodes": nodes, "hosts": HOSTS}))
    return found


def provide(monkeypatch: pytest.MonkeyPatch, refresh: Refresh) -> None:
    monkeypatch.setattr(refreshing, "provider_of", lambda _state: Moving(refresh))


def moved(state: ClusterState) -> ClusterState:
    [node] = state.nodes
    node = node.model_copy(update={"private": "10.0.0.9"})
    return state.model_copy(update={"nodes": (node,)})


def test_new_addresses_are_stored(
    store: ClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    provide(monkeypatch, moved)
    assert refreshed(store, "lab").head.private == "10.0.0.9"
    assert store.get("lab").head.private == "10.0.0.9"


def test_it_is_as_last_seen_where_nobody_can_be_asked(
    store: ClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(state: ClusterState) -> ClusterState:
        raise CredentialsError("the credentials have expired. Log in again.")

    provide(monkeypatch, refuse)
    told: list[str] = []
    before = store.get("lab")
    assert refreshed(store, "lab", told.append) == before == store.get("lab")
    [said] = told
    assert said.startswith("lab is shown as it was last seen: the credentials have ex")


def test_a_command_that_changes_the_cluster_is_not_disturbed(
    store: ClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not waited for, and what it writes is not overwritten."""
    provide(monkeypatch, moved)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with store.lock("lab"):
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    try:
        assert refreshed(store, "lab").head.private == "10.0.0.9"
        assert store.get("lab").head.private == "10.0.0.1"
    finally:
        done.set()
        thread.join()

    def change(state: ClusterState) -> ClusterState:
        store.write(state.model_copy(update={"port": 7}))  # `up` has just ended
        return moved(state)

    provide(monkeypatch, change)
    assert refreshed(store, "lab").head.private == "10.0.0.9"
    assert (store.get("lab").port, store.get("lab").head.private) == (7, "10.0.0.1")


def test_unknown_and_broken_ones_are_errors(store: ClusterStore) -> None:
    with pytest.raises(ConfigError, match="unknown cluster 'lap'"):
        refreshed(store, "lap")
    (store.folder / "lab.json").write_text("{")
    with pytest.raises(ClusterError, match="cannot be read"):
        refreshed(store, "lab")
