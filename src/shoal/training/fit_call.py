"""What `fit` was called with: the request, the data, and what concerns this process.

This file decides where an argument of `fit` belongs. `fit` fills a call by name;
`plan` and `Session.fit`, which take any arguments of `fit`, have it sorted here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, final

from shoal.clusters.base import Cluster
from shoal.clusters.yarn import Yarn
from shoal.data.located import FileArguments
from shoal.data.trees import Tree
from shoal.errors import ConfigError
from shoal.plan.request import Request, Workers
from shoal.registry import did_you_mean
from shoal.runs.base import Run
from shoal.strategies import get

STRATEGY = "all_reduce"
LOOKED_UP = ("workers", "cluster")
"""Options that a call has as they were written, until machines are looked at."""
DERIVED = ("known_clusters", "has_callbacks")
"""Fields of a request that are no arguments."""


@final
@dataclass(frozen=True, kw_only=True)
class FitCall:
    """A call of `shoal.fit`; for what the arguments mean see there.

    Args:
        model: The model, or what makes it.
        request: The options that decide what will happen.
        workers: As written; `request` gets the number.
        cluster: As written; `request` gets the name.
        x: Inputs.
        y: Targets.
        sample_weight: Weights of samples.
        class_weight: Weights of classes.
        validation_split: Share of the rows to validate on.
        validation_data: What to validate on.
        validation_steps: Steps of a validation.
        validation_batch_size: Rows of a step of a validation.
        files: How files are read, where `x` names some.
        callbacks: Keras callbacks.
        verbose: What is shown.
        echo: Whether to print what workers print.
        run: Where records are kept.
        checkpoint_every: What may pass between two checkpoints.
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

    @classmethod
    def of(cls, **given: Any) -> FitCall:
        """Sorts arguments of `fit` that came by name.

        Raises:
            ConfigError: One of them `fit` does not have, or the strategy is unknown.
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

        given["strategy"] = get(given.get("strategy", STRATEGY))
        return cls(
            request=Request(**taken(options)),
            files=FileArguments(**taken(files)),
            **taken(own),
        )


def _names(kind: type[FitCall | FileArguments | Request]) -> set[str]:
    return {field.name for field in fields(kind)}
