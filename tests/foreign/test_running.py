"""Real processes of a job: what they write, how they fail, and that none is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import ClusterError, WorkerFailed
from shoal.foreign import running
from shoal.foreign.checks import check, duplicates
from shoal.foreign.hosts import HERE, free_ports, parse_nodes, this_machine
from shoal.foreign.job import Node, ProcessGroup, Shape
from shoal.foreign.running import Runner, RunSettings
from shoal.foreign.variables import variables_of
from shoal.foreign.words import guarded
from tests.support.marked import begun, left, living

pytestmark = pytest.mark.process

# A host that is this machine: what it is given runs as by OpenSSH, in a shell.
SSH = ("sh", "-c", 'shift; exec sh -c "$*"', "ssh")


def job(shape: Shape, node: Node | None = None) -> ProcessGroup:
    return ProcessGroup.of([node or this_machine(shape)], shape)


class Lines:
    """What processes wrote, by their names."""

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}

    def __call__(self, name: str, line: str) -> None:
        self.found.setdefault(name, []).append(line)


def run(of: ProcessGroup, code: str, place: Path, **given: object) -> Lines:
    lines = Lines()
    settings = RunSettings(folder=str(place), logs=place / "logs", **given)  # type: ignore[arg-type]
    command = [sys.executable, "-u", "-c", code]
    Runner(of, command, lambda p: variables_of(of, p), settings, lines).run()
    return lines


@pytest.mark.parametrize("is_here", [True, False])
def test_each_process_has_its_role_and_a_log(tmp_path: Path, is_here: bool) -> None:
    shape = Shape(per_node=2, has_chief=True, has_evaluator=True)
    here = this_machine(shape)
    node = here if is_here else Node(name="me", address="127.0.0.1", ports=here.ports)
    code = "import os; print(os.environ['SHOAL_PART'], os.getcwd())"
    lines = run(job(shape, node), code, tmp_path, ssh=SSH).found
    assert lines == {
        "chief": [f"chief {tmp_path}"],
        "worker-0": [f"worker {tmp_path}"],
        "evaluator": [f"evaluator {tmp_path}"],
    }
    assert (tmp_path / "logs/worker-0.log").read_text() == f"worker {tmp_path}\n"


def test_the_first_that_fails_stops_the_rest(tmp_path: Path) -> None:
    mark = f"mark{os.urandom(4).hex()}"
    code = (
        f"'{mark}'\n"
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    print('no such file', flush=True)\n"
        "    sys.exit(3)\n"
        "time.sleep(1000)\n"
    )
    with pytest.raises(WorkerFailed, match="worker-1 on localhost ended with status 3"):
        run(job(Shape(per_node=3)), code, tmp_path)
    assert left(mark) == []


def test_servers_are_ended_with_all_that_they_started(tmp_path: Path) -> None:
    mark = f"mark{os.urandom(4).hex()}"
    code = (
        f"'{mark}'\n"
        "import os, subprocess, sys, time\n"
        "if os.environ['SHOAL_PART'] == 'ps':\n"
        f"    code = 'import time; {mark} = 1; time.sleep(1000)'\n"
        "    subprocess.Popen([sys.executable, '-c', code])\n"
        "    time.sleep(1000)\n"
    )
    run(job(Shape(per_node=1, ps=1)), code, tmp_path)
    assert left(mark) == []


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    mark = f"mark{os.urandom(4).hex()}"
    code = (
        f"'{mark}'\n"
        "import os, signal, time\n"
        "if os.environ['SHOAL_PART'] == 'ps':\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    time.sleep(1000)\n"
        "time.sleep(1)\n"
    )
    run(job(Shape(per_node=1, ps=1)), code, tmp_path, grace_s=0.5)
    assert left(mark) == []


ESCAPED = (
    "import os, signal, subprocess, sys, time\n"
    "def escape(mark, *codes):\n"
    "    for code in codes:\n"
    "        words = [sys.executable, '-c', f'import signal, time; {mark} = 1; '"
    " + code + 'time.sleep(1000)']\n"
    "        subprocess.Popen(words, start_new_session=True)\n"
    "IGNORES = 'signal.signal(signal.SIGTERM, signal.SIG_IGN); '\n"
)
"""Starts processes that leave the group, and hold the pipe of who started them."""


@pytest.mark.parametrize("is_here", [True, False])
def test_a_process_in_its_own_session_is_ended_too(
    tmp_path: Path, is_here: bool
) -> None:
    """No child is left, neither of the failed process nor of stopped ones."""
    mark = f"mark{os.urandom(4).hex()}"
    code = (
        f"{ESCAPED}"
        f"escape({mark!r}, '', IGNORES)\n"
        "time.sleep(2)\n"
        "if os.environ['RANK'] == '1': sys.exit(3)\n"
        "time.sleep(1000)\n"
    )
    shape = Shape(per_node=3)
    here = this_machine(shape)
    node = here if is_here else Node(name="me", address="127.0.0.1", ports=here.ports)
    began = time.monotonic()
    with pytest.raises(WorkerFailed, match=r"worker-1 on .* ended with status 3"):
        run(job(shape, node), code, tmp_path, ssh=SSH, grace_s=0.5)
    assert left(mark) == []
    assert time.monotonic() - began < 12


def test_a_process_left_behind_does_not_keep_the_job_open(tmp_path: Path) -> None:
    mark = f"mark{os.urandom(4).hex()}"
    run(job(Shape()), f"{ESCAPED}escape({mark!r}, '')", tmp_path)
    assert left(mark) == []


def test_a_process_of_another_program_is_not_ended(tmp_path: Path) -> None:
    """Even one that was started where the guard was."""
    other = subprocess.Popen(["sleep", "1000"])
    try:
        run(job(Shape()), f"{ESCAPED}escape('mine', '')", tmp_path, grace_s=0.2)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_all_readers_share_one_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without the mark is not found, and keeps the pipe open."""
    monkeypatch.setattr("shoal.foreign.running.LATE_S", 1.0)
    mark = f"mark{os.urandom(4).hex()}"
    code = (
        "import os, subprocess, sys, time\n"
        "if os.environ['RANK'] == '0': time.sleep(1), sys.exit(3)\n"
        f"words = [sys.executable, '-c', 'import time; {mark} = 1; time.sleep(60)']\n"
        "subprocess.Popen(words, start_new_session=True, env={})\n"
        "time.sleep(1000)\n"
    )
    began = time.monotonic()
    try:
        with pytest.raises(WorkerFailed, match="worker-0"):
            run(job(Shape(per_node=7)), code, tmp_path)
        assert time.monotonic() - began < 6
    finally:
        for each in living(mark):
            each.kill()


def test_a_launcher_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    """Its end of the guards' input is closed by the system."""
    mark = f"mark{os.urandom(4).hex()}"
    words = guarded(
        [sys.executable, "-c", f"import time; {mark!r}; time.sleep(1000)"],
        {}, str(tmp_path), 0.5,
    )  # fmt: skip
    launcher = subprocess.Popen(
        [
            sys.executable, "-c",
            "import subprocess, sys, time\n"
            "subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE,"
            " start_new_session=True)\n"
            "print('started', flush=True)\n"
            "time.sleep(1000)\n",
            *words,
        ],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert launcher.stdout is not None
    launcher.stdout.readline()
    assert begun(mark, 3)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    launcher.stdout.close()
    assert left(mark) == []


def test_a_guard_without_input_ends_its_process(tmp_path: Path) -> None:
    """As on a host whose cable is cut: nothing closes its input."""
    mark = f"mark{os.urandom(4).hex()}"
    code = f"import time; {mark} = 1; time.sleep(1000)"
    words = guarded([sys.executable, "-c", code], {}, str(tmp_path), 0.5, quiet_s=1)
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, start_new_session=True
    ) as guard:
        assert guard.wait(60) != 0
    assert left(mark) == []


def test_error_of_an_unreachable_host_names_a_command(tmp_path: Path) -> None:
    shape = Shape()
    node = Node(name="far", address="10.0.0.9")
    ssh = ("sh", "-c", "echo no route to host; exit 255")
    with pytest.raises(ClusterError, match=r"far: the host could not be reached"):
        run(job(shape, node), "", tmp_path, ssh=ssh)
    assert check(job(shape, node), ("sh", "-c", "echo no route >&2; exit 255")) == [
        "the host far cannot be reached: no route"
    ]


def test_faults_are_found_beforehand(tmp_path: Path) -> None:
    del tmp_path
    shape = Shape(per_node=1)
    free = free_ports(12)
    found = job(shape, Node(name=HERE.name, address=HERE.address, ports=free))
    assert check(found) == []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = Node(name=HERE.name, address=HERE.address, ports=[*free[:3], port])
        assert check(job(shape, node)) == [f"port {port} of localhost is taken"]
        far = Node(name="me", address="127.0.0.1", ports=[*free[:3], port])
        assert check(job(shape, far), SSH) == [f"port {port} of me is taken"]
    twice = parse_nodes(["a", "a"])
    lines = duplicates(ProcessGroup.of(twice, Shape()))
    assert "the host a is listed twice" in lines


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("exit 134", "ended with status 134, as a shell says of signal 6;"),
        ("exit 3", "ended with status 3;"),
        ("kill -9 $PPID", "was killed by signal 9;"),
    ],
)
def test_how_a_process_ended(tmp_path: Path, command: str, said: str) -> None:
    """A status above 128 need not be a signal's."""
    found = job(Shape())
    settings = RunSettings(folder=str(tmp_path), logs=tmp_path / "logs", grace_s=0.5)
    words = ["sh", "-c", command]
    with pytest.raises(WorkerFailed, match=said):
        Runner(found, words, lambda _: {}, settings, Lines()).run()


def test_files_of_hosts_are_on_the_node_as_long_as_it_runs(tmp_path: Path) -> None:
    """A node need not see any folder of the launching machine."""
    code = (
        "import os\n"
        "for name in ('SHOAL_HOSTFILE', 'DEEPLEARNING_WORKERS_PATH'):\n"
        "    print(os.environ[name], open(os.environ[name]).read().strip())\n"
    )
    files = "10.0.0.1 slots=2\n", "10.0.0.1\n"
    words = guarded([sys.executable, "-c", code], {}, str(tmp_path), 0.5, files=files)
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as guard:  # fmt: skip
        assert guard.stdout is not None
        lines = [line.split(maxsplit=1) for line in guard.stdout]
        assert guard.wait(60) == 0
    assert [said for _, said in lines] == list(files)
    for path, _ in lines:
        assert not Path(path).parent.exists()


@pytest.mark.parametrize("is_here", [True, False])
def test_a_chief_that_ends_at_once_ends_the_others_and_names_them(
    tmp_path: Path, is_here: bool
) -> None:
    """Also workers that have not begun: they hear nothing, and say nothing."""
    node = None if is_here else Node(name="b", address="127.0.0.1", slots=2)
    shape = Shape(per_node=3, ps=1, has_chief=True)
    code = (
        "import os, time\n"
        "part = os.environ['SHOAL_PART'] + os.environ['SHOAL_INDEX']\n"
        "log = 'logs/worker-1.log'\n"
        "if part == 'worker1': print('here', flush=True)\n"
        "if part == 'chief0':\n"
        "    while not (os.path.exists(log) and os.path.getsize(log)):\n"
        "        time.sleep(0.01)\n"
        "else: time.sleep(1000)\n"
    )
    notes: list[str] = []
    of = job(shape, node)
    settings = RunSettings(
        folder=str(tmp_path), logs=tmp_path / "logs", grace_s=5.0,
        ssh=() if is_here else SSH,
    )  # fmt: skip
    words = [sys.executable, "-u", "-c", code]
    told = Lines()
    Runner(of, words, lambda p: variables_of(of, p), settings, told, notes.append).run()
    assert notes == [
        "the chief has ended, and with it the job; worker-0, worker-1, ps-0 were ended."
        " worker-0 had written nothing: perhaps the chief does not wait for it"
    ]


def test_an_error_names_those_that_were_ended(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(1000)\n"
    )
    with pytest.raises(WorkerFailed, match="the others were ended: worker-0, worker-2"):
        run(job(Shape(per_node=3)), code, tmp_path)


def test_a_line_without_end_is_passed_on_in_pieces(tmp_path: Path) -> None:
    code = "import sys; sys.stdout.write('x' * (8 << 20))"
    sizes: list[int] = []
    of = job(Shape(per_node=1))
    settings = RunSettings(folder=str(tmp_path), logs=tmp_path / "logs")
    words = [sys.executable, "-c", code]
    runner = Runner(
        of, words, lambda p: variables_of(of, p), settings,
        lambda _, line: sizes.append(len(line)),
    )  # fmt: skip
    tracemalloc.start()
    try:
        runner.run()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(sizes) == 8 << 20
    assert (tmp_path / "logs" / "worker-0.log").stat().st_size == 8 << 20
    assert most < 4 << 20


def test_no_moment_of_ending_leaves_a_process(tmp_path: Path) -> None:
    """A press while a job ends is heard when all of it has ended."""
    mark = f"mark{os.urandom(4).hex()}"
    code = f"'{mark}'; import time; time.sleep(600)"
    ending = Runner._end_all
    wanted, counted = [0], 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal counted
        if frame.f_code.co_filename not in (running.__file__, subprocess.__file__):
            return None
        if event == "line":
            counted += 1
            if counted == wanted[0]:
                signal.raise_signal(signal.SIGINT)
        return trace

    def traced(self: Runner) -> None:
        sys.settrace(trace)
        try:
            ending(self)
        finally:
            sys.settrace(None)

    class Press:
        """The first press comes with the first line."""

        def __call__(self, _name: str, _line: str) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    loud = code.replace("; import", "; print('up', flush=True); import")
    settings = RunSettings(folder=str(tmp_path), logs=tmp_path / "logs", grace_s=5.0)
    of = job(Shape(per_node=1))
    command = [sys.executable, "-u", "-c", loud]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "_end_all", traced)
        for line in (1, 4, 9, 16, 25, 36):
            wanted[0], counted = line, 0
            with pytest.raises(KeyboardInterrupt):
                Runner(of, command, lambda p: {}, settings, Press()).run()
            assert left(mark) == []
