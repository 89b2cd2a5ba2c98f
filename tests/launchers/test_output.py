"""Output of a process that no disk has room for."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from shoal.launchers.base import Role
from shoal.launchers.output import Output
from shoal.launchers.process import ProcessLauncher

FULL = Path("/dev/full")
PRINTS = """
import sys
from shoal.launchers.output import keep_what_has_room
keep_what_has_room()
print("a word")
print("another", file=sys.stderr)
sys.stdout.write("no end of a line")
with open("done", "w") as file:
    file.write("all was printed")
"""


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full here")
def test_a_process_prints_on_a_full_disk_and_lives(tmp_path: Path) -> None:
    with FULL.open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", PRINTS], stdout=full, stderr=full, cwd=tmp_path
        )
    assert done.returncode == 0
    assert (tmp_path / "done").read_text() == "all was printed"


def test_output_of_a_process_is_kept_in_order(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        subprocess.run(
            [sys.executable, "-c", PRINTS], stdout=file, stderr=file, cwd=tmp_path
        )
    assert log.read_text() == "a word\nanother\nno end of a line"


def test_a_log_names_lost_bytes_once_the_disk_has_room(tmp_path: Path) -> None:
    """The limit of a file's size is met for real, in a process of its own."""
    script = (
        "import os, resource\n"
        "from shoal.launchers.output import Output\n"
        "hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "file = open('log', 'wb', buffering=0)\n"
        "output = Output(file.fileno())\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4, hard))\n"
        "assert [output.write(b'kept'), output.write(b'lost')] == [4, 4]\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))\n"
        "output.write(b'later')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
    told = "kept\n[4 bytes of output had no room]\nlater"
    assert (tmp_path / "log").read_text() == told


def test_another_error_is_raised(tmp_path: Path) -> None:
    reader = tmp_path / "reader"
    reader.touch()
    with reader.open("rb") as file, pytest.raises(OSError, match="descriptor"):
        Output(file.fileno()).write(b"word")


@pytest.mark.process
def test_a_process_of_a_run_outlives_the_room_for_its_log(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    code = (
        "import os, resource, sys\n"
        "hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))\n"
        "for number in range(9):\n"
        "    print('x' * 60)\n"
        "    print('y' * 60, file=sys.stderr)\n"
        "os._exit(7)\n"
    )
    launcher = ProcessLauncher()
    with closing(launcher):
        role = Role(name="worker-0", target="builtins:exec", log=log)
        token = launcher.start(role)
        launcher.give(token, code, log)
        until, ended = time.monotonic() + 60, launcher.poll()
        while not ended and time.monotonic() < until:
            ended = launcher.poll()
    assert ended[token].reason == "exited with status 7"
    assert log.read_text() == f"{'x' * 60}\n{'y' * 39}"
