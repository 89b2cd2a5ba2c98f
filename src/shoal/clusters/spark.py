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
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, final

from shoal.clusters.base import Allocation, Cluster, ResourceRequest
from shoal.clusters.carried import carried
from shoal.errors import ClusterError, ConfigError, PlanError
from shoal.facts import MachineFacts, NodeFacts
from shoal.interruption import pause
from shoal.launchers.base import Launcher
from shoal.launchers.shared import SharedBlob
from shoal.wire.tls import identity_for

LOOPBACK = "127.0.0.1"
LOOK_S = 0.2  # between looks for free slots
START_S = 30.0  # for Spark to start the Python process of a task
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
        wait_s: Seconds to wait for free slots at the start of a run, and for the
            replacement of a lost worker. They begin when no run of another thread of
            this process holds slots.
        variables: Name -> value, for the environment of workers.
        store: Folder or URL, such as "s3://bucket/prefix", that executors and workers
            see: rows of a DataFrame go there for the time of a run. Default None: a
            temporary folder, if all executors are on this machine.

    Raises:
        ConfigError: A value cannot be used.

    Example:
        >>> from shoal.clusters import Spark
        >>> Spark(wait_s=300).name
        'spark'
    """

    name: ClassVar[str] = "spark"

    wait_s: float = 60.0
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    store: str | None = None

    def __post_init__(self) -> None:
        value: Any = self.wait_s
        if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ConfigError(
                f"wait_s={value!r} cannot be used. Expected seconds, a number of at "
                "least 0. Correct it, or leave wait_s out."
            )

    @property
    def shared_folder(self) -> str | None:
        """Returns the store."""
        return self.store

    @property
    def is_here(self) -> bool:
        """Whether all executors are on this machine."""
        session = _sessions()
        return session.read_session(session.active_context()).is_one_machine

    def look(self, backend: str) -> MachineFacts:
        """Returns the executors and slots of the active session; starts nothing."""
        del backend
        session = _sessions()
        facts = session.read_session(session.active_context())
        refuse(facts)
        nodes = tuple(
            NodeFacts(name=one.host, cores=one.slots * facts.cpus)
            for one in facts.executors
        ) or (NodeFacts(name=facts.master, cores=facts.cpus),)  # none has started yet
        return MachineFacts(
            cores=min(node.cores for node in nodes),
            nodes=nodes,
            slots=facts.slots,
            threads_each=facts.cpus,
        )

    @contextmanager
    def open(self, asked: ResourceRequest) -> Generator[Allocation]:
        """Waits for free slots for the least number of workers."""
        session = _sessions()
        context = session.active_context()
        carriers: Any = import_module("shoal.launchers.spark")
        remote: Any = import_module("shoal.launchers.remote")
        host = address(session.read_session(context))
        variables = carried(os.environ, self.variables)

        def open_launcher(blob: SharedBlob) -> Launcher:
            carrier = carriers.SparkCarrier(
                context, host=host, number=blob.descriptor, backend=asked.backend,
                identity=identity_for(host), limit_s=self.wait_s + START_S,
            )  # fmt: skip
            return remote.RemoteLauncher(carrier, blob, asked.backend, variables)

        workers = self._claim(session, context, asked)
        try:
            yield Allocation(
                workers=workers,
                host=host,
                open_launcher=open_launcher,
                growth=asked.most - workers,
            )
        finally:
            _CLAIMS.release(workers)

    def _claim(self, session: Any, context: Any, asked: ResourceRequest) -> int:
        """Waits for slots, which no other run of this process gets."""
        until = time.monotonic() + self.wait_s
        while True:
            facts = session.read_session(context)
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
    after = "" if no_hope(facts, asked) and facts.is_fixed else f" after {wait_s:g} s"
    return ClusterError(
        f"the Spark application has {facts.slots} slots{busy}{after}. Expected "
        f"{asked.least} that are free, one for each worker. End other jobs, pass fewer "
        "workers, add executors, or raise wait_s of shoal.clusters.Spark."
    )


def refuse(facts: Any) -> None:
    """Refuses settings of a session with which workers cannot run.

    Raises:
        PlanError: Such a setting.
    """
    if 0 < facts.python_mib < LEAST_PYTHON_MIB:
        raise PlanError(
            f"spark.executor.pyspark.memory allows {facts.python_mib:,} MiB. Expected "
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
    if "pyspark" in sys.modules:
        return import_module("shoal.launchers.spark_session")
    if find_spec("pyspark") is None:
        raise ConfigError(
            "cluster='spark' needs PySpark, which is not installed. Expected the "
            "session of this process. Install it: pip install 'shoal[spark]'."
        )
    raise import_module("shoal.launchers.spark_session").no_session()
