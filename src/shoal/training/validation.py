"""The validation data of a run, checked to work with its model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

from shoal.data import ArraySource, Source
from shoal.data.chunks import ChunkedSource, first_rows
from shoal.data.training import VALIDATION
from shoal.errors import PlanError
from shoal.models.fixed_batch import check_steps, sample_rows
from shoal.models.inspection import check_rows
from shoal.plan.request import require_whole
from shoal.training.callback_list import safe_points, whole
from shoal.training.streaming import batches, edges, rows_of_steps


@final
@dataclass(frozen=True, kw_only=True)
class Validation:
    """Validation data and how it is read.

    Args:
        source: The rows, in memory or in chunks.
        batch_size: Rows of one step.
        steps: Steps to take, None for all.
    """

    source: ArraySource | ChunkedSource
    batch_size: int
    steps: int | None = None

    def of(self, model: Any, verbose: int | str = 0) -> Callable[..., dict[str, float]]:
        """Returns a function that evaluates a model, for `DriverOptions.validate`."""
        source = self.source
        if isinstance(source, ChunkedSource):
            return self._of_chunks(model, source, verbose)
        unpack = import_module("keras").utils.unpack_x_y_sample_weight
        x, y, weights = unpack(source.take(slice(None)))

        def validate(callbacks: Any = None) -> dict[str, float]:
            return whole(
                model, "evaluate", x, y, sample_weight=weights,
                batch_size=self.batch_size, steps=self.steps, verbose=verbose,
                callbacks=callbacks or safe_points(), return_dict=True,
            )  # fmt: skip

        return validate

    def _of_chunks(
        self, model: Any, source: ChunkedSource, verbose: int | str
    ) -> Callable[..., dict[str, float]]:
        """Returns the same for chunked data, which is read again each time."""
        rows = rows_of_steps(source, self.steps, self.batch_size)

        def validate(callbacks: Any = None) -> dict[str, float]:
            with batches(source, rows, self.batch_size) as found:
                return whole(
                    model, "evaluate", found, callbacks=callbacks or safe_points(),
                    verbose=verbose, return_dict=True,
                )  # fmt: skip

        return validate


def validating(validation: Validation | None, model: Any, how: str) -> dict[str, Any]:
    """Returns the validation part of `DriverOptions`.

    Args:
        validation: None for none.
        model: Model that is trained.
        how: "blocking" or "async".
    """
    if validation is None:
        return {}
    if how == "async":
        return {"late": validation}
    return {"validate": validation.of(model)}


def check_late(callbacks: Any) -> None:
    """Refuses callbacks that need scores which come after they were called.

    Args:
        callbacks: Callbacks in a form that Keras accepts.

    Raises:
        PlanError: A callback would have no effect.
    """
    for callback in import_module("keras").tree.flatten(callbacks or []):
        _check_late(callback)


def _check_late(callback: Any) -> None:
    name, monitor = type(callback).__name__, str(getattr(callback, "monitor", ""))
    path = str(getattr(callback, "filepath", ""))
    saves_all = name == "ModelCheckpoint" and not callback.save_best_only
    is_late = monitor.startswith("val_") and not saves_all
    if is_late or "{val_" in path:
        what = f"monitor={monitor!r}" if is_late else f"filepath={path!r}"
        raise PlanError(
            f"{name}({what}) with validation='async'. Expected a callback that does "
            "without the validation, whose result comes when later epochs train. "
            "Leave validation='async' out, or monitor a metric of the training; the "
            "best model by validation is kept in the run folder in any case."
        )


def read_validation(
    model: Any,
    held: Source | None,
    *,
    batch_size: Any,
    steps: Any,
    usual_batch_size: int,
) -> Validation | None:
    """Reads the arguments of `fit` about validation; None without data.

    Args:
        model: A prepared model.
        held: Source of the rows.
        batch_size: The user's value, None for the default.
        steps: The user's value, None for all rows.
        usual_batch_size: Batch size of training.

    Raises:
        ConfigError: A number is invalid.
        DataError: The model does not take the rows.
        PlanError: The model takes no steps of so many rows.
    """
    if batch_size is not None:
        batch_size = require_whole("validation_batch_size", batch_size, 1)
    if steps is not None:
        steps = require_whole("validation_steps", steps, 1)
    if not isinstance(held, (ArraySource, ChunkedSource)):
        return None
    natural = held.batch_size if isinstance(held, ChunkedSource) else None
    usual_batch_size = natural or usual_batch_size
    check_rows(model, first_rows(held, sample_rows(model)), VALIDATION)
    batch_size = batch_size or usual_batch_size
    rows = rows_of_steps(held, steps, batch_size)
    check_steps(
        model, edges(held, rows, batch_size), step="test_step", data=VALIDATION,
        size="validation_batch_size", count="validation_steps",
    )  # fmt: skip
    return Validation(source=held, batch_size=batch_size, steps=steps)
