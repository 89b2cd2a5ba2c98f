"""Hosts as people write them down."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import ConfigError
from shoal.foreign.hosts import parse_nodes, read_nodes, this_machine
from shoal.foreign.job import Shape


def test_a_file_of_mpirun_and_one_of_addresses(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# ours\n10.0.0.1 slots=2\n\nann@b gpus=4 address=10.0.0.2\n")
    one, other = read_nodes(str(path))
    assert (one.name, one.address, one.slots, one.gpus) == (
        "10.0.0.1", "10.0.0.1", 2, ()
    )  # fmt: skip
    assert (other.name, other.address) == ("ann@b", "10.0.0.2")
    assert other.gpus == ("0", "1", "2", "3")
    assert [node.name for node in read_nodes("a,b")] == ["a", "b"]


@pytest.mark.parametrize(
    "line",
    ["a slots=many", "a b", "a; rm -rf /", "a cores=3", "-oProxyCommand=x", "-v"],
)
def test_a_line_that_is_no_host(line: str) -> None:
    with pytest.raises(ConfigError, match="line 1 of the hosts is"):
        parse_nodes([line])


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"there is no file './hosts'"):
        read_nodes("./hosts")


def test_too_many_for_one_machine() -> None:
    with pytest.raises(ConfigError, match="has 900 processes for this machine"):
        this_machine(Shape(per_node=900))
