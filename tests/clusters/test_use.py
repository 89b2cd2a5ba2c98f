"""Use of GPUs and processors: from `nvidia-smi`, and in the events of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.clusters import use
from shoal.clusters.use import UseSampler, parse_use
from shoal.engine.transport.messages.worker_reports import NodeUsed
from shoal.facts import GpuUse, NodeUse
from shoal.runs.events import read_events
from shoal.runs.store import create
from shoal.strategies import get
from shoal.testing.problems import LeastSquares
from shoal.wire.frames import Link
from tests.api.problems import line, linear
from tests.support.inline import Setup, train

TEXT = """\
0, NVIDIA H100 80GB HBM3, 97, 41200, 81559, 61, 402.51
1, NVIDIA H100 80GB HBM3, [N/A], 3, 81559, [N/A], [Not Supported]
"""
MODEL = "NVIDIA H100 80GB HBM3"
GPUS = (
    GpuUse(0, MODEL, 97.0, 41200.0, 81559.0, 61.0, 402.51),
    GpuUse(1, MODEL, None, 3.0, 81559.0, None, None),
)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path that has no program but an `nvidia-smi` that a test may write."""
    monkeypatch.setattr(use, "FIRST_S", 0.0)
    monkeypatch.setattr(use, "EVERY_S", 0.0)
    monkeypatch.setattr(use, "MOST", float("inf"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvidia-smi"


@pytest.fixture
def sampler(tool: Path) -> Iterator[UseSampler]:
    found = UseSampler("test")
    yield found
    found.close()


def write(tool: Path, body: str) -> None:
    tool.write_text(f"#!{sys.executable}\nimport sys, time\n{body}\n")
    tool.chmod(0o755)


def seen(sampler: UseSampler) -> NodeUse:
    while True:
        found = sampler.look()
        if found is not None:
            return found


def test_output_of_nvidia_smi_is_parsed():
    assert parse_use(TEXT) == GPUS
    assert parse_use("No devices were found\n") == ()


@given(st.text())
def test_any_output_of_nvidia_smi_is_accepted(text: str):
    assert all(gpu.number >= 0 for gpu in parse_use(text))


def test_nvidia_smi_is_called(tool: Path):
    asked = f"--query-gpu={','.join(use.QUERY)}"
    write(tool, f"assert {asked!r} in sys.argv\nsys.stdout.write({TEXT!r})")
    sampler = UseSampler()
    for _ in range(2):
        found = seen(sampler)
        assert found.gpus == GPUS
        assert 0 <= found.percent <= 100
        assert 0 < found.memory_mib <= found.total_mib
    sampler.close()


def test_no_tool_and_so_no_process(sampler: UseSampler, monkeypatch):
    monkeypatch.setattr(use.subprocess, "Popen", None)
    assert seen(sampler).gpus == ()


def test_a_tool_that_fails_is_not_asked_again(tool: Path):
    write(tool, f"open({str(tool)!r} + '.log', 'a').write('x')\nsys.exit(9)")
    sampler = UseSampler()
    assert [seen(sampler).gpus for _ in range(3)] == [()] * 3
    assert Path(f"{tool}.log").read_text() == "x"


def test_a_tool_that_hangs_is_ended(tool: Path, monkeypatch: pytest.MonkeyPatch):
    write(tool, "time.sleep(1000)")
    monkeypatch.setattr(use, "LIMIT_S", 0.0)
    assert [seen(UseSampler()).gpus for _ in range(2)] == [()] * 2


def test_a_run_that_ends_meanwhile_leaves_nothing(tool: Path):
    write(tool, "time.sleep(1000)")
    sampler = UseSampler()
    assert sampler.look() is None
    sampler.close()
    sampler.close()


@pytest.mark.skipif(sys.platform != "linux", reason="names that end with a process")
def test_one_process_of_each_machine_measures(sampler: UseSampler):
    other = UseSampler("test")
    assert sampler.look() is not None
    assert other.look() is None
    sampler.close()
    assert other.look() is not None
    other.close()


def test_the_interval_of_measurements_grows(
    tool: Path, monkeypatch: pytest.MonkeyPatch
):
    now, found = [0.0], list[int]()
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tool.parent))
    monkeypatch.setattr(use, "time", SimpleNamespace(monotonic=lambda: now[0]))
    sampler = UseSampler()
    for second in range(24 * 3600):
        now[0] = float(second)
        if sampler.look() is not None:
            found.append(second)
    assert found[:4] == [1, 2, 4, 8]
    assert len([second for second in found if 60 <= second < 70]) == 2
    assert 900 < len(found) < 1200  # of a day


@pytest.mark.parametrize("wrong", [
    {"node": 7}, {"percent": float("nan")}, {"percent": "much"}, {"gpus": [{}]},
    {"gpus": [GPUS[0]._asdict()] * 999}, {"memory_mib": -1.0},
])  # fmt: skip
def test_measurements_of_a_worker_are_validated(wrong: dict[str, object]):
    said = NodeUsed(node="a", use=NodeUse(50.0, 1.0, 2.0, GPUS))
    assert NodeUsed.parse(said.pack()) == said
    with pytest.raises((ValueError, KeyError)):
        NodeUsed.parse({**said.pack(), **wrong})


@pytest.mark.skipif(sys.platform != "linux", reason="names that end with a process")
@pytest.mark.parametrize("name", ["aeasgd", "all_reduce"])
def test_workers_on_other_machines_report_measurements(
    name: str, tool: Path, monkeypatch: pytest.MonkeyPatch
):
    problem = LeastSquares.seeded(rows=101, size=5)
    given = Setup.linear(problem, get(name), 0.3, workers=1, epochs=2)
    silent = train(given)
    assert silent.of_kind("node_used") == []  # the server's machine is not theirs
    monkeypatch.setattr(Link, "is_local", False)
    told = train(given)
    np.testing.assert_array_equal(told.vector, silent.vector)
    found = told.of_kind("node_used")
    assert {event["node"] for event in found} == {"127.0.0.1"}
    assert all(event["gpus"] == [] for event in found)


@pytest.mark.process
def test_a_run_records_the_use_of_its_machine(
    kept: shoal.Session, tool: Path, tmp_path: Path
):
    write(tool, f"sys.stdout.write({TEXT!r})")
    x, y = line()
    with create(tmp_path, "busy") as run:

        class Until(keras.callbacks.Callback):
            """Trains until a look has been told."""

            def on_epoch_end(self, epoch: int, logs: object = None) -> None:
                self.model.stop_training = bool(run.summary().use)

        kept.fit(
            linear(), x, y, epochs=100_000, workers=2, batch_size=32, run=run,
            verbose=0, callbacks=[Until()], checkpoint_every=None,
        )  # fmt: skip
    events = [e for e in read_events(run.folder) if e["kind"] == "node_used"]
    assert events[0]["node"] == "localhost"
    assert events[0]["gpus"] == [gpu._asdict() for gpu in GPUS]
    use_of = {row["what"]: row for row in run.summary().use}
    assert set(use_of) == {"cores", "GPU 0", "GPU 1"}
    assert use_of["GPU 0"]["most_memory_mib"] == 41200
    assert use_of["GPU 0"]["mean_watts"] == 402.5
    assert "mean_percent" not in use_of["GPU 1"]
