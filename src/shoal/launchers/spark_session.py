"""The Spark session of this process: whether it can be used, and what it has room for.

This file decides what counts as a session. Spark's own numbers are read here; the
cluster decides what follows from them.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, final

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.conf import SparkConf

from shoal.errors import ClusterError, PlanError
from shoal.launchers.spark_resources import (
    TaskResources,
    profile_of,
    usual_resources,
)

GONE = (Py4JError, OSError, AttributeError)
"""Errors of a session that was stopped: its parts are None, or its JVM has ended."""
CONNECT = "pyspark.sql.connect.session"
ONE_MACHINE = ("local", "local[", "local-cluster[")
"""Beginnings of masters whose executors are on this machine."""
OVERHEAD = "spark.executor.memoryOverhead"
FACTORS: dict[str, tuple[str, ...]] = {
    "yarn": (f"{OVERHEAD}Factor",),
    "k8s": (f"{OVERHEAD}Factor", "spark.kubernetes.memoryOverheadFactor"),
}
"""Masters that limit the memory of all processes of an executor, and settings of the
overhead as a share of the JVM's memory, of which the first one counts."""
USUAL_FACTOR = 0.1
LEAST_OVERHEAD = 384
"""Spark's least memory overhead, in MiB."""


@final
@dataclass(frozen=True, kw_only=True)
class Executor:
    """An executor that runs tasks.

    Args:
        host: Address of its machine.
        cores: Cores for tasks.
    """

    host: str
    cores: int


@final
@dataclass(frozen=True, kw_only=True)
class SessionFacts:
    """Facts about a session.

    Args:
        master: Spark's master, such as "local[2]" or "yarn".
        host: Address at which executors reach this process.
        bind: Address at which this process listens.
        resources: Resources of each task that was asked for.
        slots: Tasks that run at once on all executors.
        busy: Tasks that run now.
        executors: Executors that are there now, and are given tasks.
        excluded: Executors that Spark gives no task, as tasks failed there.
        is_dynamic: Whether Spark adds executors while jobs wait.
        python_mib: Limit of the memory of each Python process, 0 for none.
        overhead_mib: Memory of an executor for processes beside its JVM, 0 if its
            master sets no limit.
        jobs: Ids of jobs that run now.
    """

    master: str
    host: str
    bind: str
    resources: TaskResources
    slots: int
    executors: tuple[Executor, ...]
    excluded: int = 0
    busy: int = 0
    is_dynamic: bool = False
    python_mib: int = 0
    overhead_mib: int = 0
    jobs: tuple[int, ...] = ()

    @property
    def is_one_machine(self) -> bool:
        """Whether all executors are on this machine."""
        return self.master == "local" or self.master.startswith(ONE_MACHINE[1:])

    @property
    def is_fixed(self) -> bool:
        """Whether there will never be more slots."""
        return self.master == "local" or self.master.startswith("local[")


def active_context() -> SparkContext:
    """Returns the context of the active session.

    Raises:
        PlanError: There is none, or it cannot be used.
    """
    context = getattr(SparkContext, "_active_spark_context", None)
    if context is None:
        if _is_connected():
            raise PlanError(
                "the session of this process is one of Spark Connect. Expected a "
                "classic session: Connect gives no tasks that can call this process. "
                "Create the session with .master(...), not with .remote(...) or "
                "SPARK_REMOTE; or run the script on the cluster with spark-submit."
            )
        raise no_session()
    if not isinstance(getattr(SparkContext, "_gateway", None), ClientServer):
        raise PlanError(
            "PYSPARK_PIN_THREAD=false: threads of this process share one group of "
            "Spark jobs, and ending a worker would end jobs of yours. Expected the "
            "default. Unset PYSPARK_PIN_THREAD before the session is created."
        )
    return context


def no_session() -> PlanError:
    """Returns the error of a process without a session."""
    return PlanError(
        "there is no active Spark session in this process. Expected one: its "
        "executors run the workers. Create it first: spark = "
        "SparkSession.builder.master('local[2]').getOrCreate()."
    )


def _is_connected() -> bool:
    """Whether a session of Spark Connect is active; imports nothing."""
    kind: Any = getattr(sys.modules.get(CONNECT), "SparkSession", None)
    return kind is not None and kind.getActiveSession() is not None


def is_stopped(context: SparkContext) -> bool:
    """Whether a session was stopped, or its JVM has ended."""
    inner: Any = getattr(context, "_jsc", None)
    try:
        return inner is None or bool(inner.sc().isStopped())
    except GONE:
        return True


def read_session(
    context: SparkContext, asked: TaskResources | None = None
) -> SessionFacts:
    """Asks Spark for its facts.

    Args:
        context: Context of the session.
        asked: Resources of each task; default None: the session's usual ones.

    Raises:
        ClusterError: The session was stopped.
        PlanError: Its master has no resource profiles.
    """
    if is_stopped(context):
        raise stopped()
    usual = usual_resources(context)
    resources = asked or usual
    profile = profile_of(context, resources)
    java: Any = context._jsc  # pyright: ignore[reportPrivateUsage]
    jvm: Any = java.sc()
    conf: SparkConf = context.getConf()
    java_profile = (
        jvm.resourceProfileManager().defaultResourceProfile()
        if profile is None
        else profile._java_resource_profile  # pyright: ignore[reportPrivateUsage]
    )
    found = jvm.statusStore().executorList(True)
    listed = [found.apply(number) for number in range(found.size())]
    there = [one for one in listed if one.isActive() and one.maxTasks()]
    usable = [one for one in there if not one.isExcluded()]
    # Spark counts the slots of all.
    most = int(jvm.maxNumConcurrentTasks(java_profile))
    lost = sum(
        int(one.maxTasks()) * usual.cpus // resources.cpus
        for one in there
        if one.isExcluded()
    )
    host = conf.get("spark.driver.host") or "localhost"
    return SessionFacts(
        master=context.master or "",
        host=host,
        bind=conf.get("spark.driver.bindAddress") or host,
        resources=resources,
        slots=max(0, most - lost),
        excluded=len(there) - len(usable),
        executors=tuple(
            Executor(
                host=str(one.hostPort()).rpartition(":")[0],
                cores=int(one.maxTasks()) * usual.cpus,
            )
            for one in usable
        ),
        # What the status store tells of running tasks may be 10 s old.
        busy=math.ceil(
            int(jvm.taskScheduler().rootPool().runningTasks())
            * usual.cpus
            / resources.cpus
        ),
        is_dynamic=conf.get("spark.dynamicAllocation.enabled") == "true",
        python_mib=int(jvm.conf().getSizeAsMb("spark.executor.pyspark.memory", "0m")),
        overhead_mib=overhead_of(context.master or "", jvm.conf()),
        jobs=tuple(context.statusTracker().getActiveJobsIds()),
    )


def overhead_of(master: str, conf: Any) -> int:
    """Returns the memory of an executor for processes beside its JVM, in MiB.

    Args:
        master: Spark's master.
        conf: Settings of the session, as the JVM has them.

    Returns:
        0 where containers do not limit it.
    """
    names = next((n for kind, n in FACTORS.items() if master.startswith(kind)), ())
    if not names:
        return 0
    factors = [conf.getDouble(name, -1.0) for name in names]
    factor = next((one for one in factors if one >= 0), USUAL_FACTOR)
    least = conf.getSizeAsMb("spark.executor.minMemoryOverhead", f"{LEAST_OVERHEAD}m")
    memory = conf.getSizeAsMb("spark.executor.memory", "1024m")
    usual = max(int(least), int(memory * factor))
    return int(conf.getSizeAsMb(OVERHEAD, f"{usual}m"))


def stopped() -> ClusterError:
    """Returns the error of a run whose session has ended."""
    return ClusterError(
        "the Spark session was stopped, or its JVM has ended, and the workers with it. "
        "Expected it to live until fit returns. Create a session and go on with "
        "shoal.resume."
    )
