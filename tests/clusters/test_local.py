from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.clusters.local import read_machine, usable_cores


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 8 cores whose process runs in the cgroup job/step."""
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda pid: set(range(8)), raising=False
    )
    (tmp_path / "cgroup/job/step").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("1:cpu:/old\n0::/job/step\n")
    return tmp_path


def cores(machine: Path) -> int:
    return usable_cores(machine / "cgroup", machine / "proc")


def test_affinity_decides_without_a_quota(machine: Path):
    assert cores(machine) == 8
    (machine / "cgroup/job/step/cpu.max").write_text("max 100000\n")
    assert cores(machine) == 8


@pytest.mark.parametrize(
    ("quota", "expected"), [("250000", 2), ("50000", 1), ("10000000", 8)]
)
def test_quota_of_the_cgroup(machine: Path, quota: str, expected: int):
    (machine / "cgroup/job/step/cpu.max").write_text(f"{quota} 100000\n")
    assert cores(machine) == expected


def test_quota_of_a_cgroup_above_holds_too(machine: Path):
    (machine / "cgroup/job/step/cpu.max").write_text("500000 100000\n")
    (machine / "cgroup/job/cpu.max").write_text("300000 100000\n")
    assert cores(machine) == 3


def test_an_unreadable_quota_is_ignored(machine: Path):
    (machine / "cgroup/job/step/cpu.max").write_text("what\n")
    assert cores(machine) == 8


def test_a_system_without_cgroups(machine: Path):
    assert usable_cores(machine / "cgroup", machine / "nothing") == 8


def test_a_system_without_affinity(machine: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert cores(machine) == 6


def test_this_machine():
    found = read_machine("jax")
    assert found.cores >= 1
    assert found.memory_bytes > 0
