"""`shoal launch` itself: what it shows is what it runs, and what it refuses."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.errors import PlanError
from shoal.foreign.checks import ports_of
from shoal.foreign.hosts import HERE, parse_nodes
from shoal.foreign.job import ProcessGroup, Shape
from shoal.foreign.ports import FIRST_PORTS, candidates, placed, taken_here

pytestmark = pytest.mark.process


def launch(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shoal", "launch", *words],
        cwd=place, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_print_shows_the_job_that_runs(tmp_path: Path) -> None:
    """The same ports at every call, here and on hosts."""
    shown = json.loads(launch(tmp_path, "--print", "--json", "--", "env").stdout)
    (process,) = shown
    done = launch(tmp_path, "--logs", "logs", "--", "env")
    told = (line.removeprefix("[worker-0] ") for line in done.stdout.splitlines())
    got = dict(line.split("=", 1) for line in told if "=" in line)
    assert {**got, **process["variables"]} == got
    assert {*process["files"]} <= {*got}
    assert process["files"]["SHOAL_HOSTFILE"] == "127.0.0.1 slots=1\n"
    of_hosts = ("--hosts", "a,b", "--print", "--", "env")
    assert launch(tmp_path, *of_hosts).stdout == launch(tmp_path, *of_hosts).stdout


def test_print_shows_processes_variables_and_host_file(tmp_path: Path) -> None:
    options = ("--hosts", "a,10.0.0.2", "--port", "20000", "--print")
    lines = launch(tmp_path, *options, "--", "env").stdout.splitlines()
    assert lines[1].split() == ["worker-0", "a", "20003", "-"]
    assert lines[-7].startswith("SHOAL_HOSTFILE, ")
    assert lines[-6:-4] == ["  a slots=1", "  10.0.0.2 slots=1"]
    assert lines[-2:] == ["  a", "  10.0.0.2"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--json"], "--json is given without --print"),
        (["--json", "--write", "scripts"], "--json is given without --print"),
        (["--print", "--write", "scripts"], "--print and --write are given together"),
        (["--check", "--print"], "--print and --check are given together"),
    ],
)
def test_options_without_meaning_are_refused(
    tmp_path: Path, options: list[str], said: str
) -> None:
    done = launch(tmp_path, *options, "--", "touch", "ran")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_logs_of_scripts_are_in_the_given_folder(tmp_path: Path) -> None:
    done = launch(tmp_path, "--write", "scripts", "--", "sh", "-c", "echo $SHOAL_LOGS")
    assert done.returncode == 0, done.stderr
    subprocess.run(["sh", "scripts/0-localhost.sh"], cwd=tmp_path, check=True)
    logs = tmp_path / "scripts" / "logs"
    assert (logs / "worker-0.log").read_text() == f"{logs}\n"


def first_of(job: ProcessGroup) -> int:
    return job.meeting_port


def test_a_port_that_is_taken_here_is_left_out() -> None:
    shape = Shape(per_node=3)
    with placed([HERE], shape) as job:
        first = first_of(job)
    with socket.create_server(("127.0.0.1", ports_of(job, 0)[2])) as taken:
        with placed([HERE], shape) as other:
            assert first_of(other) != first
            assert taken_here(other) == []
        port = taken.getsockname()[1]
        with (
            pytest.raises(PlanError, match=rf"ports \[{port}\] of this machine are"),
            placed([HERE], shape, port - 1),
        ):
            pass
    with placed([HERE], shape) as again:
        assert first_of(again) == first


def test_two_jobs_of_this_machine_never_share_a_port() -> None:
    """Not before their programs listen, either; also where both run on hosts."""
    for nodes in ([HERE], parse_nodes(["a", "b"])):
        with placed(nodes, Shape()) as one, placed(nodes, Shape()) as other:
            assert not {*ports_of(one, 0)} & {*ports_of(other, 0)}


def test_an_error_if_no_port_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.foreign.ports.FIRST_PORTS", FIRST_PORTS[:1])
    with (
        placed([HERE], Shape()),
        pytest.raises(PlanError, match="no range of ports for this job is free"),
        placed([HERE], Shape()),
    ):
        pass


def test_other_jobs_begin_with_other_ports() -> None:
    """All places are tried, and shapes and hosts are spread over them."""
    shapes = [Shape(per_node=count) for count in range(1, 41)]
    firsts = [candidates([HERE], shape)[0] for shape in shapes]
    assert len({*firsts}) > 20
    assert sorted(candidates(parse_nodes(["a"]), Shape())) == list(FIRST_PORTS)
