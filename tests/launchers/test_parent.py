"""Processes whose driver is gone, and forks of a driver that hold what was its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal.host import scratch
from shoal.host.scratch import Scratch
from shoal.interruption import undisturbed
from shoal.launchers import process
from shoal.launchers.base import Role
from shoal.launchers.process import ProcessLauncher
from shoal.launchers.shared import SharedBlob

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

DRIVER = """
import multiprocessing, os, signal, sys, threading
from shoal.launchers.base import Role
from shoal.launchers.process import ProcessLauncher
from shoal.host.scratch import Scratch

def start():
    global launcher, own
    launcher, own = ProcessLauncher(), Scratch()
    tokens = [launcher.start(Role(target="time:sleep", name=f"worker-{n}"))
              for n in range(2)]
    for token in tokens:
        launcher.give(token, 600)
    print(*[launcher.pid(token) for token in tokens], flush=True)

def in_a_thread():
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()

def rest():
    os.write(told, b".")
    signal.pause()

def with_os():
    child = os.fork()
    if not child:
        rest()
    return os.read(heard, 1) and child

def with_multiprocessing():
    child = multiprocessing.get_context("fork").Process(target=rest)
    child.start()
    return os.read(heard, 1) and child.pid

heard, told = os.pipe()
"""

ROLE = Role(target="time:sleep", name="worker-0")


@contextmanager
def driver(*steps: str) -> Iterator[tuple[subprocess.Popen[str], list[int], int]]:
    """A driver, its processes, and a fork of it."""
    text = DRIVER + "\n".join(steps) + "\nprint(fork, flush=True)\nsignal.pause()\n"
    command = [sys.executable, "-c", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        pids = [int(word) for word in program.stdout.readline().split()]
        fork = int(program.stdout.readline())
        try:
            yield program, pids, fork
        finally:
            for pid in (*pids, fork, program.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            program.wait()
            scratch.sweep()  # as the next process does


@pytest.mark.parametrize("start", ["start()", "in_a_thread()"])
@pytest.mark.parametrize("fork", ["with_os()", "with_multiprocessing()"])
def test_processes_end_with_their_driver_though_a_fork_of_it_lives(
    start: str, fork: str
) -> None:
    with driver(start, f"fork = {fork}") as (program, pids, child):
        living = [psutil.Process(pid) for pid in pids]
        program.kill()
        program.wait()
        _, alive = psutil.wait_procs(living, timeout=60)
        assert not alive
        assert psutil.pid_exists(child)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can end a stopped one")
def test_a_process_that_is_stopped_ends_as_well() -> None:
    with driver("start()", "fork = with_os()") as (program, pids, _):
        living = [psutil.Process(pid) for pid in pids]
        for one in living:  # it has asked for that before it does anything else
            while b"worker" not in Path(f"/proc/{one.pid}/cmdline").read_bytes():
                threading.Event().wait(0.01)
            one.suspend()
        program.kill()
        program.wait()
        _, alive = psutil.wait_procs(living, timeout=60)
        assert not alive


def test_a_thread_that_ends_takes_no_process_with_it() -> None:
    """A death signal of Linux is tied to the thread that started a process."""
    launcher = ProcessLauncher()
    tokens: list[str] = []
    thread = threading.Thread(target=lambda: tokens.append(launcher.start(ROLE)))
    thread.start()
    thread.join()
    [token] = tokens
    try:
        launcher.give(token, 0)  # it does that, and then waits for more
        launcher.give(token, 600)
        launcher.rename(token, "worker-1")
        assert psutil.Process(launcher.pid(token)).is_running()
        assert not launcher.poll()
    finally:
        launcher.close()


def test_a_fork_holds_no_lock_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with driver("start()", "fork = with_os()") as (program, _, child):
        assert not scratch.sweep()  # its owner lives
        program.kill()
        program.wait()
        assert psutil.pid_exists(child)
        assert len(scratch.sweep()) == 1


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # of JAX
def test_a_fork_ends_and_removes_nothing() -> None:
    launcher, own, blob = ProcessLauncher(), Scratch(), SharedBlob()
    try:
        token = launcher.start(ROLE)
        launcher.give(token, 600)
        child = os.fork()
        if not child:
            with suppress(BaseException):
                launcher.close()
                own.close()
                blob.close()
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert own.path.is_dir()
        assert not launcher.poll()
        assert psutil.Process(launcher.pid(token)).status() != psutil.STATUS_ZOMBIE
    finally:
        launcher.close()
        own.close()
        blob.close()


TRACED = {process.__file__, subprocess.__file__}


def _close(launcher: ProcessLauncher, wanted: int) -> int:
    """Closes a launcher, with a press before one of its lines; returns how many."""
    counted = [0]

    def trace(frame: Any, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line":
            counted[0] += 1
            if counted[0] == wanted:
                signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        launcher.close()
    finally:
        sys.settrace(None)
    return counted[0]


def test_no_moment_of_closing_leaves_a_process_or_a_lock() -> None:
    """Once a press within `Popen.poll` kept its lock for ever: nothing could wait."""
    wanted = count = 1
    while count >= wanted:  # how many lines it takes depends on the process as well
        launcher = ProcessLauncher()
        one = psutil.Process(launcher.pid(launcher.start(ROLE)))
        is_raised = True
        try:
            with undisturbed():
                count = _close(launcher, wanted)
            is_raised = False
        except KeyboardInterrupt:
            pass
        assert is_raised == (count >= wanted)
        assert not one.is_running()
        wanted += 1
    assert wanted > 20
