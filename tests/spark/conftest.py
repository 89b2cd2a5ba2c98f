"""Spark sessions of the tests' own: one on this machine for all modules."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, NoReturn

import pytest

from tests.spark.standalone import Standalone, own_address

_OPEN: list[Any] = []
"""The session on this machine, for all modules that do without another one."""


@pytest.fixture(scope="session")
def python_of_tests() -> Iterator[None]:
    """Tasks run by the interpreter of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        yield
        close_shared()


@pytest.fixture(scope="module")
def spark(
    _own_temporary_folder: None,
    python_of_tests: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    """A session on two cores of this machine, whose Python daemon has started.

    Modules share it: it is opened again after one that stopped it.
    """
    needs_java()
    if not _OPEN or _OPEN[0].sparkContext._jsc is None:
        close_shared()
        _OPEN.append(open_session("local[2]", str(tmp_path_factory.mktemp("spark"))))
    return _OPEN[0]


def close_shared() -> None:
    """Stops the session on this machine, before another one is opened."""
    while _OPEN:
        _OPEN.pop().stop()


@pytest.fixture(scope="session")
def standalone(
    _own_temporary_folder: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Standalone]:
    """A master and two worker daemons, for all modules."""
    needs_java()
    found = Standalone(tmp_path_factory.mktemp("standalone"))
    try:
        for _ in range(2):
            found.add_worker()
        yield found
    finally:
        found.close()


def open_standalone(url: str, folder: str, **settings: str) -> Any:
    """Starts a session of two executors, one on each daemon, of one core each.

    Its driver listens where TLS is used, if there is such an address.
    """
    close_shared()
    host = own_address()
    words = {
        "spark.driver.host": host, "spark.driver.bindAddress": host,
        "spark.executor.memory": "500m", "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.speculation": "false",  # a JVM keeps the settings of its first session
        **settings,
    }  # fmt: skip
    return open_session(url, folder, **words)


def open_session(master: str, folder: str, **settings: str) -> Any:
    """Starts a session; Python processes of tasks end with their tasks."""
    from pyspark.sql import SparkSession

    words = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "600m",
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.python.worker.reuse": "false",
        **settings,
    }
    builder = SparkSession.builder.master(master).appName("shoal-tests")
    for name, word in words.items():
        builder = builder.config(name, word)
    session: Any = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    # Daemons of Python, one for RDDs and one for frames, stay with the session.
    assert session.sparkContext.parallelize([0], 1).map(lambda x: x).collect() == [0]
    assert len(session.range(1).mapInArrow(lambda rows: rows, "id long").collect()) == 1
    return session


def needs_java() -> None:
    """Skips where there is no Java or no PySpark, which CI forbids."""
    if find_spec("pyspark") is None:
        _skip_or_fail("PySpark")
    if shutil.which("java") is None:
        _skip_or_fail("Java 17")


def _skip_or_fail(what: str) -> NoReturn:
    if os.environ.get("SHOAL_REQUIRE_SPARK"):
        pytest.fail(f"needs {what}")
    pytest.skip(f"needs {what}")
