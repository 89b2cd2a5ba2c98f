from __future__ import annotations

import io
import json
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from shoal.cli import following
from shoal.cli.following import follow_logs, print_logs
from shoal.runs.logs import tail
from shoal.runs.store import StoredRun, create
from shoal.runs.worker_status import worker_statuses

Shoal = Callable[..., Result]
MakeRun = Callable[..., StoredRun]


def test_no_runs(shoal: Shoal):
    assert shoal("runs").stdout == "No runs in ./shoal-runs.\n"
    assert json.loads(shoal("runs", "--json").stdout) == []


def test_list(shoal: Shoal, make_run: MakeRun):
    old, new = make_run(day=20), make_run(day=21)
    done = shoal("runs")
    assert done.exit_code == 0
    header, first, second = done.stdout.splitlines()
    assert header.split() == ["id", "status", "strategy", "workers", "started", "took"]
    assert first.split()[:4] == [new.id, "finished", "aeasgd", "2"]
    assert second.startswith(old.id)


def test_list_as_json(shoal: Shoal, make_run: MakeRun):
    run = make_run()
    (found,) = json.loads(shoal("runs", "--json").stdout)
    assert set(found) == {
        "id", "name", "status", "strategy", "setting", "workers", "started",
        "seconds", "url",
    }  # fmt: skip
    assert (found["id"], found["name"], found["workers"]) == (run.id, "higgs", 2)


def test_show(shoal: Shoal, make_run: MakeRun):
    run = make_run()
    text = shoal("runs", "show", run.id[:12]).stdout
    assert run.id in text
    assert "96 of 96 committed" in text
    assert "2, 1 lost during the run" in text
    assert "accuracy" in text
    assert "warning: small data" in text


def test_status_of_each_worker(shoal: Shoal, make_run: MakeRun):
    run = make_run(ended=False)
    text = shoal("runs", "status", run.id[:12], "-n", "1").stdout
    assert "worker 0  working, epoch 1, 0 steps, 48 samples" in text
    assert "    null" in text
    assert "    zero" not in text
    assert "worker 1  left: killed by SIGKILL, epoch 1" in text
    found = json.loads(shoal("runs", "status", run.id[:12], "--json").stdout)
    assert [w["lines"] for w in found["workers"]] == [["zero", "null"], ["one"]]
    assert [w["samples"] for w in found["workers"]] == [48, 48]


def test_status_shows_the_use_of_machines(shoal: Shoal, tmp_path: Path):
    gpu = {"number": 1, "name": "NVIDIA H100", "percent": 97.0, "celsius": 61.0,
           "memory_mib": 41984.0, "total_mib": 81920.0, "watts": 402.5}  # fmt: skip
    with create(tmp_path / "shoal-runs", "busy") as run:
        for node in ("localhost", "10.0.0.7"):
            run.event(
                "node_used", node=node, percent=93.5, memory_mib=1024.0,
                total_mib=2048.0, gpus=[gpu],
            )  # fmt: skip
    for verb in ("status", "show"):
        text = shoal("runs", verb, run.id).stdout
        lines = [" ".join(line.split()) for line in text.splitlines()[-4:]]
        assert lines[0] == "10.0.0.7 GPU 1 NVIDIA H100 97 97 41 41 80 61 402.5"
        assert lines[1] == "10.0.0.7 cores 93.5 93.5 1 1 2 - -"
        assert lines[2].startswith("localhost")
    found = json.loads(shoal("runs", "status", run.id, "--json").stdout)["use"]
    assert {row["what"] for row in found} == {"cores", "GPU 1"}


def test_workers_of_a_run_that_is_lost():
    events = [
        {"kind": "worker_started", "rank": 0},
        {"kind": "worker_started", "rank": 1},
        {"kind": "worker_left", "rank": 1, "reason": "killed by SIGKILL"},
    ]
    assert [w.state for w in worker_statuses(events)] == ["working", "left"]
    assert [w.state for w in worker_statuses(events, is_lost=True)] == ["lost", "left"]


def test_status_of_a_run_on_some_storage(shoal: Shoal, tmp_path: Path):
    root = f"memory://{tmp_path.name}"
    with create(root, "far") as run:
        run.event("worker_started", rank=0, pid=7, node="10.0.0.7")
        log = run.log_path(0)
        assert log is not None
        log.write_text("one\ntwo\n")
    text = shoal("runs", "status", run.id, "--root", root, "-n", "1").stdout
    assert "worker 0  working, epoch 0" in text
    assert text.endswith("process 7 on 10.0.0.7\n    two\n")


def test_status_of_a_run_that_is_over(shoal: Shoal, make_run: MakeRun):
    text = shoal("runs", "status", make_run().id[:12]).stdout
    assert "finished" in text
    assert "worker 0  done" in text
    assert "worker 1  left: killed by SIGKILL" in text


def test_runs_are_compared(shoal: Shoal, tmp_path: Path):
    root, picture = tmp_path / "runs", tmp_path / "both.png"
    ids: list[str] = []
    for strategy, metrics in (("single", {"loss": 2.0}), ("adag", {"mae": 1.0})):
        run = create(str(root), strategy)
        run.event("run_started", strategy=strategy, setting=strategy, workers=1)
        run.event("epoch_ended", epoch=0, metrics=metrics)
        run.finish("finished")
        ids.append(run.id)
    rows = json.loads(shoal("runs", "compare", *ids, "--json", "--root", root).stdout)
    assert [(row["run"], row["strategy"], row["seed"]) for row in rows] == [
        (ids[0], "single", None), (ids[1], "adag", None),
    ]  # fmt: skip
    assert (rows[0]["loss"], rows[1]["mae"]) == (2.0, 1.0)
    words = ["runs", "compare", *ids, "--root", root, "--plot", picture]
    text = shoal(*words).stdout
    for word in ("single", "adag", "loss", "mae", "samples_per_s"):
        assert word in text
    assert picture.stat().st_size > 1000


def test_text_in_brackets_is_shown_as_it_is(shoal: Shoal, tmp_path: Path):
    """Rich would take them for markup."""
    with create(tmp_path / "shoal-runs", "x") as run:
        run.event("run_started", strategy="[red]mine[/red]", workers=1, rows=1)
        metrics = {"[bold]f1[/bold]": 0.5}
        run.event("epoch_ended", epoch=0, metrics=metrics, samples=1)
        run.finish("finished")
    assert "[red]mine[/red]" in shoal("runs").stdout
    shown = shoal("runs", "show", run.id).stdout
    assert "[red]mine[/red]" in shown
    assert "[bold]f1[/bold]" in shown


def test_show_counts_samples_beyond_the_end_apart(shoal: Shoal, tmp_path: Path):
    with create(tmp_path / "shoal-runs", "x") as run:
        run.event("run_started", strategy="adag", epochs=9, epoch_rows=[96])
        run.event("epoch_ended", epoch=0, metrics={}, samples=96)
        run.exchanges([{"rank": 0, "epoch": 1, "samples": 32}])
        run.finish("finished")
    shown = shoal("runs", "show", run.id).stdout
    assert "96 of 96 committed, 32 beyond the end" in shown


def test_show_says_why_a_run_failed(shoal: Shoal, tmp_path: Path):
    with create(tmp_path / "shoal-runs", "x") as run:
        run.event("run_started", strategy="adag")
        run.finish("failed", {"reason": "WorkerFailed: worker 1 raised\nat length"})
    shown = shoal("runs", "show", run.id).stdout
    assert "WorkerFailed: worker 1 raised" in shown
    assert "at length" not in shown


def test_show_as_json(shoal: Shoal, make_run: MakeRun):
    found = json.loads(shoal("runs", "show", make_run().id, "--json").stdout)
    wanted = {
        "epochs": 1, "rows": 96, "samples_expected": 96, "samples_committed": 96,
        "exchanges": 2, "workers_lost": 1, "status": "finished",
        "metrics": [{"loss": 0.5, "accuracy": 0.75}],
    }  # fmt: skip
    assert {key: found[key] for key in wanted} == wanted
    assert found["report"]["best"]["metric"] == "loss"


def test_show_a_run_that_wrote_nothing_yet(shoal: Shoal, tmp_path: Path):
    run = create(tmp_path / "shoal-runs", "new")
    assert shoal("runs", "show", run.id).exit_code == 0


def test_unknown_id(shoal: Shoal, make_run: MakeRun):
    run = make_run()
    done = shoal("runs", "show", "2026-11-21-hig-0000")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert f"The nearest: {run.id}" in done.stderr
    assert "Traceback" not in done.stderr


def test_root_before_or_behind_the_command(
    shoal: Shoal, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    run = make_run()
    root = tmp_path / "elsewhere"
    (tmp_path / "shoal-runs").rename(root)
    assert shoal("runs", "--root", root, "show", run.id).exit_code == 0
    assert shoal("runs", "show", run.id, "--root", root).exit_code == 0
    assert shoal("runs", "show", run.id).exit_code == 2
    monkeypatch.setenv("SHOAL_RUNS", str(root))
    assert shoal("runs", "show", run.id).exit_code == 0


@pytest.mark.parametrize("command", ["runs", "ui"])
@pytest.mark.parametrize(
    ("name", "reason"), [("nowhere", "nothing is there"), ("file", "it is a file")]
)
def test_a_root_that_is_no_folder(
    command: str, name: str, reason: str, shoal: Shoal, tmp_path: Path
):
    (tmp_path / "file").touch()
    done = shoal(command, "--root", tmp_path / name)
    assert done.exit_code == 2
    assert f"--root '{tmp_path / name}': {reason}. Expected a folder" in done.stderr


def test_logs(shoal: Shoal, make_run: MakeRun):
    run = make_run()
    assert shoal("runs", "logs", run.id).stdout == "[0] zero\n[0] null\n[1] one\n"
    assert shoal("runs", "logs", run.id, "--rank", 1).stdout == "one\n"
    assert shoal("runs", "logs", run.id).stderr == ""
    assert shoal("runs", "logs", run.id, "-f").stdout == "[0] zero\n[0] null\n[1] one\n"


@pytest.mark.parametrize("follow", [(), ("--follow",)])
def test_logs_of_workers_that_wrote_nothing(
    follow: tuple[str, ...], shoal: Shoal, tmp_path: Path
):
    with create(tmp_path / "shoal-runs", "quiet") as run:
        run.event("run_started", strategy="aeasgd", workers=1, rows=1, epochs=1)
        log = run.log_path(0)
        assert log is not None
        log.write_text("")
        run.finish("finished")
    done = shoal("runs", "logs", run.id, *follow)
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"No worker of run {run.id!r} has written anything.\n"
    done = shoal("runs", "logs", run.id, "--rank", 0, *follow)
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"Worker 0 of run {run.id!r} has written nothing.\n"


def test_logs_of_an_unknown_rank(shoal: Shoal, make_run: MakeRun):
    done = shoal("runs", "logs", make_run().id, "--rank", 7)
    assert done.exit_code == 2
    assert "one of: 0, 1" in done.stderr


def test_logs_are_followed_until_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = create(tmp_path, "x")
    log = run.log_path(0)
    assert log is not None
    printed: list[str] = []
    first_seen = threading.Event()

    def say_output(text: str, *, before: str, end: str) -> None:
        printed.append(f"{before}{text}{end}")
        first_seen.set()

    monkeypatch.setattr(following, "say_output", say_output)
    log.write_bytes(b"first\nhalf")
    follower = threading.Thread(
        target=follow_logs, args=(run.folder, None), kwargs={"poll_s": 0.001}
    )
    follower.start()
    assert first_seen.wait(30)
    assert printed == ["[0] first\n"]
    with log.open("ab") as file:
        file.write(b" done\nthird")
    run.finish("finished")
    run.close()
    follower.join()
    assert printed == ["[0] first\n", "[0] half done\n", "[0] third\n"]


def test_control_c_ends_following_quietly(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
):
    def interrupt(*arguments, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(following, "read_outline", interrupt)
    follow_logs(make_run().folder, None)


def test_remove(shoal: Shoal, make_run: MakeRun):
    first, second = make_run(), make_run()
    done = shoal("runs", "rm", first.id, second.id)
    assert done.stdout == f"removed {first.id}\nremoved {second.id}\n"
    assert json.loads(shoal("runs", "--json").stdout) == []


def test_a_running_run_stays(shoal: Shoal, make_run: MakeRun):
    run = make_run(ended=False)
    assert shoal("runs", "rm", run.id).exit_code == 2
    assert shoal("runs", "rm", run.id, "--force").exit_code == 0


def test_prune(shoal: Shoal, make_run: MakeRun):
    old, new = make_run(day=20), make_run(day=21)
    assert shoal("runs", "prune").exit_code == 2
    assert shoal("runs", "prune", "--older-than", "soon").exit_code == 2
    assert shoal("runs", "prune", "--older-than", "1d").stdout == "0 runs removed.\n"
    assert f"removed {old.id}" in shoal("runs", "prune", "--keep", 1).stdout
    (left,) = json.loads(shoal("runs", "--json").stdout)
    assert left["id"] == new.id


class Counted(io.StringIO):
    """Keeps the ends of the output, and counts its bytes."""

    encoding = "utf-8"

    def __init__(self) -> None:
        super().__init__()
        self.count, self.first, self.last = 0, "", ""

    def write(self, text: str) -> int:
        self.count += len(text)
        self.first = (self.first + text)[:20] if len(self.first) < 20 else self.first
        self.last = (self.last + text)[-20:]
        return len(text)


LONG = 64 << 20


@pytest.fixture
def long_line(make_run: MakeRun) -> StoredRun:
    """A run whose first worker wrote one line of 64 MiB, and a short one."""
    run = make_run()
    log = run.log_path(0)
    assert log is not None
    with log.open("wb") as file:
        for _ in range(LONG >> 20):
            file.write(b"x" * (1 << 20))
        file.write(b"\nlast\n")
    return run


@pytest.mark.parametrize("rank", [None, 0])
@pytest.mark.parametrize("show", [print_logs, follow_logs])
def test_a_line_of_any_length_is_printed_in_pieces(
    show: Callable[..., None], rank: int | None, long_line: StoredRun,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    out = Counted()
    monkeypatch.setattr("sys.stdout", out)
    tracemalloc.start()
    try:
        show(long_line.folder, rank)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 << 20
    if rank == 0:
        assert out.count == LONG + len("\nlast\n")
        assert out.last.endswith("xx\nlast\n")
    else:
        assert out.count == LONG + len("[0] \n[0] last\n[1] one\n")
        assert (out.first[:6], out.last) == ("[0] xx", "xx\n[0] last\n[1] one\n"[-20:])


def test_status_reads_only_the_end_of_a_long_line(long_line: StoredRun):
    tracemalloc.start()
    try:
        one = tail(long_line.folder, 0, 1)
        two = tail(long_line.folder, 0, 2)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert one == ["last"]
    assert two[1] == "last"
    assert set(two[0]) == {"x"}
    assert 1000 < len(two[0]) <= 1 << 17
    assert most < 8 << 20


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("width", [0, 1, 80, 65_535, 65_536, 65_537])
def test_last_lines_are_those_of_the_whole_text(
    width: int, end: str, make_run: MakeRun
):
    """Lines are shorter than the block that is read at once."""
    run = make_run()
    log = run.log_path(0)
    assert log is not None
    lines = [f"{n} " + "x" * (width % 60_000) for n in range(9)]
    lines += [f"{n}" for n in range(20)]
    log.write_text("\n".join(lines) + end)
    for count in (0, 1, 2, 20, 21, 29, 99):
        assert tail(run.folder, 0, count) == lines[-count:][: count or 0]


def test_lines_of_two_workers_are_not_mixed(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
):
    """A line that is too long to be held is begun, and another worker writes."""
    run = make_run()
    for rank in (0, 1):
        log = run.log_path(rank)
        assert log is not None
        log.write_bytes(b"%d" % rank * 200_000)
    logs = following._Printer(run.folder, None)
    logs.show(is_last=False)
    logs.show(is_last=True)
    for line in capsys.readouterr().out.splitlines():
        assert len(set(line[4:])) == 1
        assert line.startswith(f"[{line[4]}] ")
