"""Run folders that were damaged, or filled by somebody else: none hides the others."""

from __future__ import annotations

import json
import os
import re
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from shoal.backends import BACKENDS
from shoal.cli.app import app
from shoal.errors import DataError, ShoalError
from shoal.runs.catalogue import find_run, list_runs, prune, read_summary, remove_run
from shoal.runs.event_fields import check
from shoal.runs.events import pack_exchanges, read_events
from shoal.runs.folder import Folder
from shoal.runs.store import create, open_run
from shoal.runs.worker_status import process_statuses, worker_statuses

SEGMENT = "events/000000.jsonl"
KINDS: dict[str, dict[str, Any]] = {
    "run_created": {"id": "x", "name": "x", "host": "h", "pid": 1, "time": 1.7e9},
    "run_started": {
        "strategy": "adag", "workers": 2, "rows": 9, "epochs": 3, "initial_epoch": 0,
        "epoch_rows": [9], "samples_expected": 27, "monitor": "loss", "plan": {},
        "is_higher_better": False, "host": "h", "pid": 1, "time": 1.7e9, "t": 0.1,
    },
    "run_resumed": {"workers": 2, "epoch": 1, "host": "h", "pid": 1},
    "run_finished": {
        "status": "finished",
        "report": {"best": {"metric": "loss", "value": 1.0, "epoch": 0}, "reason": "r",
                   "samples_expected": 1, "samples_committed": 1, "exchanges": 1,
                   "compute_share": 0.5, "total_s": 1.0},
    },
    "segment": {"number": 0, "host": "h", "pid": 1, "time": 1.7e9},
    "epoch_ended": {"epoch": 0, "metrics": {"loss": 0.5}, "samples": 9, "members": [1]},
    "epoch_scored": {"epoch": 0, "metrics": {"val_loss": 0.5}},
    "exchanges": pack_exchanges([{"rank": 0, "epoch": 0, "samples": 9, "loss": 0.5}]),
    "leases": {"epochs": [
        {"epoch": 0, "rows": 9, "committed": [0, 3], "leased": {"0": [3, 6]}}]},
    "rollback": {"committed": {"0": 3}},
    "worker_started": {"rank": 0, "pid": 1, "node": "n", "t": 0.5},
    "worker_left": {"rank": 0, "reason": "r"},
    "worker_lost": {"rank": 0, "reason": "r"},
    "warning": {"text": "t"},
    "interrupted": {"samples": 3},
    "node_used": {
        "node": "n", "percent": 1.0, "memory_mib": 1.0, "total_mib": 2.0, "name": "n",
        "gpus": [{"number": 0, "name": "g", "percent": 1.0, "celsius": 2.0,
                  "memory_mib": 1.0, "total_mib": 2.0, "watts": 3.0}],
    },
    "process_started": {"name": "server", "pid": 7, "host": "h"},
    "process_ended": {"name": "server", "pid": 7},
    "add": {}, "x_": {"pid": 3},
}  # fmt: skip
ODD = [
    None, True, -1, 0, 2**31, 2**63, 10**400, 1e300, -1e300, float("nan"), 0.5,
    float("inf"), "", "zero", "\x1b[2J", "\udc80", [], [1], {}, {"a": 1}, [[[]]],
]  # fmt: skip
JSON = st.recursive(
    st.one_of(
        st.sampled_from(ODD), st.integers(), st.floats(), st.text(max_size=5)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=4), inner, max_size=3),
    ),
    max_leaves=6,
)  # fmt: skip


def paths_of(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every field of an event, and of what is in it."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield (*place, key)
        yield from paths_of(inner, (*place, key))


def spoiled(event: dict[str, Any], place: tuple[Any, ...], value: Any) -> bytes:
    """An event as a line, with one field replaced."""
    copy = json.loads(json.dumps(event))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return json.dumps(copy).encode() + b"\n"


PLACES = [
    (kind, place)
    for kind, fields in KINDS.items()
    for place in [*paths_of(fields), ("t",), ("time",), ("kind",), ("v",), ("extra",)]
]


def a_run(root: str, *lines: bytes) -> Folder:
    """A run that has a whole beginning, and then these lines."""
    folder = Folder.at(f"{root}/damaged")
    good = ("run_created", "run_started", "worker_started", "epoch_ended")
    events = [{"v": 1, "kind": kind, "t": 1, **KINDS[kind]} for kind in good]
    begin = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    folder.write(SEGMENT, begin + b"".join(lines))
    return folder


def shoal(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def check_all(root: str) -> list[Result]:
    """Calls all readers of a run, with an intact run beside it."""
    listed = shoal("runs", "--root", root)
    assert listed.exit_code == 0, listed.output
    assert "good" in listed.stdout
    assert "damaged" in listed.stdout
    done = [listed]
    for words in (
        ("runs", "--root", root, "--json"), ("runs", "show", "damaged"),
        ("runs", "show", "damaged", "--json"), ("runs", "status", "damaged"),
        ("runs", "status", "damaged", "--json"), ("runs", "logs", "damaged"),
    ):  # fmt: skip
        result = shoal(*words, *(() if "--root" in words else ("--root", root)))
        assert "not expected" not in result.output, result.output
        assert result.exit_code in (0, 2), result.output
        done.append(result)
    return done


@pytest.fixture
def root(tmp_path: Path) -> str:
    with create(tmp_path, "good") as run:
        run.event("run_started", strategy="adag", workers=1, rows=1, epochs=1)
        run.finish("finished")
    return str(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_events_as_they_are_written_are_read(kind: str, root: str):
    event = {"v": 1, "kind": kind, "t": 1, **KINDS[kind]}
    line = json.dumps(event).encode() + b"\n"
    folder = a_run(root, line)
    last = list(read_events(folder))[-1]
    assert last == event or kind in ("rollback", "leases")  # numbers as keys
    assert all(result.exit_code == 0 for result in check_all(root))


@settings(
    max_examples=400,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(st.sampled_from(PLACES), JSON)
@example(("run_finished", ("report", "best")), 3)
@example(("epoch_ended", ("metrics", "loss")), {"\ud800": "\udfff"})
@example(("node_used", ("gpus", 0, "name")), "\ud800")
@example(("run_started", ("plan",)), {"strategy": {"\ud800": 1}})
@example(("exchanges", ("rows", 0, 0)), "\ud800")
@example(("exchanges", ("columns", 0)), "\ud800")
@example(("exchanges", ("rows", 0)), [0, 1])
@example(("exchanges", ("rows",)), [[0], [1, "x"]])
@example(("run_created", ("name",)), "\udc80 and a whole one: \U0001f41f")
def test_any_value_in_any_field_is_read_or_reported(
    where: tuple[str, tuple[Any, ...]], value: Any
):
    """Pure: no field of an event raises anything but what `check` says."""
    kind, place = where
    root = f"memory://damage-{uuid.uuid4().hex}"
    folder = a_run(root, spoiled({"kind": kind, **KINDS[kind]}, place, value))
    try:
        summary = read_summary(folder)
        worker_statuses(read_events(folder))
        process_statuses(read_events(folder))
        summary.model_dump_json()
    except ShoalError:
        pass
    finally:
        folder.remove()


@settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(st.sampled_from(PLACES), JSON)
def test_commands_show_any_value_that_is_read(
    root: str, where: tuple[str, tuple[Any, ...]], value: Any
):
    kind, place = where
    a_run(root, spoiled({"kind": kind, **KINDS[kind]}, place, value))
    check_all(root)


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_odd_values_in_every_field(kind: str, value: Any):
    for place in paths_of(KINDS[kind]):
        root = f"memory://damage-{uuid.uuid4().hex}"
        folder = a_run(root, spoiled({"kind": kind, **KINDS[kind]}, place, value))
        try:
            read_summary(folder)
            worker_statuses(read_events(folder))
        except ShoalError:
            pass
        finally:
            folder.remove()


def test_a_run_with_a_wrong_field_is_listed_with_its_error(root: str):
    line = json.dumps({"kind": "run_started", "workers": []}).encode() + b"\n"
    folder = a_run(root, line)
    listed = shoal("runs", "--root", root)
    [row] = [text for text in listed.stdout.splitlines() if "damaged" in text]
    assert row.split()[:2] == ["damaged", "damaged"]
    assert "events/000000.jsonl, line 5: 'workers' of 'run_started'" in listed.stderr
    found = json.loads(shoal("runs", "--root", root, "--json").stdout)
    assert [run["status"] for run in found] == ["finished", "damaged"]
    assert "line 5" in found[1]["damage"]
    for verb in ("show", "status", "rm", "resume"):
        done = shoal("runs", verb, "damaged", "--root", root)
        assert done.exit_code == 2
        assert done.stderr.startswith("DataError: the run 'damaged' is damaged: ")
        assert "Expected" in done.stderr
        assert "--force" in done.stderr
    assert shoal("runs", "logs", "damaged", "--root", root).exit_code == 0
    with pytest.raises(DataError, match="is damaged"):
        open_run("damaged", root)
    assert prune(root, now=1e11, keep=0)  # the good one
    assert folder.exists(SEGMENT)
    assert remove_run("damaged", root, force=True) == "damaged"
    assert not Path(folder.path).exists()


def deep(kind: str, depth: int) -> bytes:
    return b'{"kind":"%b","a":%b1%b}\n' % (kind.encode(), b"[" * depth, b"]" * depth)


LINES = {
    "deep": b"[" * 200_000 + b"\n" + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"\n",
    "rather deep": deep("run_finished", 900),
    "less deep": deep("warning", 40),
    "broken UTF-8": b'{"kind":"warning","text":"\xff\xfe\x80"}\n',
    "cut": b'{"kind":"warn',
    "digits": b'{"kind":"warning","t":1' + b"0" * 5000 + b"}\n",
    "large exponent": b'{"kind":"warning","t":1e999}\n',
    "no object": b"[1]\n7\nnull\n\"kind\"\n",
    "zeros": b"\0" * 4096 + b"\n",
    "twice": b'{"kind":"run_started","kind":[]}\n',
    "NaN": b'{"kind":"epoch_ended","metrics":{"loss":NaN},"t":-Infinity}\n',
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_lines_that_are_no_events(name: str, root: str):
    a_run(root, LINES[name])
    check_all(root)


def test_a_run_of_which_nothing_can_be_read(root: str):
    Folder.at(f"{root}/damaged").write(SEGMENT, b"\xff\n{")
    assert "no event that can be read" in check_all(root)[0].stderr


FILES = ("events", SEGMENT, "plan.json", "experiments/worker-0.log", "experiments")


@pytest.mark.parametrize("kind", ["folder", "link to nothing", "loop", "pipe", "file"])
@pytest.mark.parametrize("name", FILES)
def test_a_folder_or_pipe_in_place_of_a_file(name: str, kind: str, root: str):
    folder = a_run(root)
    folder.write("experiments/worker-0.log", b"hello\n")
    folder.write("plan.json", b"{}")
    path = Path(folder.where(name))
    if path.is_dir():
        Folder.at(path).remove()
    else:
        path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)  # nobody writes into it
    elif kind == "file":
        path.write_bytes(b"\0\xff\n")
    else:
        path.symlink_to("nowhere" if kind == "link to nothing" else path.name)
    check_all(root)


@pytest.mark.parametrize("kind", ["folder", "link to nothing", "loop", "pipe", "file"])
def test_something_else_where_the_lock_of_the_writer_should_be(kind: str, root: str):
    with create(root, "x") as run:
        run.event("run_started", strategy="adag", workers=1, rows=1, epochs=1)
    damaged = Path(root) / "damaged"
    Path(run.url).rename(damaged)
    lock = damaged / "writer.lock"
    lock.unlink(missing_ok=True)
    if kind == "folder":
        lock.mkdir()
    elif kind == "pipe":
        os.mkfifo(lock)  # nobody writes into it
    elif kind == "file":
        lock.write_bytes(b"\0\xff\n")
    else:
        lock.symlink_to("nowhere" if kind == "link to nothing" else lock.name)
    # Of another machine by its boot: the lock is asked.
    segment = damaged / SEGMENT
    segment.write_text(
        re.sub(r'"(boot|namespace)":"[^"]*"', r'"\1":"x"', segment.read_text())
    )
    check_all(root)


def test_a_link_to_nothing_is_a_row(root: str):
    (Path(root) / "damaged").symlink_to("nowhere")
    assert "is damaged" in check_all(root)[0].stderr
    assert remove_run("damaged", root, force=True) == "damaged"
    assert not (Path(root) / "damaged").is_symlink()


def test_of_a_link_only_the_link_is_removed(root: str):
    [run] = list_runs(root)
    (Path(root) / "link").symlink_to(run.id)
    assert remove_run("link", root, force=False) == "link"
    assert [one.id for one in list_runs(root)] == [run.id]


def test_other_names_of_segments_are_no_segments(root: str):
    folder = a_run(root)
    for name in ("\u00b2", "\u0663", "-1", "1", "x", "9" * 99):
        folder.write(f"events/{name}.jsonl", b'{"kind":[]}\n')
        folder.write(f"experiments/worker-{name}.log", b"hello\n")
    assert all(result.exit_code == 0 for result in check_all(root))


@pytest.mark.parametrize("name", ["", "events"])
def test_a_run_that_others_closed(name: str):
    """Root may read all, so another user does where root runs the tests."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder)
        root.chmod(0o755)
        run = create(root, "closed")
        run.close()
        closed = root / run.id / name
        closed.chmod(0o000)
        is_root = os.geteuid() == 0
        try:
            if is_root:
                os.seteuid(65534)
            [found] = list_runs(root)
        finally:
            if is_root:
                os.seteuid(0)
            closed.chmod(0o755)
    assert (found.id, found.status) == (run.id, "damaged")
    assert "cannot be read" in found.damage or "no event" in found.damage


PLANS = [b"{", b"[]", b"7", b"\xff", b"[" * 200_000, b'{"backend":[]}', b"\0"]


@pytest.mark.parametrize("content", PLANS, ids=range(len(PLANS)))
def test_a_damaged_plan_is_an_error_of_resume(content: bytes, root: str):
    a_run(root).write("plan.json", content)
    done = shoal("runs", "resume", "damaged", "--root", root)
    assert done.exit_code == 2
    assert "is damaged: plan.json" in done.stderr


@settings(
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(JSON | st.fixed_dictionaries({"backend": JSON}))
@example({"backend": 0})
@example({"backend": None})
@example({"backend": "\x1b[2J"})
@example({"backend": "jax "})
@example({"backend": {"jax": 1}})
@example({"backend": "\ud800"})
def test_any_plan_is_read_or_an_error_of_resume(root: str, plan: Any):
    """`resume` takes only the name of the backend from a plan."""
    a_run(root).write("plan.json", json.dumps(plan).encode())
    done = shoal("runs", "resume", "damaged", "--root", root)
    assert "not expected" not in done.output
    assert done.exit_code == 2
    if isinstance(plan, dict) and plan.get("backend", "") in ("", *BACKENDS):
        assert "run .damaged. is running" in done.stderr.replace("'", ".")
    elif isinstance(plan, dict) and isinstance(plan["backend"], str):
        assert "no backend is called" in done.stderr
        assert "\x1b" not in done.stderr
    else:
        assert "is damaged: plan.json" in done.stderr


def test_a_plan_that_names_a_module_as_its_backend(root: str):
    a_run(root).write("plan.json", b'{"backend": "os"}')
    done = shoal("runs", "resume", "damaged", "--root", root)
    assert done.exit_code == 2
    assert "no backend is called 'os'" in done.stderr


def test_a_folder_of_another_program_is_not_removed(tmp_path: Path):
    """It has a folder called events, and no event."""
    for name in ("app1", "app2"):
        (tmp_path / name / "events").mkdir(parents=True)
        (tmp_path / name / "thesis.txt").write_text("important")
    assert prune(tmp_path, now=1e11, keep=0) == []
    with pytest.raises(DataError, match="no event"):
        remove_run("app1", tmp_path, force=False)
    assert (tmp_path / "app1" / "thesis.txt").exists()
    assert find_run("app1", tmp_path).name == "app1"


def test_check_names_the_field():
    with pytest.raises(ValueError, match="column 'samples' of 'exchanges' has a str"):
        check({"kind": "exchanges", "columns": ["samples"], "rows": [["many"]]})
    with pytest.raises(ValueError, match="nested more than"):
        check(json.loads(deep("warning", 40)))
    assert check({"kind": "exchanges", "columns": ["norm"], "rows": [[1e20]]})
