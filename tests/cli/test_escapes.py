"""What storage, workers and hosts say reaches no terminal as a command to it."""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import Result

from shoal.cli import launch
from shoal.cli.following import print_logs
from shoal.cli.relaying import run_and_relay
from shoal.cli.steps import Steps
from shoal.cli.tables import show_records
from shoal.clusters.cluster_state import ClusterState, ClusterStore, NodeState
from shoal.clusters.providers import read_cluster_file
from shoal.errors import ConfigError, ShoalWarning
from shoal.runs.store import StoredRun, create
from shoal.training.progress import Display, warn_aside

HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x1b[1;1H\x1b]52;c;ZWNobw==\x07\x1b[8mhidden\x1b[0m"
    "\x9b2J\x9d0;t\x9c\u202eabc\u2066\x08\x7f\x1bc[red]x[/red][link=http://x]y[/link]"
)
Shoal = Callable[..., Result]


def odd_in(text: str, *, kept: str = "\n\t") -> set[str]:
    """Characters that a terminal obeys, by Unicode's tables; colours are none."""
    bare = re.sub("\x1b\\[(0|1|3[0-7]|4[0-7]|9[0-7])?m", "", text)
    return {
        letter
        for letter in bare
        if letter not in kept
        and (
            unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")
            or letter in "\u202e\u2066"
        )
    }


@pytest.fixture
def hostile(tmp_path: Path) -> StoredRun:
    """A run in which every word is hostile, in a folder of a hostile name."""
    name = "2026\x1b[2J\u202e\x9b2J\nx[red]r"
    with create(tmp_path / "shoal-runs", HOSTILE) as run:
        run.event("run_started", strategy=HOSTILE, workers=2, rows=1, epochs=1)
        run.event("worker_started", rank=0, pid=1, node=HOSTILE)
        run.event("worker_lost", rank=1, reason=HOSTILE)
        run.event("warning", text=f"{HOSTILE}\nsecond line")
        run.event("node_used", node=HOSTILE, percent=1.0, name=HOSTILE,
                  gpus=[{"number": HOSTILE, "name": HOSTILE}])  # fmt: skip
        run.event("epoch_ended", epoch=0, metrics={HOSTILE: HOSTILE, "loss": 0.5})
        log = run.log_path(0)
        assert log is not None
        log.write_bytes(HOSTILE.encode() + b"\x9b2J\rover\r\n\xff\n")
        run.finish("failed", {"reason": HOSTILE})
    (tmp_path / "shoal-runs" / run.id).rename(tmp_path / "shoal-runs" / name)
    return run


COMMANDS = [
    ["runs"], ["runs", "--json"], ["runs", "show", "2026"],
    ["runs", "show", "2026", "--json"], ["runs", "status", "2026"],
    ["runs", "status", "2026", "--json"], ["runs", "logs", "2026"],
    ["runs", "logs", "2026", "-f"], ["runs", "logs", "2026", "--rank", "0"],
    ["runs", "logs", "2026", "--rank", "7"], ["runs", "show", HOSTILE],
    ["runs", "show", f"/tmp/{HOSTILE}"], ["runs", "rm", "2026"],
    ["runs", "prune", "--keep", "0"], ["tensorboard", HOSTILE],
    ["jobs", "--cluster", HOSTILE], ["launch", "--hosts", HOSTILE, "--", "date"],
    ["compare", HOSTILE], ["cluster", "status", HOSTILE],
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=range(len(COMMANDS)))
def test_commands_escape_what_they_show(
    words: list[str], shoal: Shoal, hostile: StoredRun
):
    done = shoal(*words)
    assert odd_in(done.stdout) == odd_in(done.stderr) == set()
    assert "\x1b" not in done.output
    assert "not expected" not in done.output
    assert "owned" in done.output or "2026" in done.output or "removed" in done.output


def test_markup_of_names_is_no_markup(capsys: pytest.CaptureFixture[str]):
    show_records([{HOSTILE: HOSTILE, "b": "[red]x[/red]"}])
    out = capsys.readouterr().out
    assert odd_in(out) == set()
    assert "[red]x[/red]" in out
    assert "[link=http://x]y[/link]" in out
    assert len(out.splitlines()) == 2


@contextmanager
def a_terminal() -> Iterator[Callable[[], str]]:
    """Standard output and error are one; gives what it has been sent so far."""
    ours, theirs = os.openpty()
    stream = os.fdopen(theirs, "w", encoding="utf-8", newline="")

    def sent() -> str:
        stream.write("\x04END")
        stream.flush()
        found = b""
        while not found.endswith(b"\x04END"):
            found += os.read(ours, 65536)
        return found.removesuffix(b"\x04END").decode()

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TERM", "xterm")
            patch.delenv("NO_COLOR", raising=False)
            patch.setattr("sys.stdout", stream)
            patch.setattr("sys.stderr", stream)
            yield sent
    finally:
        stream.close()
        os.close(ours)


def test_a_terminal_is_sent_colours_of_processes_only(
    tmp_path: Path,
):
    with create(tmp_path, "x") as run:
        log = run.log_path(0)
        assert log is not None
        log.write_text(f"\x1b[31mred\x1b[0m {HOSTILE}\n")
    with a_terminal() as sent:
        print_logs(run.folder, None)
        text = sent()
    assert odd_in(text, kept="\n\t\r") == set()
    assert "\x1b[31mred\x1b[0m " in text


def lines_of_progress() -> None:
    display = Display(is_live=True)
    display.show([(1, HOSTILE), (2, "a\nb")])
    display.clear()
    display.say(HOSTILE)
    display.say_output(f"\x1b[31mred\x1b[0m {HOSTILE}", f"[{HOSTILE}] ")


def test_lines_of_progress(capsys: pytest.CaptureFixture[str]):
    lines_of_progress()
    piped = capsys.readouterr().out
    with a_terminal() as sent:
        lines_of_progress()
        text = sent().replace("\r\x1b[K", "")  # of our own: empties the line
    assert odd_in(text, kept="\n\t\r") == odd_in(piped) == set()
    assert "\x1b[31mred" in text
    assert "\x1b" not in piped


def test_steps_of_hosts():
    with a_terminal() as sent:
        with Steps() as steps:
            steps.tell(HOSTILE, f"[red]installs[/red] {HOSTILE}")
            steps.tell(HOSTILE, f"failed: {HOSTILE}")
        text = sent()
    for odd in ("\x1b]0;owned", "\x1b]52", "\x9b", "\x1b[8m", "\u202e", "\x1bc"):
        assert odd not in text


def test_steps_of_hosts_in_a_pipe(capsys: pytest.CaptureFixture[str]):
    Steps().tell(HOSTILE, HOSTILE)
    assert odd_in(capsys.readouterr().err) == set()


def test_lines_of_a_launched_program(capsys: pytest.CaptureFixture[str]):
    launch._echo()(HOSTILE, HOSTILE)
    out = capsys.readouterr().out
    assert odd_in(out) == set()
    assert "owned" in out


def test_output_of_a_program_on_a_host(capsys: pytest.CaptureFixture[str]):
    code = (
        "import sys; text = sys.argv[1].encode()\n"
        "for file in (sys.stdout.buffer, sys.stderr.buffer):\n"
        "    file.write(text + b'\\xff\\nhalf'); file.flush()\n"
        "sys.exit(7)"
    )
    assert run_and_relay([sys.executable, "-c", code, HOSTILE]) == 7
    found = capsys.readouterr()
    assert odd_in(found.out) == odd_in(found.err) == set()
    assert found.out == found.err
    assert found.out.endswith("half\n")


SSH = """sh -c 'shift; exec sh -c "$*"' ssh"""
"""Reaches this machine, whatever host it is told."""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster of one host, which is this machine with a home of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHOAL_CLUSTERS", str(tmp_path / "clusters"))
    (tmp_path / "clusters").mkdir()
    listed = tmp_path / "lab.json"
    listed.write_text(json.dumps({"name": "lab", "hosts": ["node-a"], "ssh": SSH}))
    hosts = read_cluster_file(listed).spec
    state = ClusterState.new("hosts", hosts, "jax")
    head = NodeState(number=0, address="node-a", python=sys.executable)
    store = ClusterStore(str(tmp_path / "clusters"))
    store.write(state.model_copy(update={"nodes": (head,), "hosts": hosts, "port": 1}))
    folder = tmp_path / ".shoal" / "jobs" / "2026-11-21-shoal-fit-a3f"
    folder.mkdir(parents=True)
    record = {"script": HOSTILE, "arguments": [HOSTILE], "began": 1.7e9, "pids": {}}
    (folder / "job.json").write_text(json.dumps(record))
    (folder / "status").write_text(HOSTILE)
    (folder / "log").write_bytes(HOSTILE.encode() + b"\n")
    return folder


@pytest.mark.process
@pytest.mark.parametrize(
    "words",
    [[], ["logs", "2026"], ["logs", "2026", "-f"], ["logs", "x"], ["stop", "2026"]],
    ids=str,
)
def test_jobs_of_a_host(words: list[str], shoal: Shoal, lab: Path):
    done = shoal("jobs", "--cluster", "lab", *words)
    assert odd_in(done.output) == set(), done.output
    assert "not expected" not in done.output
    if words != ["logs", "x"]:
        assert "owned" in done.output


@pytest.mark.process
def test_a_log_of_a_job_with_a_long_line(shoal: Shoal, lab: Path):
    (lab / "log").write_bytes(b"x" * (1 << 20) + b"\nlast\n")
    assert shoal("jobs", "--cluster", "lab", "logs", "2026").stdout == (
        "x" * (1 << 20) + "\nlast\n"
    )


def test_warnings_and_errors_of_python(capsys: pytest.CaptureFixture[str]):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.warns(ShoalWarning) as caught:
            warn_aside(HOSTILE)
    assert odd_in(str(caught[0].message)) == set()
    assert odd_in(str(ConfigError(HOSTILE))) == set()


def test_a_damaged_cluster_does_not_hide_others(
    shoal: Shoal, lab: Path, tmp_path: Path
):
    (tmp_path / "clusters" / "broken.json").write_text(HOSTILE)
    done = shoal("cluster", "list")
    assert done.exit_code == 0
    assert "lab" in done.stdout
    assert "broken: the state of the cluster broken cannot be read" in done.stderr
    assert odd_in(done.output) == set()
    [one] = json.loads(shoal("cluster", "list", "--json").stdout)
    assert one["name"] == "lab"
