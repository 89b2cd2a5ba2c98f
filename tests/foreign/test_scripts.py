"""Scripts of `shoal launch --write`, as plain `sh` runs them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from shoal.foreign.hosts import this_machine
from shoal.foreign.job import ProcessGroup, Shape
from shoal.foreign.scripts import script_of
from shoal.foreign.variables import variables_of
from tests.support.marked import begun, left

pytestmark = pytest.mark.process
LIMIT_S = 30.0
SERVES = (
    "import os, time\n"
    "print(os.environ['SHOAL_PART'], os.environ['SHOAL_INDEX'], flush=True)\n"
    "if os.environ['SHOAL_PART'] == 'ps': time.sleep(1000)\n"
)


def written(shape: Shape, command: list[str], place: Path) -> Path:
    """A script; what it makes by `mktemp` comes into a folder of its own."""
    job = ProcessGroup.of([this_machine(shape)], shape)
    (place / "tmp").mkdir()
    path = place / "script.sh"
    path.write_text(
        script_of(
            job,
            0,
            command,
            lambda p: variables_of(job, p),
            folder=str(place),
            logs=str(place / "of it"),
            grace_s=0.5,
        )
    )
    return path


@contextmanager
def started(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    told = os.environ | {"TMPDIR": str(path.parent / "tmp")}
    with subprocess.Popen(
        ["sh", str(path)], env=told, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                for each in psutil.Process(process.pid).children(recursive=True):
                    each.kill()
                process.kill()


def test_a_script_runs_the_job_of_the_launcher(tmp_path: Path) -> None:
    path = written(Shape(per_node=2, ps=1), [sys.executable, "-c", SERVES], tmp_path)
    with started(path) as process:
        assert process.wait(LIMIT_S) == 0
    logs = {p.name: p.read_text() for p in (tmp_path / "of it").iterdir()}
    assert {*logs} == {"worker-0.log", "worker-1.log", "ps-0.log"}
    assert logs["worker-0.log"] == "worker 0\n"
    assert logs["worker-1.log"] == "worker 1\n"
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("failing", ["RANK=1", "SHOAL_PART=ps"])
def test_the_first_that_fails_stops_the_others(tmp_path: Path, failing: str) -> None:
    """Also those before it, and what has left for a session of its own."""
    name, value = failing.split("=")
    mark = f"mark{os.urandom(4).hex()}"
    code = (
        "import os, subprocess, sys, time\n"
        f"words = [sys.executable, '-c', 'import time; {mark} = 1; time.sleep(1000)']\n"
        "subprocess.Popen(words, start_new_session=True)\n"
        f"sys.exit(5) if os.environ.get({name!r}) == {value!r} else time.sleep(1000)\n"
    )
    shape = Shape(per_node=2, ps=1)
    path = written(shape, [sys.executable, "-c", code], tmp_path)
    with started(path) as process:
        assert process.wait(LIMIT_S) == 5
    assert left(mark) == []
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_signal_ends_all_that_it_has_started(
    tmp_path: Path, number: int, code: int
) -> None:
    mark = f"mark{os.urandom(4).hex()}"
    ignores = "trap '' TERM; " if number == signal.SIGTERM else ""
    words = shlex.split(f"sh -c {shlex.quote(f'{ignores}: {mark}; sleep 1000; :')}")
    path = written(Shape(per_node=2), words, tmp_path)
    with started(path) as process:
        assert begun(f": {mark}", 2)
        time.sleep(0.2)
        process.send_signal(number)
        assert process.wait(LIMIT_S) == code
    assert left(mark) == []
    assert list((tmp_path / "tmp").iterdir()) == []


ENDINGS = [
    (
        Shape(per_node=2, ps=1, has_chief=True),
        "if os.environ['SHOAL_PART'] != 'chief': time.sleep(1000)\n",
        0,
        "all that decide have ended here; ended with it: worker-0 ps-0\n",
    ),
    (
        Shape(per_node=3),
        "sys.exit(5) if os.environ['RANK'] == '1' else time.sleep(1000)\n",
        5,
        "worker-1 ended with status 5; ended with it: worker-0 worker-2\n",
    ),
    (Shape(per_node=2), "", 0, ""),
]


@pytest.mark.parametrize(("shape", "code", "status", "said"), ENDINGS)
def test_it_names_those_that_it_ends(
    shape: Shape, code: str, status: int, said: str, tmp_path: Path
) -> None:
    """With a chief and servers as by the launcher: its workers never end themselves."""
    words = [sys.executable, "-c", f"import os, sys, time\n{code}"]
    path = written(shape, words, tmp_path)
    done = subprocess.run(
        ["sh", str(path)], capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (status, said)
