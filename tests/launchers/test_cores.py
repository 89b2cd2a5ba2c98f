"""Which cores workers have to themselves."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.launchers.cores import TASKS, bind, shares_of_cores

COUNT = st.integers(1, 6)


@given(COUNT, COUNT)
def test_a_run_that_has_the_machine_shares_it_out(workers: int, threads: int) -> None:
    cores = [3 * n + 1 for n in range(workers * threads)]
    shares = shares_of_cores(workers, threads, cores)
    assert [core for share in shares for core in share] == cores
    assert {len(share) for share in shares} == {threads}


@given(COUNT, COUNT, st.integers(0, 40))
def test_any_other_run_is_left_to_the_scheduler(
    workers: int, threads: int, cores: int
) -> None:
    if workers * threads != cores:
        found = shares_of_cores(workers, threads, list(range(cores)))
        assert found == [()] * workers


BINDS = """
import os, threading
from shoal.launchers.cores import bind
core = max(os.sched_getaffinity(0))
go, found = threading.Event(), []
now = lambda: (os.sched_getaffinity(0), os.sched_getscheduler(0))
look = lambda: (go.wait(), found.append(now()))
before = threading.Thread(target=look); before.start()
bind([core])
after = threading.Thread(target=look); after.start()
go.set(); before.join(); after.join(); look()
print(found == [({core}, os.SCHED_BATCH)] * 3)
"""


@pytest.mark.skipif(not TASKS.is_dir(), reason="only Linux binds threads")
def test_all_threads_of_a_process_keep_to_its_cores() -> None:
    command = [sys.executable, "-c", BINDS]
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    assert out.stdout == "True\n"


def test_a_process_without_cores_of_its_own_runs_anywhere() -> None:
    bind(())
    bind([10_000])  # gone: nobody is stopped by it
