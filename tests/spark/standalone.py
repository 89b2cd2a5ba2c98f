"""A Spark master and worker daemons of the tests' own, by pid."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
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


def host_of(number: int) -> str:
    """Returns an address for a daemon: Spark takes those of one address for one host.

    Args:
        number: Number of the daemon.
    """
    is_linux = sys.platform == "linux"  # where all of 127.0.0.0/8 is this machine
    return f"127.0.0.{2 + number}" if is_linux else own_address()


class Standalone:
    """A master, and worker daemons of two cores and one GPU that is none.

    Args:
        folder: Folder of their logs and work.
        host: Address of the master; default None: one of this machine.
        lost_s: Seconds after which the master gives up a silent daemon.
    """

    def __init__(self, folder: Path, host: str | None = None, lost_s: int = 60) -> None:
        self.folder, self.host = folder, host or own_address()
        self.workers: list[psutil.Process] = []
        options = ["--port", "0", "--webui-port", "0"]
        # Daemons of workers report four times in this time.
        self._timeout = f"-Dspark.worker.timeout={lost_s}"
        words = {"SPARK_MASTER_OPTS": self._timeout}
        self._master, log = self._start(
            "master.Master", "master", self.host, options, variables=words
        )
        self.url = _wait_for(log, r"Starting Spark master at (spark://\S+)")
        _wait_for(log, r"I have been elected leader|New state: (ALIVE)")

    def add_worker(
        self,
        host: str | None = None,
        prefix: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Starts a worker daemon, and waits until the master knows it.

        Args:
            host: Its address; default None: one of this machine's own.
            prefix: Words that run a command on its host.
            variables: Name -> value, for its environment and that of its executors.
        """
        number = len(self.workers)
        name = f"worker-{number}"
        sizes = ["--cores", "2", "--memory", "2G", "--webui-port", "0"]
        work = ["--work-dir", str(self.folder / name), self.url]
        gpu = self.folder / f"gpu-{number}"
        given = json.dumps({"name": "gpu", "addresses": [str(number + 4)]})
        gpu.write_text(f"#!/bin/sh\necho '{given}'\n")
        gpu.chmod(0o755)
        resource = "-Dspark.worker.resource.gpu"
        process, log = self._start(
            "worker.Worker", name, host or host_of(number), [*sizes, *work], prefix,
            {
                "SPARK_WORKER_OPTS": f"{self._timeout} {resource}.amount=1 "
                f"{resource}.discoveryScript={gpu}", **(variables or {}),
            },
        )  # fmt: skip
        self.workers.append(process)
        _wait_for(log, r"(Successfully registered) with master")

    def _start(
        self,
        kind: str,
        name: str,
        host: str,
        options: list[str],
        prefix: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
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
        words = [*prefix, str(program), f"{DEPLOY}.{kind}", "--host", host, *options]
        done = subprocess.run(
            # No child of the tests: executors come and go below it.
            ["bash", "-c", 'nohup "$@" > "$0" 2>&1 < /dev/null & echo $!', log, *words],
            env={
                **os.environ, "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_CONF_DIR": str(settings), "SPARK_LOCAL_IP": host,
                **(variables or {}),
            },
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        return psutil.Process(int(done.stdout)), log

    def executors(self, application: str = "") -> list[psutil.Process]:
        """Returns the JVMs of executors.

        Args:
            application: Id of their application; default "" means any.
        """
        found: list[psutil.Process] = []
        for one in self.children():
            with suppress(psutil.NoSuchProcess):
                words = " ".join(one.cmdline())
                found += [one] * (EXECUTOR in words and application in words)
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
