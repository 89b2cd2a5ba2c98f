from __future__ import annotations

import time
from datetime import date
from pathlib import Path

import pytest

from shoal.errors import ConfigError
from shoal.runs.catalogue import (
    find_run,
    list_runs,
    prune,
    read_plan,
    remove_run,
    run_ids,
)
from shoal.runs.folder import Folder
from shoal.runs.store import create


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    local = request.param == "local"
    return str(tmp_path / "runs") if local else f"memory://{tmp_path.name}"


def make(root: str, name: str, *, day: int = 1, status: str = "finished") -> str:
    with create(root, name, today=date(2026, 1, day)) as run:
        run.event("run_started", strategy="adag", workers=2, rows=10, epochs=1)
        if status != "running":
            run.finish(status)  # type: ignore[arg-type]
    return run.id


def test_newest_first(root: str):
    ids = [make(root, "a"), make(root, "b", status="failed")]
    found = list_runs(root)
    assert [run.id for run in found] == ids[::-1]
    assert [run.status for run in found] == ["failed", "finished"]
    assert found[0].workers == 2


def test_other_things_in_the_root_are_no_runs(root: str):
    made = make(root, "a")
    Folder.at(root).write("notes.txt", b"")
    Folder.at(root).write("folder/file", b"")
    Folder.at(root).write(".hidden/events/x", b"")
    assert run_ids(root) == [made]


def test_find_by_beginning_and_place(root: str):
    first, second = make(root, "cod", day=1), make(root, "cod", day=2)
    assert find_run(first, root).name == first
    assert find_run(second[:10], root).name == second
    assert find_run(find_run(first, root).url, "elsewhere").name == first


def test_an_ambiguous_beginning(root: str):
    make(root, "cod")
    make(root, "eel")
    with pytest.raises(ConfigError, match="beginning of 2 runs"):
        find_run("2026", root)


def test_an_unknown_id_lists_the_nearest(root: str):
    made = make(root, "herring")
    with pytest.raises(ConfigError, match=f"The nearest: {made}"):
        find_run("2026-01-01-hering-123", root)
    with pytest.raises(ConfigError, match=r"It holds 1 run\."):
        find_run("zzz", root)
    with pytest.raises(ConfigError, match="no run ''"):
        find_run("", root)


def test_a_place_without_a_run(tmp_path: Path):
    with pytest.raises(ConfigError, match="no run at"):
        find_run(f"{tmp_path}/x", tmp_path)


def test_an_id_that_begins_another_is_itself(tmp_path: Path):
    for name in ("a", "ab"):
        Folder.at(tmp_path).write(f"{name}/events/000000.jsonl", b"")
    assert find_run("a", tmp_path).name == "a"


def test_remove(root: str):
    gone, kept = make(root, "gone"), make(root, "kept")
    assert remove_run(gone, root, force=False) == gone
    assert run_ids(root) == [kept]


def test_a_running_run_is_removed_only_by_force(root: str):
    running = make(root, "x", status="running")
    with pytest.raises(ConfigError, match="is running"):
        remove_run(running, root, force=False)
    remove_run(running, root, force=True)
    assert run_ids(root) == []


def test_prune_keeps_the_newest_and_the_running(root: str):
    running = make(root, "r", status="running")
    old, new = make(root, "old", day=2), make(root, "new", day=3)
    assert prune(root, now=time.time(), keep=1) == [old]
    assert run_ids(root) == [running, new]


def test_prune_by_age(root: str):
    made = make(root, "x")
    now = time.time()
    assert prune(root, now=now, older_than_s=3600) == []
    assert prune(root, now=now + 7200, keep=1, older_than_s=3600) == []
    assert prune(root, now=now + 7200, older_than_s=3600) == [made]


@pytest.mark.parametrize("limits", [{}, {"keep": -1}, {"older_than_s": -1.0}])
def test_prune_needs_a_limit(root: str, limits: dict):
    with pytest.raises(ConfigError, match="prune"):
        prune(root, now=0.0, **limits)


def test_plan(root: str):
    with create(root, "x") as run:
        assert read_plan(run.folder) == {}
        run.write_plan({"workers": 2})
    assert read_plan(run.folder) == {"workers": 2}
