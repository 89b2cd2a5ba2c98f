"""A Spark cluster on three hosts: the driver here, executors in two namespaces."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import shoal
from shoal.clusters import Spark
from shoal.runs.events import read_events
from shoal.runs.folder import Folder
from tests.clusters.test_ray import ROWS
from tests.clusters.test_ray import data as wide_data
from tests.clusters.test_ray_servers import is_server, title_of
from tests.habits.cases import data, make_model
from tests.hosts import skip_or_fail
from tests.spark.conftest import needs_java, open_standalone
from tests.spark.killing import Killer
from tests.spark.processes import training_processes
from tests.spark.standalone import Standalone
from tests.support.hosts import Hosts
from tests.support.models import wide
from tests.support.watch import Watch

pytestmark = [
    pytest.mark.spark,
    pytest.mark.spark_long,
    pytest.mark.slow,
    pytest.mark.process,
]

ALONE = """
mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs tmpfs "$TMPDIR" &&
hostname "$0" && exec "$@"
"""
"""Runs a command that shares no name, process, memory or temporary file."""


@dataclass(frozen=True)
class Bench:
    """A master here, and a worker daemon on each of two hosts."""

    hosts: Hosts
    standalone: Standalone

    def add(self, number: int) -> None:
        """Starts the daemon of a host."""
        name = self.hosts.names[number]
        prefix = ("ip", "netns", "exec", name, "unshare", "--uts", "--pid", "--fork",
                  "--kill-child", "--mount-proc", "sh", "-c", ALONE, name)  # fmt: skip
        folder = self.standalone.folder / f"tmp-{len(self.standalone.workers)}"
        folder.mkdir()
        net = self.hosts.address.rpartition(".")[0]
        self.standalone.add_worker(
            f"{net}.{number + 2}", prefix, {"TMPDIR": str(folder)}
        )

    def processes(self, number: int) -> list[psutil.Process]:
        """Returns all processes of a host."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.hosts.names[number]],
            capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        found: list[psutil.Process] = []
        for pid in listed:
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(int(pid)))
        return found

    def training(self) -> list[psutil.Process]:
        """Returns the processes of workers and servers on hosts."""
        found: list[psutil.Process] = []
        for one in self.standalone.workers:
            with suppress(psutil.NoSuchProcess):  # a daemon that was killed
                found += training_processes(one.pid)
        return found


@pytest.fixture(scope="module")
def bench(
    _own_temporary_folder: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    needs_java()
    try:
        hosts = Hosts(2)
    except (OSError, subprocess.CalledProcessError):
        skip_or_fail("network namespaces, which need root and iproute2")
    try:
        folder = tmp_path_factory.mktemp("bench")
        standalone = Standalone(folder, hosts.address, lost_s=8)
        found = Bench(hosts, standalone)
        try:
            found.add(0)
            found.add(1)
            yield found
        finally:
            standalone.close()
    finally:
        hosts.close()


def opened(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A slot on each host; its driver is reached over the bridge."""
    return open_standalone(
        bench.standalone.url, str(tmp_path_factory.mktemp("spark")), **{
            "spark.driver.host": bench.hosts.address,
            "spark.driver.bindAddress": bench.hosts.address,
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def jvm(
    bench: Bench, python_of_tests: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Starts the JVM of this process, which outlives each session."""
    opened(bench, tmp_path_factory).stop()


@pytest.fixture
def spark(
    bench: Bench, jvm: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A session of its own: one whose host was lost may have no executor."""
    session = opened(bench, tmp_path_factory)
    yield session
    session.stop()


class Servers(Watch):
    """Notes what runs on the hosts, and whether the driver's connections are TLS's."""

    def __init__(self, root: Path, bench: Bench) -> None:
        super().__init__(root)
        self.bench, self.servers = bench, list[str]()

    def is_over(self, kinds: Counter[str]) -> bool:
        found = [one for one in self.bench.training() if is_server(one)]
        self.servers = [title_of(one) for one in found]
        return bool(found)


def test_arrays_are_trained_on_with_a_server_on_another_host(
    bench: Bench, spark: Any, tmp_path: Path
) -> None:
    from shoal.wire.tls import identity_for

    assert identity_for(bench.hosts.address) is not None  # so TLS is used
    servers = Servers(tmp_path, bench)
    history = shoal.fit(
        wide(), *wide_data(), epochs=9999, workers=2, strategy="aeasgd", servers=2,
        verbose=0, cluster="spark", run=str(tmp_path), callbacks=[servers],
    )  # fmt: skip
    assert [title.endswith("server 1") for title in servers.servers] == [True]
    epochs = len(history.history["loss"])
    assert history.run.summary().samples_committed == epochs * ROWS
    assert servers.kinds()["worker_lost"] == 0
    assert psutil.wait_procs(bench.training(), timeout=30)[1] == []


def cut(bench: Bench) -> None:
    """Takes out the cable of the second host."""
    bench.hosts.cut(1)


def kill(bench: Bench) -> None:
    """Ends all processes of the second host at once."""
    for process in bench.processes(1):
        with suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.mark.parametrize(
    ("lose", "reason"), [(cut, "is gone"), (kill, "hung up")], ids=["cut", "killed"]
)
def test_a_host_is_lost_and_every_row_counts_once(
    bench: Bench,
    spark: Any,
    tmp_path: Path,
    lose: Callable[[Bench], object],
    reason: str,
) -> None:
    x, y = data(3200)
    listed = [(one.tolist(), int(label)) for one, label in zip(x, y, strict=True)]
    frame = spark.createDataFrame(listed, "x array<float>, y long").repartition(4)
    history = shoal.fit(
        make_model(), frame, features="x", label="y", batch_size=16, epochs=99999,
        strategy="aeasgd", workers=2, run=str(tmp_path), verbose=0,
        cluster=Spark(store="driver"),
        callbacks=[Killer(tmp_path, lambda: lose(bench))],
    )  # fmt: skip
    epochs = len(history.history["loss"])
    assert history.run.summary().samples_committed == epochs * 3200
    [lost] = [e for e in read_events(Folder.at(history.run.url))
              if e["kind"] == "worker_lost"]  # fmt: skip
    assert reason in lost["reason"]
    assert psutil.wait_procs(bench.training(), timeout=120)[1] == []
    bench.hosts.mend(1)
    kill(bench)
    bench.add(1)
    assert spark.range(100).count() == 100
