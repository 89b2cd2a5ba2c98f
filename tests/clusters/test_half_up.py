"""An interrupted `up` names the command that ends the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli.cluster import _half_up
from shoal.clusters.cluster_state import ClusterState, ClusterStore
from shoal.clusters.hosts_file import parse_hosts


@pytest.mark.parametrize("is_known", [True, False])
def test_an_interrupted_up_names_the_command_that_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path, is_known: bool,
) -> None:  # fmt: skip
    monkeypatch.setenv("SHOAL_CLUSTERS", str(tmp_path))
    if is_known:
        hosts = parse_hosts("name: lab\nhosts: [here]", "lab.yaml")
        ClusterStore(str(tmp_path)).write(ClusterState.new("hosts", hosts, "jax"))
    with pytest.raises(KeyboardInterrupt), _half_up("lab"):
        raise KeyboardInterrupt
    said = capsys.readouterr().err
    assert ("`shoal cluster down lab` ends it" in said) is is_known
