"""Fixtures of all tests: nothing may leak out of a test; real data on request."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np
import psutil
import pytest
from hypothesis import settings

import shoal
from shoal.engine.transport import shared_memory
from tests.datasets import Digits, Table, read_higgs, read_mnist
from tests.support import run_report

# How long an example takes depends on what else the machine does.
settings.register_profile("shoal", deadline=None)
settings.load_profile("shoal")

GRACE_S = 30.0
"""How long a thread, process or file may take to go after its test.

Spark cancels a task whose Python process still imports Shoal: it ends after that, a
second of processor time later, for which a busy machine took more than five.
"""

HAS_NEIGHBOURS = "PYTEST_XDIST_WORKER" in os.environ
"""Whether other processes of pytest run beside this one."""

# Libraries set these when they are first imported, whichever test that is.
LIBRARY_VARIABLES = (
    "ENABLE_RUNTIME_UPTIME_TELEMETRY",
    "HDF5_",
    "JPY_",
    "KMP_",
    "PYDEVD_",
    "PYTEST_CURRENT_TEST",
    "TF2_",
    "TF_",
    "TPU_",
    "XLA_",
)

# Libraries keep these as long as the interpreter lives.
LIBRARY_THREADS = ("fsspecIO", "asyncio_")
LIBRARY_PROCESSES = ("multiprocessing.resource_tracker",)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Notes which slots there are; see `pytest_sessionfinish`."""
    session.config.stash[_SLOTS] = _files()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the session if it leaves a slot behind.

    Tests that run beside each other cannot tell whose a slot in shared memory is.
    """
    if HAS_NEIGHBOURS:
        return
    left = _left_over(_files, session.config.stash[_SLOTS])
    if left:
        print(f"\nthe tests leaked {', '.join(sorted(left))}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keeps modules and tests out of collections, a sixth of the time of all tests."""
    del session
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


_KEPT: list[shoal.Session] = []

_SLOTS = pytest.StashKey[set[str]]()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Checks how tests are marked; leaves out, on another backend, those of JAX."""
    files = {item.path for item in items if item.get_closest_marker("process")}
    for item in items:
        if _is_kept(item):
            item.add_marker(pytest.mark.xdist_group("kept"))
        is_placed = item.get_closest_marker("xdist_group") is not None
        is_on_ray = any(map(item.get_closest_marker, ("ray", "ray_long")))
        if is_on_ray and not is_placed:  # one cluster for all that share one
            is_shared = not {"ray_node", "place"}.isdisjoint(_fixtures(item))
            group = "ray" if is_shared else item.path.stem
            item.add_marker(pytest.mark.xdist_group(group))
    for path in files:  # `make test` finds them so
        if "mark.process" not in path.read_text():
            raise pytest.UsageError(f"{path}: say pytest.mark.process in the file")
    if keras.backend.backend() == "jax":
        return
    skip = pytest.mark.skip(reason="written for JAX")
    for item in items:
        if hasattr(getattr(item, "module", None), "jax"):
            item.add_marker(skip)


@pytest.fixture
def kept(_own_temporary_folder: None) -> shoal.Session:
    """Keeps two workers for all tests that ask for them.

    It suits tests that need no new process and end no worker.
    """
    if not _KEPT:
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.zeros((64, 1), "f4")
        session = shoal.Session()
        session.fit(model, x, x, batch_size=8, workers=2, run=False, verbose=0)
        _KEPT.append(session)
    return _KEPT[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows the events of the runs of a failed test."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and call.when == "call" and folder is not None:
        report.sections += run_report.sections(folder)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    nextitem: pytest.Item | None,
) -> Generator[None, None, None]:
    """Ends the kept workers before a test that did not ask for them."""
    yield
    if not _is_kept(nextitem):
        while _KEPT:
            _KEPT.pop().close()


def _is_kept(item: pytest.Item | None) -> bool:
    return "kept" in _fixtures(item)


def _fixtures(item: pytest.Item | None) -> list[str]:
    return getattr(item, "fixturenames", [])


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_folder(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """Gives the temporary files of this run a folder of their own."""
    folder = str(tmp_path_factory.mktemp("tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv("SHOAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        if HAS_NEIGHBOURS:  # whose slots would look like leaks of this process
            patch.setattr(shared_memory, "slot_folders", lambda: [Path(folder)])
        yield


@pytest.fixture(autouse=True)
def _no_leaks(
    request: pytest.FixtureRequest, _own_temporary_folder: None
) -> Iterator[None]:
    """Fails a test that leaves a variable, thread, process, port, file or handler."""
    changing: dict[str, int] = {}
    if _is_kept(request.node):
        request.getfixturevalue("kept")
        # Each fit ends a server; a new one waits then, and a worker may be another.
        # So does the folder that its processes meet in, made when one first needs it.
        changing = {"child processes": 3, "listening ports": 1, "files": 1}
    looks: dict[str, Callable[[], set[str]]] = {
        "threads": _threads,
        "child processes": _processes,
        "listening ports": _ports,
        "files": _files,
    }
    variables, handlers = _variables(), _handlers()
    before = {what: look() for what, look in looks.items()}
    yield
    leaks = {
        what: _left_over(look, before[what], most=changing.get(what, 0))
        for what, look in looks.items()
    }
    leaks["environment variables"] = {
        name
        for name in {*variables, *_variables()}
        if variables.get(name) != os.environ.get(name)
    }
    leaks["signal handlers"] = {
        f"{left}"
        for left in _handlers() - handlers - _PYTHONS
        if not getattr(left[1], "__module__", "").startswith("pyspark")
    }
    for number, handler in handlers:  # the next test is not to blame
        if threading.current_thread() is threading.main_thread():
            signal.signal(number, handler)
    found = [
        f"{what}: {', '.join(sorted(left))}" for what, left in leaks.items() if left
    ]
    if found:
        pytest.fail("the test leaked " + "; ".join(found), pytrace=False)


def _left_over(
    look: Callable[[], set[str]], before: set[str], *, most: int = 0
) -> set[str]:
    """Returns what is new, after waiting for it to go by itself.

    So many may be there that what is new does not matter.
    """

    def left() -> set[str]:
        now = look()
        return set() if len(now) <= most else now - before

    deadline = time.monotonic() + GRACE_S
    while (found := left()) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    return found


def _variables() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(LIBRARY_VARIABLES)}


_PYTHONS: set[tuple[int, Any]] = {
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGTERM, signal.SIG_DFL),
}
"""Handlers of a process that has set none."""


def _handlers() -> set[tuple[int, Any]]:
    """Returns the handlers of signals that end a process, where Python knows them."""
    found = [(n, signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM)]
    return {(number, handler) for number, handler in found if handler is not None}


def _threads() -> set[str]:
    return {
        f"{thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        if thread.is_alive() and not thread.name.startswith(LIBRARY_THREADS)
    }


class _Child(str):
    """A child process in words, the same one whatever its command line is now.

    One that has just started has none yet, and titles change.
    """

    pid: int

    def __new__(cls, words: str, pid: int) -> Self:
        """Returns words that compare as the number does."""
        made = super().__new__(cls, words)
        made.pid = pid
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Child) and self.pid == other.pid

    def __hash__(self) -> int:
        return hash(self.pid)


def _processes() -> set[str]:
    found: set[str] = set()
    for child in _children():
        try:
            command = " ".join(child.cmdline())
            is_library = any(name in command for name in LIBRARY_PROCESSES)
            if child.status() != psutil.STATUS_ZOMBIE and not is_library:
                found.add(_Child(f"{child.pid} ({command[:80]})", child.pid))
        except psutil.NoSuchProcess:
            continue
    return found


def _children() -> list[psutil.Process]:
    """Returns all descendants. psutil reads every process of the machine for them."""
    if not next(Path("/proc/self/task").glob("*/children"), None):
        return psutil.Process().children(recursive=True)
    found: list[psutil.Process] = []
    pids = [os.getpid()]
    while pids:
        tasks = Path(f"/proc/{pids.pop()}/task")
        with suppress(OSError):  # it has ended meanwhile
            for task in os.listdir(tasks):
                with suppress(OSError, psutil.NoSuchProcess):
                    text = (tasks / task / "children").read_text()
                    pids += [int(pid) for pid in text.split()]
                    found += [psutil.Process(int(pid)) for pid in text.split()]
    return found


def _ports() -> set[str]:
    return {
        f"{c.laddr.ip}:{c.laddr.port}"
        for c in psutil.Process().net_connections(kind="tcp")
        if c.status == psutil.CONN_LISTEN
    }


def _files() -> set[str]:
    return {
        str(p) for folder in shared_memory.slot_folders() for p in folder.glob("shoal*")
    }


@pytest.fixture(scope="session")
def higgs() -> Table:
    """ATLAS Higgs events: x (22889, 30) standardised, y 1 for signal."""
    return read_higgs(_data_file("atlas_higgs_22889.csv.gz"))


@pytest.fixture(scope="session")
def mnist() -> Digits:
    """MNIST digits in [0, 1]: x, y of 60,000 and x_test, y_test of 10,000."""
    return read_mnist(_data_file("mnist.npz"))


@pytest.fixture(scope="session")
def data_file() -> Callable[[str], Path]:
    """Function that returns the path of a file of $SHOAL_DATA, or skips."""
    return _data_file


def _data_file(name: str) -> Path:
    """Returns a file of $SHOAL_DATA, or skips; CI forbids to skip."""
    folder = os.environ.get("SHOAL_DATA", "")
    path = Path(folder, name)
    if folder and path.is_file():
        return path
    reason = f"needs {name} in the folder $SHOAL_DATA={folder!r}"
    if os.environ.get("SHOAL_REQUIRE_DATA") == "1":
        pytest.fail(
            f"{reason}, and SHOAL_REQUIRE_DATA=1 forbids to skip", pytrace=False
        )
    pytest.skip(reason)
