"""The Spark application of this process: its executors run the workers.

This file decides how many workers have room, and at which address they call. PySpark
is imported when it is needed, and a session is never created, changed or stopped.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, final

from shoal.clusters.base import Allocation, Cluster, ResourceRequest
from shoal.clusters.carried import carried
from shoal.clusters.gpus import reaches_gpus, usable_gpus
from shoal.errors import ClusterError, ConfigError, PlanError
from shoal.facts import MachineFacts, NodeFacts
from shoal.interruption import pause
from shoal.launchers.base import Launcher
from shoal.launchers.shared import SharedBlob
from shoal.spark_versions import refuse_old_pyspark
from shoal.wire.tls import identity_for

LOOPBACK = "127.0.0.1"
LOOK_S = 0.2  # between looks for free slots
START_S = 30.0  # for Spark to start the Python process of a task
LEAST_SILENT_S = 2.0  # agents report each second
MOST_PORT = 65535
LEAST_PYTHON_MIB = 8 << 10
"""Limit of a Python process below which frameworks cannot reserve their memory."""


@final
@dataclass(frozen=True, kw_only=True)
class Spark(Cluster):
    """Workers on the executors of the active Spark session; pass it as `cluster=`.

    `cluster="spark"` is `Spark()`. Each worker is a Spark job of one task, so it takes
    one slot as long as the run lasts. The server is beside the driver. The session
    stays as it is: none of its settings is changed, and no job but a worker's ends.

    Args:
        port: Port, in [1, 65535], at which this process and its server listen for
            workers, each at the next free one; 16 are tried. Default None: any that is
            free.
        wait_s: Seconds to wait for free slots at the start of a run, and for the
            replacement of a lost worker, at least 0. They begin when no run of another
            thread of this process holds slots.
        variables: Name -> value, for the environment of workers.
        store: Folder or URL, such as "s3://bucket/prefix", that executors and workers
            see: rows of a DataFrame go there for the time of a run. Default None: a
            temporary folder, if all executors are on this machine; else "driver": rows
            pass through the driver to its disk, and workers read them from there.
        cpus: Cores of each worker, at least 1. Default None: `spark.task.cpus`. Others,
            and more `threads`, are a resource profile, which `local[N]` does not have.
        gpus: GPUs of each worker, at least 0. Default None:
            `spark.task.resource.gpu.amount`. A worker sees those alone that Spark
            gives its task.
        silent_s: Seconds without a word of a worker's task after which it is lost, at
            least 2.

    Raises:
        ConfigError: A value cannot be used.

    Example:
        >>> from shoal.clusters import Spark
        >>> Spark(wait_s=300).name
        'spark'
    """

    name: ClassVar[str] = "spark"

    port: int | None = None
    wait_s: float = 60.0
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    store: str | None = None
    cpus: int | None = None
    gpus: float | None = None
    silent_s: float = 6.0

    def __post_init__(self) -> None:
        _check("wait_s", self.wait_s, 0, "seconds")
        _check("silent_s", self.silent_s, LEAST_SILENT_S, "seconds")
        if self.gpus is not None:
            _check("gpus", self.gpus, 0, "GPUs of a worker")
        for name, most in (("port", MOST_PORT), ("cpus", math.inf)):
            value: Any = getattr(self, name)
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (is_whole and 1 <= value <= most):
                raise ConfigError(
                    f"{name}={value!r} cannot be used. Expected a whole number of at "
                    f"least 1. Correct it, or leave {name} out."
                )

    @property
    def shared_folder(self) -> str | None:
        """Returns the store."""
        return self.store

    @property
    def port_here(self) -> int:
        """Returns the port."""
        return self.port or 0

    @property
    def is_here(self) -> bool:
        """Whether all executors are on this machine."""
        session = _sessions()
        return session.read_session(session.active_context()).is_one_machine

    def look(self, backend: str) -> MachineFacts:
        """Returns the executors and slots of the active session; starts nothing."""
        session = _sessions()
        context = session.active_context()
        resources = self._resources(context)
        refuse_gpus(context.master or "", resources.gpus)
        facts = session.read_session(context, resources)
        refuse(facts)
        has_idle = facts.is_one_machine and not resources.gpus and reaches_gpus(backend)
        return machine_of(facts, idle_gpus=len(usable_gpus()) if has_idle else 0)

    def _resources(self, context: Any, threads: int = 0) -> Any:
        """Returns what each task of a worker takes.

        Args:
            context: Context of the session.
            threads: Compute threads of a worker.
        """
        kinds: Any = import_module("shoal.launchers.spark_resources")
        usual = kinds.usual_resources(context)
        gpus = usual.gpus if self.gpus is None else float(self.gpus)
        cpus = max(self.cpus or usual.cpus, threads)
        return kinds.TaskResources(cpus=cpus, gpus=gpus)

    @contextmanager
    def open(self, asked: ResourceRequest) -> Generator[Allocation]:
        """Waits for free slots for the least number of workers."""
        session = _sessions()
        context = session.active_context()
        carriers: Any = import_module("shoal.launchers.spark")
        remote: Any = import_module("shoal.launchers.remote")
        resources = self._resources(context, asked.threads)
        host = address(session.read_session(context))
        variables = carried(os.environ, self.variables)

        def open_launcher(blob: SharedBlob) -> Launcher:
            carrier = carriers.SparkCarrier(
                context, resources, host=host, number=blob.descriptor,
                backend=asked.backend,
                identity=identity_for(host), limit_s=self.wait_s + START_S,
                port=self.port or 0,
            )  # fmt: skip
            return remote.RemoteLauncher(
                carrier, blob, asked.backend, variables, self.silent_s
            )

        read = partial(session.read_session, context, resources)
        workers = self._claim(read, asked)
        try:
            yield Allocation(
                workers=workers,
                host=host,
                open_launcher=open_launcher,
                growth=asked.most - workers,
                port=self.port or 0,
            )
        finally:
            _CLAIMS.release(workers)

    def _claim(self, read: Callable[[], Any], asked: ResourceRequest) -> int:
        """Waits for slots, which no other run of this process gets."""
        until = time.monotonic() + self.wait_s
        while True:
            facts = read()
            workers = _CLAIMS.claim(facts, asked)
            if workers:
                return workers
            if facts.is_fixed and no_hope(facts, asked):
                raise _no_room(facts, asked, self.wait_s)
            if _CLAIMS.has_others:  # they end, as in a search with several threads
                until = time.monotonic() + self.wait_s
            elif time.monotonic() >= until:
                raise _no_room(facts, asked, self.wait_s)
            pause(LOOK_S)


class _Claims:
    """Slots of runs of this process, whose tasks may not run yet.

    Two runs that each count the same free slots would wait for each other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: list[tuple[int, int]] = []  # thread, slots

    def claim(self, facts: Any, asked: ResourceRequest) -> int:
        """Takes slots for a run; returns the number of its workers, 0 for no room."""
        with self._lock:
            taken = sum(slots for _, slots in self._taken)
            workers = workers_now(facts, asked, taken)
            if workers:
                self._taken.append((threading.get_ident(), workers))
            return workers

    @property
    def has_others(self) -> bool:
        """Whether runs of other threads hold slots, and none of this thread does."""
        with self._lock:
            mine = threading.get_ident()
            threads = {thread for thread, _ in self._taken}
            return bool(threads) and mine not in threads

    def release(self, workers: int) -> None:
        """Returns the slots of a run of this thread."""
        with self._lock:
            self._taken.remove((threading.get_ident(), workers))


_CLAIMS = _Claims()


def workers_now(facts: Any, asked: ResourceRequest, taken: int) -> int:
    """Returns how many workers begin, 0 if there is no room for the least number.

    Args:
        facts: `SessionFacts`.
        asked: Request of a run.
        taken: Slots of other runs of this process.
    """
    free = facts.slots - max(facts.busy, taken)
    if free >= asked.least:
        return min(free, asked.most)
    # Jobs that wait are the demand for which Spark starts executors.
    return asked.least if facts.is_dynamic else 0


def no_hope(facts: Any, asked: ResourceRequest) -> bool:
    """Whether there are too few slots, even if all were free."""
    return facts.slots < asked.least


def _no_room(facts: Any, asked: ResourceRequest, wait_s: float) -> ClusterError:
    jobs = ", ".join(map(str, facts.jobs))
    busy = f"; {facts.busy} of them run tasks (jobs {jobs})" if facts.busy else ""
    if facts.excluded:
        busy += (
            f"; {facts.excluded} executor(s) get no tasks, as tasks failed there "
            "(spark.excludeOnFailure)"
        )
    after = "" if no_hope(facts, asked) and facts.is_fixed else f" after {wait_s:g} s"
    return ClusterError(
        f"the Spark application has {facts.slots} slots{busy}{after}. Expected "
        f"{asked.least} that are free, one for each worker. End other jobs, pass fewer "
        "workers, add executors, or raise wait_s of shoal.clusters.Spark."
    )


def _check(name: str, value: Any, least: float, what: str) -> None:
    if not isinstance(value, (int, float)) or not least <= value < math.inf:
        raise ConfigError(
            f"{name}={value!r} cannot be used. Expected {what}, a number of at least "
            f"{least:g}. Correct it, or leave {name} out."
        )


def machine_of(facts: Any, idle_gpus: int = 0) -> MachineFacts:
    """Returns what a plan needs to know of a session.

    Args:
        facts: `SessionFacts`.
        idle_gpus: GPUs of its machine that it gives to no worker.
    """
    cpus, gpus = facts.resources.cpus, facts.resources.gpus
    nodes = tuple(
        NodeFacts(name=one.host, cores=one.cores, gpus=int(one.cores // cpus * gpus))
        for one in facts.executors
    ) or (NodeFacts(name=facts.master, cores=cpus),)  # none has started yet
    most = max(node.cores for node in nodes)
    return MachineFacts(
        cores=min(node.cores for node in nodes),
        nodes=nodes,
        slots=facts.slots,
        threads_each=cpus,
        gpus_each=gpus,
        is_divisible=not facts.is_one_machine,
        overhead_each_mib=facts.overhead_mib // max(1, most // cpus),
        idle_gpus=idle_gpus,
    )


def refuse_gpus(master: str, gpus: float) -> None:
    """Refuses GPUs where Spark hands out none: workers would compute on the CPU.

    Raises:
        PlanError: The master runs its tasks in this process's own JVM.
    """
    if gpus and (master == "local" or master.startswith("local[")):
        raise PlanError(
            f"each worker was to have {gpus:g} GPUs, and master {master!r} hands out "
            "none. Expected a master with executors: standalone, YARN or Kubernetes. "
            "Pass cluster='local', which gives each worker a GPU of this machine, or "
            "leave gpus and spark.task.resource.gpu.amount out."
        )


def refuse(facts: Any) -> None:
    """Refuses settings of a session with which workers cannot run.

    Raises:
        PlanError: Such a setting.
    """
    cores = max((one.cores for one in facts.executors), default=1)
    each_mib = facts.python_mib // max(1, cores // facts.resources.cpus)
    if facts.python_mib and each_mib < LEAST_PYTHON_MIB:
        raise PlanError(
            f"spark.executor.pyspark.memory allows {each_mib:,} MiB a worker. Expected "
            f"no limit, or {LEAST_PYTHON_MIB:,} MiB at least: it limits the addresses "
            "of the training process, and frameworks reserve more than they use. Leave "
            "it out when the session is created."
        )
    address(facts)


def address(facts: Any) -> str:
    """Returns the address at which this process listens, and executors call it.

    Raises:
        PlanError: This process cannot listen there.
    """
    if facts.is_one_machine:
        return LOOPBACK
    try:
        found = socket.getaddrinfo(facts.host, None, type=socket.SOCK_STREAM)
        host = str(found[0][4][0])
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, 0), family=family).close()
    except OSError as error:
        raise PlanError(
            f"spark.driver.host={facts.host!r} is not an address of this machine "
            f"({error}); Spark listens at {facts.bind!r}. Expected an address where "
            "this process can listen, and that executors reach. Set spark.driver.host "
            "to one when the session is created."
        ) from None
    return host


def _sessions() -> Any:
    """Imports what reads sessions, if there can be one: PySpark made it."""
    refuse_old_pyspark()
    if "pyspark" in sys.modules:
        return import_module("shoal.launchers.spark_session")
    if find_spec("pyspark") is None:
        raise ConfigError(
            "cluster='spark' needs PySpark, which is not installed. Expected the "
            "session of this process. Install it: pip install 'shoal[spark]'."
        )
    raise import_module("shoal.launchers.spark_session").no_session()
