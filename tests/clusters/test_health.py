"""What readings of a node mean."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.clusters.cluster_state import NodeState
from shoal.clusters.health import CHECKS, NodeMeasurements, judge

NODE = NodeState(number=1, address="b", private="10.0.0.2", gpus=("GPU-1",))
OWN: dict[str, Any] = {
    "is_alive": True,
    "free": {"home": 50 << 30, "temporary files": 9 << 30},
    "memory": 8 << 30,
    "gpus": [["NVIDIA H100", "1024", "81559", "41"]],
    "shared": "",
}
REACH: dict[str, Any] = {
    "closed": [], "unseen": [], "latency_s": 0.0002, "ahead_s": 0.01,
    "bytes_per_s": 1.25e9,
}  # fmt: skip


def wrong(own: dict[str, Any], reach: dict[str, Any], **more: Any) -> dict[str, str]:
    reading = NodeMeasurements(
        own=OWN | own, reach=REACH | reach, is_in_ray=True, **more
    )
    found = judge(NODE, reading, is_head=False, has_shared=True)
    assert all(finding.name in CHECKS for finding in found)
    assert all(finding.fix for finding in found if finding.state == "wrong")
    return {one.name: one.found for one in found if one.state == "wrong"}


def test_a_node_that_is_well() -> None:
    assert wrong({}, {}) == {}
    reading = NodeMeasurements(own=OWN, reach=REACH, is_in_ray=True)
    told = {
        one.name: one.found
        for one in judge(NODE, reading, is_head=False, has_shared=True)
    }
    assert told["bandwidth"] == "10,000 Mbit/s"
    assert told["latency"] == "0.20 ms"
    assert told["GPUs"] == "NVIDIA H100 1024/81559 MiB 41 °C"
    assert tuple(told) != ()
    assert {"machine", *told} == {*CHECKS}  # which the provider tells of


@pytest.mark.parametrize(
    ("own", "reach", "name", "said"),
    [
        ({"is_alive": False}, {}, "ray", "it does not run"),
        ({"shared": "Read-only file system"}, {}, "shared", "Read-only file system"),
        ({}, {"unseen": ["10.0.0.1"]}, "shared", "files of 10.0.0.1 are not seen"),
        ({}, {"closed": [["10.0.0.1", 6379, "shut"]]}, "ports", "10.0.0.1:6379 shut"),
        ({}, {"ahead_s": -3.0}, "clock", "-3.000 s"),
        ({"free": {"home": 1 << 20}}, {}, "disk", "0.00 GiB for home"),
        ({"memory": 1 << 20}, {}, "memory", "0.0 GiB"),
        ({"gpus": []}, {}, "GPUs", "0, and 1 at `up`"),
        ({"gpus": [["H100", "1", "2", "[N/A]"]]}, {}, "GPUs", "H100 1 2 [N/A]"),
    ],
)  # fmt: skip
def test_each_fault_is_found(
    own: dict[str, Any], reach: dict[str, Any], name: str, said: str
) -> None:
    assert wrong(own, reach) == {name: said}


def test_a_node_that_the_head_has_lost_or_that_does_not_measure() -> None:
    reading = NodeMeasurements(
        own=OWN, reach={"closed": [], "unseen": []}, is_in_ray=False
    )
    found = judge(NODE, reading, is_head=False, has_shared=False)
    told = {one.name: one.found for one in found if one.state == "wrong"}
    assert told == {
        "ray": "the head has lost it", "latency": "the head does not answer"
    }  # fmt: skip


def test_an_unreachable_node_has_no_other_findings() -> None:
    [found] = judge(
        NODE, NodeMeasurements(unreached="no"), is_head=False, has_shared=True
    )
    assert (found.name, found.found, found.state) == ("ssh", "no", "wrong")
