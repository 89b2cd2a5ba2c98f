"""Programs of other frameworks under `shoal launch`, unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "foreign"
pytestmark = [pytest.mark.process, pytest.mark.examples]


def launch(script: str, logs: Path, *options: str) -> list[str]:
    """Lines of all processes, in any order."""
    done = subprocess.run(
        [
            sys.executable, "-m", "shoal", "launch", "--logs", str(logs), *options,
            "--", sys.executable, str(EXAMPLES / script),
        ],
        capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    return done.stdout.splitlines()


def told(lines: list[str], pattern: str) -> list[tuple[str, ...]]:
    found = [re.search(pattern, line) for line in lines]
    return sorted(match.groups() for match in found if match)


def test_torch(tmp_path: Path) -> None:
    lines = launch("torch_job.py", tmp_path, "--per-node", "2")
    pattern = r"^\[(worker-\d)\] rank (\d) of 2: loss 0.0"
    assert told(lines, pattern) == [("worker-0", "0"), ("worker-1", "1")]


def test_jax(tmp_path: Path) -> None:
    lines = launch("jax_job.py", tmp_path, "--jax", "--per-node", "2")
    assert told(lines, r"rank (\d) of 2: sum (\d)") == [("0", "1"), ("1", "1")]


def test_tensorflow(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    lines = launch("tensorflow_job.py", tmp_path, "--chief", "--per-node", "2")
    found = told(lines, r"(chief|worker) 0 of 2: loss 0.0")
    assert found == [("chief",), ("worker",)]


def test_tensorflows_parameter_servers(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    options = ("--chief", "--per-node", "2", "--ps", "1", "--evaluator")
    lines = launch("parameter_servers.py", tmp_path, *options)
    assert told(lines, r"^\[chief\] (chief): loss 0.0") == [("chief",)]
    assert told(lines, r"(evaluator): weights \[1.0, 1.0\]") == [("evaluator",)]


def test_roles_of_dmlc(tmp_path: Path) -> None:
    lines = launch(
        "dmlc_roles.py", tmp_path, "--scheduler", "--ps", "1", "--per-node", "2"
    )
    assert "[scheduler] scheduler: 1 servers and 2 workers" in lines
    met = told(lines, r"^\[(worker-\d)\] worker (\d) has met")
    assert met == [("worker-0", "0"), ("worker-1", "1")]
