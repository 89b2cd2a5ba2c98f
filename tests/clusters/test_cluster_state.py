"""What is known of clusters: files that are whole, and only ours."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from shoal.clusters import cluster_state
from shoal.clusters.cluster_state import ClusterState, ClusterStore, NodeState
from shoal.clusters.hosts_file import parse_hosts
from shoal.errors import ClusterError, ConfigError, DataError

HOSTS = parse_hosts("name: lab\nhosts: [a, b]", "hosts.yaml")
NODES = (
    NodeState(number=1, address="b", private="10.0.0.2"),
    NodeState(number=0, address="a", private="10.0.0.1"),
)


def test_state_is_read_back_and_private(tmp_path: Path) -> None:
    store = ClusterStore(str(tmp_path / "clusters"))
    state = ClusterState.new("hosts", HOSTS, "jax").model_copy(update={"nodes": NODES})
    with store.lock("lab"):
        store.write(state)
    assert store.read("lab") == state
    assert store.names() == ["lab"]
    [path] = (tmp_path / "clusters").glob("*.json")
    assert path.stat().st_mode & 0o777 == 0o600
    assert state.head.address == "b"
    store.remove("lab")
    store.remove("lab")
    assert store.read("lab") is None


def test_nodes_are_found_by_number_and_address() -> None:
    state = ClusterState.new("hosts", HOSTS, "jax").model_copy(update={"nodes": NODES})
    for said, address in (("1", "b"), ("a", "a"), ("10.0.0.1", "a")):
        assert state.find(said).address == address
    with pytest.raises(ConfigError, match="Known: 1 b, 0 a"):
        state.find("c")


def test_an_unknown_name_and_a_broken_file(tmp_path: Path) -> None:
    store = ClusterStore(str(tmp_path))
    store.write(ClusterState.new("hosts", HOSTS, "jax"))
    with pytest.raises(ConfigError, match="Did you mean 'lab'"):
        store.get("lap")
    (tmp_path / "lab.json").write_text("{}")
    with pytest.raises(ClusterError, match="cannot be read"):
        store.get("lab")


def test_one_process_at_a_time_changes_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_state, "LOCK_LIMIT_S", 0.0)
    store, held, done = (
        ClusterStore(str(tmp_path)),
        threading.Event(),
        threading.Event(),
    )

    def hold() -> None:
        with store.lock("lab"):
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    with (
        pytest.raises(ClusterError, match="by another process"),
        store.lock("lab"),
    ):
        pass
    done.set()
    thread.join()
    with store.lock("lab"):
        pass


@pytest.mark.parametrize("name", ["../other", "/etc/passwd", "", "a/b", "..", "a\0b"])
def test_a_name_cannot_address_another_file(name: str, tmp_path: Path) -> None:
    store = ClusterStore(str(tmp_path / "known"))
    (tmp_path / "known").mkdir()
    store.write(ClusterState.new("hosts", HOSTS, "jax"))
    (tmp_path / "known" / "lab.json").rename(tmp_path / "other.json")
    with pytest.raises(ConfigError, match="cluster"):
        store.get(name)
    with pytest.raises(DataError, match="cannot be a path"):
        store.remove(name + "/../other")
    assert (tmp_path / "other.json").exists()


def test_a_file_of_another_cluster_is_not_taken(tmp_path: Path) -> None:
    store = ClusterStore(str(tmp_path))
    store.write(ClusterState.new("hosts", HOSTS, "jax"))
    (tmp_path / "lab.json").rename(tmp_path / "mine.json")
    with pytest.raises(ClusterError, match="called 'lab'"):
        store.get("mine")


OF_FORM_1 = {
    "version": 1, "name": "lab", "id": "0a1b2c3d", "created": 1.7e9, "token": "t",
    "backend": "jax", "environment": "d1g3st", "port": 6379,
    "nodes": [{"number": 0, "address": "a", "private": "10.0.0.1", "python": "/p"}],
    "hosts": {"name": "lab", "hosts": [{"address": "a"}], "user": "ann"},
}  # fmt: skip


def test_a_file_of_form_1_is_read_and_written_as_form_2(tmp_path: Path) -> None:
    path = tmp_path / "lab.json"
    path.write_text(json.dumps(OF_FORM_1))
    store = ClusterStore(str(tmp_path))
    state = store.get("lab")
    assert (state.version, state.provider, state.facts) == (2, "hosts", {})
    assert (state.id, state.port, state.head.address) == ("0a1b2c3d", 6379, "a")
    assert state.way_to(state.head).options == ("-l", "ann")
    store.write(state)
    assert json.loads(path.read_text())["version"] == 2
    assert store.get("lab") == state


def test_a_file_of_a_later_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lab.json").write_text(json.dumps({**OF_FORM_1, "version": 3}))
    with pytest.raises(ClusterError, match="it has form 3, and this Shoal knows 2"):
        ClusterStore(str(tmp_path)).get("lab")


def test_a_cluster_without_nodes_says_so() -> None:
    state = ClusterState.new("hosts", HOSTS, "jax")
    with pytest.raises(ClusterError, match="the cluster lab has no node"):
        _ = state.address
    assert state.shared is None
