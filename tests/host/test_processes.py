"""Records of processes: one that lives is never called dead, whatever clocks say."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.host import processes
from shoal.host.locks import HeldLock, is_held
from shoal.host.processes import Process, judge, may_live

OTHER = """
import json, sys
from pathlib import Path
from shoal.host.locks import HeldLock
from shoal.host.processes import Process
lock = HeldLock.take(Path(sys.argv[1]))
print(json.dumps(Process.here(lock=lock.mark).fields), flush=True)
sys.stdin.read()
"""
INSIDE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@contextmanager
def other(lock: Path, *inside: str) -> Iterator[tuple[subprocess.Popen[str], Process]]:
    """Another process that holds a lock, and its record."""
    words = [*inside, sys.executable, "-c", OTHER, str(lock)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            found = Process.read(json.loads(process.stdout.readline()))
            assert found is not None
            yield process, found
        finally:
            process.kill()


def can(*words: str) -> bool:
    return not subprocess.run([*words, "true"], capture_output=True).returncode


def test_this_process_lives_and_a_record_is_read_as_it_was_written() -> None:
    here = Process.here(lock="1:2")
    assert may_live(here)
    assert Process.read(json.loads(json.dumps(here.fields))) == here
    assert here.start
    assert here.start == Process.here().start


@pytest.mark.parametrize("stopped_by", [signal.SIGKILL, signal.SIGSTOP])
def test_another_process(tmp_path: Path, stopped_by: signal.Signals) -> None:
    with other(tmp_path / "lock") as (process, found):
        assert may_live(found)
        assert may_live(dataclasses.replace(found, host="renamed-since"))
        process.send_signal(stopped_by)
        if stopped_by == signal.SIGSTOP:
            assert may_live(found)
            return
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not may_live(found)  # a zombie
        process.wait()
        assert not may_live(found)


def test_a_number_that_was_given_again_is_another_process() -> None:
    here = Process.here()
    assert not may_live(dataclasses.replace(here, start="1"))
    assert may_live(dataclasses.replace(here, start=processes.UNKNOWN))


def test_an_older_record_is_judged_by_the_clock() -> None:
    host, pid = socket.gethostname(), os.getpid()
    assert may_live(Process(host=host, pid=pid, seen_time=time.time()))
    assert not may_live(Process(host=host, pid=pid, seen_time=1.0))
    assert may_live(Process(host="another-host", pid=1))
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert not may_live(Process(host=host, pid=child.pid, seen_time=time.time()))


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"host": "a"},
        {"host": 1, "pid": 2},
        {"host": "a", "pid": "2"},
        {"host": "a", "pid": -1},
        {"host": "a", "pid": None},
    ],
)
def test_a_record_that_names_no_process(record: dict[str, object]) -> None:
    assert Process.read(record) is None


def test_fields_of_other_types_count_as_missing() -> None:
    record = {"host": "a", "pid": 2, "start": 7, "boot": [], "time": "now"}
    assert Process.read(record) == Process(host="a", pid=2)


@pytest.mark.skipif(not can(*INSIDE), reason="needs a process namespace of its own")
def test_a_process_of_another_namespace_is_seen_by_its_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with other(lock, *INSIDE) as (process, found):
        assert found.namespace != Process.here().namespace
        assert may_live(found, lock)
        assert may_live(found)  # nobody can tell
        process.kill()
        process.wait()
        deadline = time.monotonic() + 60
        while is_held(lock):  # --kill-child takes a moment
            assert time.monotonic() < deadline
        assert not may_live(found, lock)
        assert may_live(dataclasses.replace(found, lock="1:1"), lock)  # not its lock
        assert may_live(found, tmp_path / "none")


@pytest.mark.skipif(not can(*INSIDE), reason="needs a process namespace of its own")
def test_from_inside_a_namespace_numbers_outside_say_nothing(tmp_path: Path) -> None:
    """This process' number is nobody's there; one of theirs may be here."""
    lock = HeldLock.take(tmp_path / "lock")
    assert lock is not None
    record = json.dumps(Process.here(lock=lock.mark).fields)
    ask = (
        "import json, sys; from pathlib import Path; "
        "from shoal.host.processes import Process, may_live; "
        "print(may_live(Process.read(json.loads(sys.argv[1])), Path(sys.argv[2])))"
    )
    words = [*INSIDE, sys.executable, "-c", ask, record, str(lock.path)]

    def asked() -> str:
        return subprocess.run(words, capture_output=True, text=True).stdout.strip()

    assert asked() == "True"
    lock.close()
    assert asked() == "False"


@pytest.mark.skipif(
    not can("unshare", "--pid", "--fork"), reason="needs a process namespace of its own"
)
def test_a_proc_of_another_namespace_is_not_believed(tmp_path: Path) -> None:
    """Without a /proc of its own, numbers there are those of the namespace outside."""
    ask = (
        "import os; from shoal.host.processes import Process, may_live; "
        "here = Process.here(); print(may_live(here), here.pid)"
    )
    words = ["unshare", "--pid", "--fork", sys.executable, "-c", ask]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert found.split() == ["True", "1"]


@dataclasses.dataclass(frozen=True)
class World:
    """Machines with the same name or not, restarted or not, with containers."""

    hosts: tuple[str, ...]
    machines: tuple[str, ...]
    boots: tuple[int, ...]

    def process(self, at: int, boot: int, space: int, pid: int, start: int) -> Process:
        return Process(
            host=self.hosts[at], machine=self.machines[at], boot=f"{at}-{boot}",
            namespace=f"ns{space}", pid=pid, start=str(start), lock="1:1",
        )  # fmt: skip


small = st.integers(0, 1)


@given(
    hosts=st.tuples(st.sampled_from("ab"), st.sampled_from("ab")),
    has_ids=st.tuples(st.booleans(), st.booleans()),
    boots=st.tuples(small, small),
    of=st.tuples(small, small, small, small, small),
    seen_from=st.tuples(small, small),
    runs=st.booleans(),
    has_lock=st.booleans(),
)
def test_a_live_process_is_never_called_dead(
    hosts: tuple[str, str],
    has_ids: tuple[bool, bool],
    boots: tuple[int, int],
    of: tuple[int, int, int, int, int],
    seen_from: tuple[int, int],
    runs: bool,
    has_lock: bool,
) -> None:
    ids = tuple(f"m{n}" if has else "" for n, has in enumerate(has_ids))
    world = World(hosts=hosts, machines=ids, boots=boots)
    at, boot, space, pid, start = of
    boot = min(boot, boots[at])
    process = world.process(at, boot, space, pid, start)
    lives = runs and boot == boots[at]  # a restart ends all
    place, there = seen_from
    here = world.process(place, boots[place], there, 0, 0)

    def by_number(_: Process) -> bool:
        assert process.boot == here.boot  # else a number says nothing
        assert process.namespace == here.namespace
        return lives

    def holds() -> bool | None:
        return lives if has_lock and place == at else None

    found = judge(
        process, here, runs=by_number, holds=holds, by_clock=lambda _: not lives
    )
    assert found or not lives
    is_seen = place == at and boot == boots[place] and (space == there or has_lock)
    if is_seen:
        assert found == lives


def test_no_clock_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour fast when it is written, an hour slow when it is read."""
    for shift in (-3600.0, 0.0, 3600.0):
        real = time.time()
        monkeypatch.setattr(time, "time", lambda at=real + shift: at)
        assert may_live(Process.here())


def test_a_boot_is_another_machine_unless_its_id_is_known() -> None:
    here = dataclasses.replace(Process.here(), machine="m", boot="now")
    gone = dataclasses.replace(here, boot="before")

    def found(process: Process, holds: bool | None = None) -> bool:
        refuse = lambda _: pytest.fail("not by its number")  # noqa: E731
        return judge(process, here, runs=refuse, holds=lambda: holds, by_clock=refuse)

    assert not found(gone)
    assert found(gone, holds=True)
    assert found(dataclasses.replace(gone, machine="other"))
    assert found(dataclasses.replace(gone, machine=""))
    assert found(dataclasses.replace(gone, host="other"))
