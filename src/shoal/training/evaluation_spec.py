"""The work of the validation process: it scores the weights of one epoch at a time.

Each message is complete, so that a process which replaces a
lost one can continue with any of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from shoal.engine.worker.factories import OpenMapped
from shoal.launchers.shared import map_inherited
from shoal.launchers.titles import title
from shoal.models.pickling import loads
from shoal.models.travel import unpack
from shoal.training.validation import Validation

Weights: TypeAlias = dict[int, npt.NDArray[Any]]
"""By index in `model.variables`: variables that training changes; others are packed."""


@final
@dataclass(frozen=True, kw_only=True)
class EvaluationSpec:
    """Where the validation process reads constant data and writes results.

    Args:
        model: Descriptor of the output of `travel.pack`.
        data: Descriptor of the rows, if they are arrays.
        chunks: Source of the rows, if they are not.
        results: Descriptor of lines of JSON, one for each epoch that is scored.
        batch_size: Rows of one step.
        run: Id of the run, empty for none.
        steps: Steps of a validation, None for all rows.
    """

    model: int
    data: int
    chunks: bytes
    results: int
    batch_size: int
    steps: int | None
    run: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Ask:
    """Weights to score.

    Args:
        spec: Spec of the run.
        epoch: Epoch of the weights.
        weights: Variables that training has changed.
    """

    spec: EvaluationSpec
    epoch: int
    weights: Weights


def score_epoch(ask: Ask) -> None:
    """Validates a model with the weights of an epoch, and writes the result."""
    title("evaluator", ask.spec.run)
    model, validate = _sit(ask.spec)
    variables = model.variables
    for place, value in ask.weights.items():
        variables[place].assign(value)
    found = {name: np.asarray(value).tolist() for name, value in validate().items()}
    line = json.dumps({"epoch": ask.epoch, "metrics": found}) + "\n"
    results = ask.spec.results
    # In one write, at the end: readers see whole lines.
    os.pwrite(results, line.encode(), os.fstat(results).st_size)


@cache
def _sit(spec: EvaluationSpec) -> tuple[Any, Callable[..., dict[str, float]]]:
    """Returns the model and its validation, made once in a process."""
    model = unpack(map_inherited(spec.model)[:])
    validation = Validation(
        source=loads(spec.chunks)
        if spec.chunks
        else OpenMapped(descriptor=spec.data)(),
        batch_size=spec.batch_size,
        steps=spec.steps,
    )
    return model, validation.of(model)
