"""A Spark master and worker daemons of the tests' own, by pid."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

START_S = 120.0
EXECUTOR = "CoarseGrainedExecutorBackend"
DEPLOY = "org.apache.spark.deploy"


def own_address() -> str:
    """Returns an address of this machine that is not loopback, if it has one."""
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family == socket.AF_INET and not one.address.startswith("127."):
                return one.address
    return "127.0.0.1"


class Standalone:
    """A master, and worker daemons of one core each.

    Args:
        folder: Folder of their logs and work.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.host = folder, own_address()
        self.workers: list[psutil.Process] = []
        options = ["--port", "0", "--webui-port", "0"]
        self._master, log = self._start("master.Master", "master", options)
        self.url = _wait_for(log, r"Starting Spark master at (spark://\S+)")
        _wait_for(log, r"I have been elected leader|New state: (ALIVE)")

    def add_worker(self) -> None:
        """Starts a worker daemon, and waits until the master knows it."""
        name = f"worker-{len(self.workers)}"
        sizes = ["--cores", "1", "--memory", "1G", "--webui-port", "0"]
        work = ["--work-dir", str(self.folder / name), self.url]
        process, log = self._start("worker.Worker", name, [*sizes, *work])
        self.workers.append(process)
        _wait_for(log, r"(Successfully registered) with master")

    def _start(
        self, kind: str, name: str, options: list[str]
    ) -> tuple[psutil.Process, Path]:
        import pyspark

        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        settings = self.folder / "conf"
        settings.mkdir(exist_ok=True)
        (settings / "log4j2.properties").write_text(
            "rootLogger.level = info\nrootLogger.appenderRef.a.ref = console\n"
            "appender.console.type = Console\nappender.console.name = console\n"
            "appender.console.target = SYSTEM_ERR\n"
            "appender.console.layout.type = PatternLayout\n"
            "appender.console.layout.pattern = %m%n\n"
        )
        log = self.folder / f"{name}.log"
        words = [str(program), f"{DEPLOY}.{kind}", "--host", self.host, *options]
        done = subprocess.run(
            # No child of the tests: executors come and go below it.
            ["bash", "-c", 'nohup "$@" > "$0" 2>&1 < /dev/null & echo $!', log, *words],
            env={
                **os.environ, "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_CONF_DIR": str(settings), "SPARK_LOCAL_IP": self.host,
            },
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        return psutil.Process(int(done.stdout)), log

    def executors(self) -> list[psutil.Process]:
        """Returns the JVMs of executors."""
        found: list[psutil.Process] = []
        for one in self.children():
            with suppress(psutil.NoSuchProcess):
                found += [one] * (EXECUTOR in " ".join(one.cmdline()))
        return found

    def children(self) -> Iterator[psutil.Process]:
        """Yields all processes below the daemons."""
        for worker in self.workers:
            with suppress(psutil.NoSuchProcess):
                yield from worker.children(recursive=True)

    def close(self) -> None:
        """Ends the daemons and all below them."""
        below = list(self.children())
        for process in (*self.workers, self._master, *below):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs([*self.workers, self._master, *below], timeout=30)


def _wait_for(log: Path, pattern: str) -> str:
    """Returns the group of a pattern, once a log has it."""
    until = time.monotonic() + START_S
    while True:
        found = re.search(pattern, log.read_text())
        if found:
            return found[1] or ""
        if time.monotonic() > until:
            raise TimeoutError(f"{pattern} is not in {log}: {log.read_text()[-2000:]}")
        time.sleep(0.1)
