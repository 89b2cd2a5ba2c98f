"""What a worker's task takes of an executor: cores and GPUs, as Spark counts them.

A task takes `spark.task.cpus` cores and `spark.task.resource.gpu.amount` GPUs. Others
are a resource profile, which masters on one machine do not have.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, final

from pyspark import SparkContext
from pyspark.resource import ResourceProfile, ResourceProfileBuilder
from pyspark.resource.requests import TaskResourceRequests

from shoal.errors import PlanError
from shoal.jvm_errors import cause

GPU = "gpu"


@final
@dataclass(frozen=True, kw_only=True)
class TaskResources:
    """Resources of a task.

    Args:
        cpus: Cores.
        gpus: GPUs, or a fraction of one.
    """

    cpus: int
    gpus: float = 0.0


_LOCK = threading.Lock()
_PROFILES: dict[tuple[int, TaskResources], ResourceProfile] = {}
"""Profiles by context and resources: Spark keeps each until the session ends."""


def usual_resources(context: SparkContext) -> TaskResources:
    """Returns the resources of a task without a profile."""
    conf = context.getConf()
    return TaskResources(
        cpus=int(conf.get("spark.task.cpus") or 1),
        gpus=float(conf.get(f"spark.task.resource.{GPU}.amount") or 0),
    )


def profile_of(context: SparkContext, asked: TaskResources) -> ResourceProfile | None:
    """Returns the profile of a task's resources; None for the usual ones.

    Args:
        context: Context of the session.
        asked: Resources of a task.

    Raises:
        PlanError: The master of the session has no profiles.
    """
    if asked == usual_resources(context):
        return None
    key = (id(context), asked)
    with _LOCK:
        if key not in _PROFILES:
            _PROFILES[key] = _made(context, asked)
        return _PROFILES[key]


def _made(context: SparkContext, asked: TaskResources) -> ResourceProfile:
    request = TaskResourceRequests().cpus(asked.cpus)
    if asked.gpus:
        request = request.resource(GPU, asked.gpus)
    profile: Any = ResourceProfileBuilder().require(request).build
    manager: Any = context._jsc.sc().resourceProfileManager()  # pyright: ignore
    java: Any = profile._java_resource_profile
    try:
        manager.isSupported(java)
        manager.addResourceProfile(java)
    except Exception as error:  # Py4J's
        usual = usual_resources(context)
        raise PlanError(
            f"each worker was to have {shown(asked)}, and tasks of this session have "
            f"{shown(usual)}: {cause(str(error))}. Expected a master with resource "
            "profiles (standalone, YARN or Kubernetes), or no other numbers. Leave "
            "cpus, gpus and threads out, or set spark.task.cpus and "
            "spark.task.resource.gpu.amount when the session is created."
        ) from None
    return profile


def shown(resources: TaskResources) -> str:
    """Returns resources in words.

    Example:
        >>> shown(TaskResources(cpus=2, gpus=1.0)), shown(TaskResources(cpus=1))
        ('2 cores and 1 GPUs', '1 cores')
    """
    gpus = f" and {resources.gpus:g} GPUs" if resources.gpus else ""
    return f"{resources.cpus} cores{gpus}"
