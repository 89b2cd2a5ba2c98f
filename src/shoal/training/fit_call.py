"""A call of `fit`: the request, the data, and the options of this process.

This file decides where an argument of `fit` belongs. `fit` fills a call by name;
`plan` and `Session.fit`, which accept all arguments of `fit`, sort them here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, final

import numpy as np

from shoal.clusters.base import Cluster
from shoal.clusters.yarn import Yarn
from shoal.data.located import FileArguments
from shoal.data.trees import Tree
from shoal.errors import ConfigError
from shoal.plan import environment
from shoal.plan.request import Request, Workers
from shoal.registry import did_you_mean
from shoal.runs.base import Run
from shoal.strategies import get

STRATEGY = "all_reduce"
LOOKED_UP = ("workers", "cluster")
"""Options that a call keeps as written, until the machines are known."""
DATA = {
    "model", "request", "strategy", "files", "x", "y", "sample_weight", "class_weight",
    "validation_data", "validation_freq", "callbacks", "custom_objects",
}  # fmt: skip
"""Arguments that may hold arrays, or hold other arguments."""
DERIVED = ("known_clusters", "has_callbacks")
"""Fields of a request that are not arguments."""


@final
@dataclass(frozen=True, kw_only=True)
class FitCall:
    """A call of `shoal.fit`, which explains the arguments.

    Args:
        model: The model, or a callable that makes it.
        request: The options that decide the plan.
        workers: Workers as written; `request` gets the number.
        cluster: Cluster as written; `request` gets the name.
        x: Inputs.
        y: Targets.
        sample_weight: Weights of samples.
        class_weight: Weights of classes.
        validation_split: Share of the rows to validate on.
        validation_data: Data to validate on.
        validation_steps: Steps of a validation.
        validation_batch_size: Rows of a step of a validation.
        files: Arguments about files, if `x` names some.
        callbacks: Keras callbacks.
        verbose: Verbosity.
        echo: Whether to print the workers' output.
        run: Name or place of the records.
        checkpoint_every: Interval of checkpoints.
        custom_objects: Classes and functions that Keras cannot find by itself.
    """

    model: Any
    request: Request
    workers: Workers | Yarn = "auto"
    cluster: str | Cluster = "local"
    x: Tree = None
    y: Tree = None
    sample_weight: Tree = None
    class_weight: Mapping[int, float] | None = None
    validation_split: float = 0.0
    validation_data: Any = None
    validation_steps: int | None = None
    validation_batch_size: int | None = None
    files: FileArguments = field(default_factory=FileArguments)
    callbacks: Any = None
    verbose: int | str = "auto"
    echo: bool = False
    run: str | os.PathLike[str] | Run | bool | None = None
    checkpoint_every: float | str | bool | None = None
    custom_objects: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Refuses arrays in the place of options, as by position.

        Raises:
            ConfigError: An option is an array.
        """
        for owner in (self, self.request):
            for name in _names(type(owner)) - DATA:
                value = getattr(owner, name)
                if hasattr(value, "__array__") and np.ndim(value):
                    raise ConfigError(
                        f"{name} is an array of shape {tuple(value.shape)}. Expected "
                        "one value. Pass arrays as x, y, sample_weight or "
                        f"validation_data, and leave {name} out."
                    )

    @classmethod
    def of(cls, **given: Any) -> FitCall:
        """Sorts arguments of `fit` by name.

        Raises:
            ConfigError: `fit` has no argument of that name, or the strategy is unknown.
        """
        options = _names(Request) - {*LOOKED_UP, *DERIVED}
        files = _names(FileArguments)
        own = _names(cls) - {"request", "files"}
        known = options | files | own
        for name in given:
            if name not in known:
                raise ConfigError(did_you_mean("argument of fit", name, known))

        def taken(names: set[str]) -> dict[str, Any]:
            return {name: value for name, value in given.items() if name in names}

        given["cluster"] = cluster_of(given.get("cluster"))
        given["strategy"] = get(given.get("strategy", STRATEGY))
        return cls(
            request=Request(**taken(options)),
            files=FileArguments(**taken(files)),
            **taken(own),
        )


def cluster_of(given: Any) -> Any:
    """Returns the `cluster` of a call: the argument, else that of SHOAL_CLUSTER."""
    return environment().cluster if given is None else given


def _names(kind: type[FitCall | FileArguments | Request]) -> set[str]:
    return {field.name for field in fields(kind)}
