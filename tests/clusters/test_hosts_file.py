"""hosts.yaml: what it may say, and where it says what it may not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.clusters.hosts_file import HostsFile, parse_hosts
from shoal.clusters.providers import read_cluster_file
from shoal.errors import ConfigError

WHOLE = """
user: ann
jump: gate
key: ~/.ssh/lab
forward_agent: true
shared: /mnt/shared
min_workers: 2
environment:
  wheels: ./wheels
hosts:
  - 10.0.0.1
  - address: node-b
    private: 10.0.0.2
    user: bob
    port: 2222
    forward_agent: false
"""


def test_settings_of_a_host_override_common_settings() -> None:
    found = parse_hosts(WHOLE, "hosts.yaml")
    one, other = [found.way_to(host) for host in found.hosts]
    key = str(Path("~/.ssh/lab").expanduser())
    assert one.options == ("-l", "ann", "-i", key, "-J", "gate", "-A")
    assert other.options == ("-l", "bob", "-p", "2222", "-i", key, "-J", "gate")
    assert other.words[-1] == "node-b"


def test_json_is_read_like_yaml(tmp_path: Path) -> None:
    path = tmp_path / "lab.json"
    path.write_text(json.dumps({"hosts": ["10.0.0.1", {"address": "b", "port": 22}]}))
    found = read_cluster_file(path).spec
    assert isinstance(found, HostsFile)
    assert (found.name, [h.address for h in found.hosts]) == ("lab", ["10.0.0.1", "b"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hosts:\n  - a\n  - address: b\n    prot: 2", "line 4, hosts[1].prot"),
        ("hosts: [a]\nmin_workers: 2", "min_workers is 2, and hosts are 1"),
        ("hosts:\n  - a\n  - port: 70000\n    address: b", "line 3, hosts[1].port"),
        ("hosts:\n  - {port: 2}", "line 2, hosts[0].address: Field required"),
        ("hosts: [-oProxyCommand=x]", "line 1, hosts[0].address"),
        ("hosts: [a]\nshared: here", "line 2, shared"),
        ("hosts: [a, a]", "hosts are listed twice: a"),
        ("hosts: []", "line 1, hosts"),
        ("- a", "it holds no fields"),
        ("hosts: [a", "it is not YAML: while parsing a flow sequence"),
        ("hosts: [a]\nenvironment: {python: /p, wheels: w}", "it goes alone"),
        ("hosts: [a]\njump: -x", "line 2, jump"),
        ("hosts: [a, b]\nruns: here", "line 2, runs"),
        ("hosts: [a]\nhead_trains: false", "there is no other host"),
    ],
)
def test_errors_name_their_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_hosts(text, "hosts.yaml")
    assert str(caught.value).startswith("hosts.yaml: ")
    assert said in str(caught.value)


def test_a_file_that_is_not_there_or_names_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_cluster_file(tmp_path / "hosts.yaml")
    path = tmp_path / "my hosts.yaml"
    path.write_text("hosts: [a]")
    with pytest.raises(ConfigError, match="cannot be called 'my hosts'"):
        read_cluster_file(path)
