from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.backends import BACKENDS
from shoal.clusters.gpus import parse_gpus, reaches_gpus, usable_gpus, visible_gpus
from shoal.clusters.local import read_machine
from shoal.facts import Gpu

TEXT = "0, GPU-5f, 81559, 80994\n1, GPU-a0, 81559, 20000\n2, GPU-a1, [N/A], [N/A]\n"
THREE = parse_gpus(TEXT)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path that has no program but an `nvidia-smi` that a test may write."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "nvidia-smi"


def write(tool: Path, body: str) -> None:
    tool.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    tool.chmod(0o755)


def test_output_of_nvidia_smi_is_parsed():
    expected = [
        Gpu(number=0, name="GPU-5f", total_mib=81559, free_mib=80994),
        Gpu(number=1, name="GPU-a0", total_mib=81559, free_mib=20000),
        Gpu(number=2, name="GPU-a1"),
    ]
    assert expected == THREE
    assert parse_gpus("No devices were found\n") == []


@given(st.text())
def test_any_output_of_nvidia_smi_is_accepted(text: str):
    assert all(gpu.total_mib >= 0 for gpu in parse_gpus(text))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("0", [0]),
        ("2, 0", [2, 0]),
        ("-1", []),
        ("0,-1,1", [0]),
        ("0,7,1", [0]),
        ("1,1", [1]),
        ("GPU-a1,GPU-5f", [2, 0]),
    ],
)
def test_visible_gpus(words: str | None, expected: list[int]):
    found = visible_gpus(THREE, words)
    assert [gpu.number for gpu in found] == expected
    if words:  # CUDA is told what it was told
        told = [word.strip() for word in words.split(",")]
        assert [gpu.name for gpu in found] == told[: len(found)]


def test_a_part_of_a_gpu():
    [found] = visible_gpus(THREE, "MIG-77")
    assert (found.name, found.total_mib) == ("MIG-77", 0)
    assert visible_gpus([], "MIG-77") == ()


def test_no_tool_and_no_driver(tool: Path, tmp_path: Path):
    assert usable_gpus(tmp_path) == ()


def test_gpus_are_counted_by_the_driver_without_nvidia_smi(tool: Path, tmp_path: Path):
    (tmp_path / "driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert usable_gpus(tmp_path) == (Gpu(number=0, name="0"),)


def test_nvidia_smi_is_called(tool: Path, monkeypatch: pytest.MonkeyPatch):
    asked = "--query-gpu=index,uuid,memory.total,memory.free"
    write(tool, f"assert {asked!r} in sys.argv\nsys.stdout.write({TEXT!r})")
    assert usable_gpus() == tuple(THREE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.free_mib for gpu in usable_gpus()] == [20000]


def test_a_tool_that_fails(tool: Path, tmp_path: Path):
    write(tool, "sys.exit('NVIDIA-SMI has failed')")
    assert usable_gpus(tmp_path) == ()


def test_only_a_backend_that_can_use_them_has_gpus(
    tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(tool, f"sys.stdout.write({TEXT!r})")
    assert not reaches_gpus("numpy")
    for name, entry in BACKENDS.items():
        path, text = entry.gpu_parts[0]
        part = tmp_path / "site" / path
        part.parent.mkdir(parents=True)
        part.write_text(text)
        monkeypatch.setattr(
            "shoal.clusters.gpus.find_spec",
            lambda package: type(
                "Spec",
                (),
                {"submodule_search_locations": [str(tmp_path / "site" / package)]},
            ),
        )
        assert len(read_machine(name).gpus) == 3
        part.unlink()
        assert read_machine(name).gpus == ()
