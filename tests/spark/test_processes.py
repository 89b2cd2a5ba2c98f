"""Which processes count as those that train."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, Any

import psutil
import pytest

from tests.spark.processes import DAEMON, training_processes

STARTS = """
import subprocess, sys
# It says itself that it runs: before, it may have no command line yet.
code = "import os; print(os.getpid(), flush=True); input()"
child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
input()
"""


@pytest.fixture
def child() -> Iterator[psutil.Process]:
    """A child of a process whose command line is that of Spark's daemon."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTS, DAEMON],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as task:  # fmt: skip
        out: IO[bytes] | Any = task.stdout
        yield psutil.Process(int(out.readline()))
        task.kill()


def test_a_child_of_a_task_counts_until_it_is_ending(
    child: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert training_processes(os.getpid()) == [child]
    # The kernel takes its command line before it makes it a zombie.
    usual = psutil.Process.cmdline
    monkeypatch.setattr(
        psutil.Process, "cmdline", lambda one: [] if one == child else usual(one)
    )
    assert training_processes(os.getpid()) == []
