"""A model in the Python processes of executors: sent once, opened once in each.

Imports neither Keras nor PySpark when it is loaded: a task sets the variables that a
backend reads before the backend is imported.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, final

from shoal.errors import ConfigError, PlanError
from shoal.launchers.cores import thread_variables
from shoal.launchers.versions import difference, versions

KEPT = 4
"""Models that stay open in a Python process, which Spark uses for many tasks."""

_OPEN: OrderedDict[str, Any] = OrderedDict()


@final
@dataclass(frozen=True, kw_only=True)
class SentModel:
    """A model for functions of tasks.

    Args:
        key: Digest of the model: a process opens equal models once.
        blob: Broadcast variable with the output of `travel.pack`.
        application: Id of the Spark application that it belongs to.
        backend: Keras backend that made it.
        variables: Environment variables for the backend.
        versions: Versions of the driver's packages.
    """

    key: str
    blob: Any
    application: str
    backend: str
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])

    def open(self) -> Any:
        """Returns the model; it is the same object for all tasks of a process.

        Raises:
            ConfigError: This process has another Keras backend.
            PlanError: The model cannot be made here.
        """
        found = _OPEN.get(self.key)
        if found is None:
            found = self._opened()
            while len(_OPEN) >= KEPT:
                _OPEN.popitem(last=False)
        _OPEN[self.key] = found
        _OPEN.move_to_end(self.key)
        return found

    def _opened(self) -> Any:
        if "keras" not in sys.modules:
            os.environ.update({**thread_variables(_cpus()), **self.variables})
            os.environ["KERAS_BACKEND"] = self.backend
        try:
            backend = import_module("keras").backend.backend()
            unpack = import_module("shoal.models.travel").unpack
            if backend == self.backend:
                return unpack(self.blob.value)
        except Exception as error:  # the user's constructors may raise anything
            differs = difference(versions(self.backend), self.versions)
            raise PlanError(
                f"the model cannot be opened on {socket.gethostname()} by "
                f"{sys.executable}: {error} Expected the packages of the driver"
                f"{'; differs: ' + differs if differs else ''}. Set PYSPARK_PYTHON, or "
                "send a packed environment (spark.archives)."
            ) from error
        raise ConfigError(
            f"a Python process on {socket.gethostname()} has the Keras backend "
            f"{backend!r} already, and the model was made with {self.backend!r}. "
            "Expected one backend in an application. Set KERAS_BACKEND before the "
            "session starts (spark.executorEnv.KERAS_BACKEND)."
        )


def _cpus() -> int:
    """Returns the cores of a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 1 if context is None else context.cpus()
