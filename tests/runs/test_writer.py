"""A run whose driver lives is never called lost, and one whose driver died is."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.errors import ConfigError
from shoal.runs.catalogue import list_runs, read_summary, remove_run
from shoal.runs.events import read_events
from shoal.runs.folder import Folder
from shoal.runs.store import create, open_run
from shoal.runs.writer import LOCK

DRIVER = """
import sys
from shoal.runs.store import create
run = create(sys.argv[1], "other")
run.event("run_started", strategy="adag", workers=2)
print(run.id, flush=True)
sys.stdin.read()
"""
INSIDE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
HAS_NAMESPACES = not subprocess.run([*INSIDE, "true"], capture_output=True).returncode


@contextmanager
def driver(root: str, *inside: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that writes a run, and the run's id."""
    words = [*inside, sys.executable, "-c", DRIVER, root]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.parametrize("shift_s", [-3600.0, -60.0, 3600.0])
def test_a_clock_that_was_wrong_at_the_start_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift_s: float
) -> None:
    real = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + shift_s)
        run = create(tmp_path / "runs", "higgs")
        run.event("run_started", strategy="adag", workers=2)
    with run:
        assert read_summary(run.folder).status == "running"
        assert run.summary().status == "running"
        with pytest.raises(ConfigError, match="is running"):
            remove_run(run.id, tmp_path / "runs", force=False)


@pytest.mark.parametrize(
    "inside",
    [
        (),
        pytest.param(
            INSIDE,
            marks=pytest.mark.skipif(
                not HAS_NAMESPACES, reason="needs a process namespace of its own"
            ),
        ),
    ],
)
def test_a_driver_that_lives_and_is_killed(
    tmp_path: Path, inside: tuple[str, ...]
) -> None:
    """Also in another container under the same host name: its lock is seen."""
    with driver(str(tmp_path), *inside) as (process, name):
        folder = Folder.at(tmp_path / name)
        assert read_summary(folder).status == "running"
        assert [run.status for run in list_runs(tmp_path)] == ["running"]
        with pytest.raises(ConfigError, match="is running"):
            remove_run(name, tmp_path, force=False)
        process.kill()
        process.wait()
        deadline = time.monotonic() + 60
        while read_summary(folder).status == "running":  # the container ends after it
            assert time.monotonic() < deadline
        assert read_summary(folder).status == "lost"
        with open_run(
            name, tmp_path
        ) as again:  # the resuming process writes from now on
            again.event("run_resumed", workers=2)
            assert read_summary(folder).status == "running"


@pytest.mark.skipif(not HAS_NAMESPACES, reason="needs a process namespace of its own")
def test_storage_without_locks_calls_no_run_lost(tmp_path: Path) -> None:
    """The writer is in another namespace without a lock: it may live."""
    with driver(str(tmp_path), *INSIDE) as (process, name):
        (tmp_path / name / LOCK).unlink()
        process.kill()
        process.wait()
        assert read_summary(Folder.at(tmp_path / name)).status == "running"


def test_the_lock_goes_with_the_run(tmp_path: Path) -> None:
    with create(tmp_path, "higgs") as run:
        run.event("run_started", strategy="adag", workers=2)
        assert (tmp_path / run.id / LOCK).exists()
        with open_run(run.id, tmp_path) as reader:  # leaves no trace
            assert reader.summary().status == "running"
        assert (tmp_path / run.id / LOCK).exists()
        run.finish("finished")
    assert not (tmp_path / run.id / LOCK).exists()


def test_a_run_of_an_older_version_is_read(tmp_path: Path) -> None:
    """Its events name host and process number only."""
    with create(tmp_path, "higgs") as run:
        run.event("run_started", strategy="adag", workers=2)
    [segment, *_] = (tmp_path / run.id / "events").iterdir()
    found = [dict(event) for event in read_events(run.folder)]
    assert {"host", "pid", "start", "boot"} <= found[0].keys()

    def older(**more: object) -> str:
        names = ("kind", "host", "pid", "time")
        lines = [{name: e[name] for name in names if name in e} | more for e in found]
        return "".join(f"{json.dumps(line)}\n" for line in lines)

    for path in (tmp_path / run.id / "events").iterdir():
        path.unlink()
    segment.write_text(older())
    assert read_summary(run.folder).status == "running"
    segment.write_text(older(time=1.0))
    assert read_summary(run.folder).status == "lost"
