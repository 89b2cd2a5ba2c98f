"""Metrics of many processes as one: states are summed, then asked for their result.

This file decides how the state variables of a model's metrics lie in a vector, how the
vectors of several workers become one set of results, and which metrics cannot be merged
like this. Means of results would be wrong for shards of unequal size and for every
metric that is not a mean (AUC, precision, F1); sums of states are right for all of
Keras' own, because each of their variables is a sum over samples. Metrics that cannot
be merged are left out. A state that `reset_state` does not reset continues from epoch
to epoch: the user's model carries it, and workers add to it. After the states come the
sums of a user's `train_step` logs, with the samples they cover: a log is the number of
one step, and the result is the mean over samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from shoal.errors import PlanError
from shoal.models.metrics_probe import unmergeable

__all__ = ["MetricEntry", "MetricStates", "build_metrics", "pythonify", "unmergeable"]

StateVector: TypeAlias = npt.NDArray[np.float64]
"""States of all metrics, less their initial values: 1-D, float64. Adds up."""


@final
@dataclass(frozen=True, kw_only=True)
class MetricEntry:
    """One state variable of a metric.

    Args:
        name: Names of the metric and of the variable.
        shape: Shape of the variable.
        dtype: Dtype of the variable.
        initial: Value after a reset; zeros if it is unknown.
        is_kept: Whether a reset leaves it unchanged.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    initial: npt.NDArray[np.float64]
    is_kept: bool = False


@final
@dataclass(frozen=True)
class MetricStates:
    """The order of metric variables in a flat vector, the same in every process.

    Args:
        entries: One for each of `model.metrics_variables`.
        logs: Logs of `train_step` besides metrics, see `read_step_logs`.
        unmergeable: Metrics left out of results, by their names in a history.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile(loss="mse")
        >>> build_metrics(model, x=np.ones((3, 2), "f4"), y=np.ones((3, 1), "f4"))
        >>> [entry.name for entry in MetricStates.of(model).entries]
        ['loss/total', 'loss/count']
    """

    entries: tuple[MetricEntry, ...]
    logs: tuple[str, ...] = ()
    unmergeable: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        model: Any,
        *,
        logs: tuple[str, ...] = (),
        unmergeable: tuple[str, ...] = (),
    ) -> MetricStates:
        """Reads the layout of a model whose metrics are built; see `build_metrics`."""
        variables = list(model.metrics_variables)
        return cls(
            tuple(
                MetricEntry(
                    name=name,
                    shape=tuple(variable.shape),
                    dtype=str(variable.dtype),
                    initial=np.zeros(int(np.prod(variable.shape)))
                    if initial is None
                    else initial.astype(np.float64).reshape(-1),
                    is_kept=initial is None,
                )
                for name, variable, initial in zip(
                    _names(model), variables, _initial_values(model), strict=True
                )
            ),
            logs,
            unmergeable,
        )

    @cached_property
    def size(self) -> int:
        """Returns the length of the vector."""
        states = sum(entry.initial.size for entry in self.entries)
        return states + (len(self.logs) + 1 if self.logs else 0)

    @cached_property
    def loss_at(self) -> tuple[int, ...]:
        """Returns the indices that are not finite when the loss is not."""
        found: list[int] = []
        start = 0
        for entry in self.entries:
            if entry.name.startswith("loss/"):
                found += range(start, start + entry.initial.size)
            start += entry.initial.size
        return (*found, *(start + i for i, n in enumerate(self.logs) if n == "loss"))

    def to_vector(self, values: Sequence[Any]) -> StateVector:
        """Flattens the values of the metric variables, less the initial ones.

        Args:
            values: Arrays or Keras variables, in the order of the entries.
        """
        vector = np.zeros(self.size, np.float64)
        start = 0
        for entry, value in zip(self.entries, values, strict=True):
            end = start + entry.initial.size
            array = value.numpy() if hasattr(value, "numpy") else value
            flat = np.asarray(array, np.float64).reshape(-1)
            vector[start:end] = flat - entry.initial
            start = end
        return vector

    def from_vector(self, vector: StateVector) -> list[npt.NDArray[Any]]:
        """The inverse of `to_vector`: values in the variables' shapes and dtypes."""
        values: list[npt.NDArray[Any]] = []
        start = 0
        for entry in self.entries:
            end = start + entry.initial.size
            flat = vector[start:end] + entry.initial
            if np.issubdtype(np.dtype(entry.dtype), np.integer):
                flat = np.rint(flat)
            values.append(flat.reshape(entry.shape).astype(entry.dtype))
            start = end
        return values

    def read(self, model: Any) -> StateVector:
        """Returns the states of a model's metrics since the last reset."""
        return self.to_vector(model.metrics_variables)

    @cached_property
    def has_kept(self) -> bool:
        """Whether a metric has states that continue from epoch to epoch."""
        return any(entry.is_kept for entry in self.entries)

    def read_kept(self, model: Any) -> StateVector:
        """Returns the states that no reset changes, with zeros for all others.

        An epoch adds the counts of workers to them, see `results`.
        """
        vector = np.zeros(self.size, np.float64)
        if not self.has_kept:
            return vector
        start = 0
        for entry, variable in zip(self.entries, model.metrics_variables, strict=True):
            end = start + entry.initial.size
            if entry.is_kept:
                vector[start:end] = np.asarray(variable.numpy()).reshape(-1)
            start = end
        return vector

    def write_kept(self, model: Any, vector: StateVector) -> None:
        """Sets the states that no reset changes in a model's metrics."""
        if not self.has_kept:
            return
        values = self.from_vector(vector)
        variables = model.metrics_variables
        for entry, variable, value in zip(self.entries, variables, values, strict=True):
            if entry.is_kept:
                variable.assign(value)

    def merge(self, states: Iterable[StateVector]) -> StateVector:
        """Adds the vectors of several workers, or of several windows.

        Example:
            >>> MetricStates(()).merge([])
            array([], dtype=float64)
        """
        total = np.zeros(self.size, np.float64)
        for state in states:
            total += state
        return total

    def results(self, model: Any, vector: StateVector) -> dict[str, float]:
        """Returns the results of the model's metrics for a merged state.

        The metrics keep their own state.

        Args:
            model: Model from which this layout was read; its metrics are built.
            vector: Sum of the workers' vectors.

        Returns:
            Floats under the keys, and in the order, of a Keras history.

        Raises:
            PlanError: The model was compiled with other metrics since then.
        """
        keras = import_module("keras")
        variables = list(model.metrics_variables)
        if len(variables) != len(self.entries):
            raise PlanError(
                f"the metrics of model '{model.name}' have {len(variables)} state "
                f"variables, the merged state has {len(self.entries)}. Expected the "
                "metrics the run began with. Do not compile the model while it trains."
            )
        mapping = [
            (variable, keras.ops.convert_to_tensor(value, dtype=variable.dtype))
            for variable, value in zip(variables, self.from_vector(vector), strict=True)
        ]
        with keras.StatelessScope(state_mapping=mapping):
            found = dict(model.get_metrics_result())
            for name in self._left_out(model):
                found.pop(name, None)
            return pythonify({**found, **self._logged(vector)})

    def _left_out(self, model: Any) -> set[str]:
        """Returns keys of metrics that cannot be merged; a metric may have several."""
        names = set(self.unmergeable)
        for metric in model.metrics if names else ():
            if metric.name in names and isinstance(found := metric.result(), dict):
                names.update(found)
        return names

    def _logged(self, vector: StateVector) -> dict[str, float]:
        """Returns the means of logs of `train_step`; 0 before the first step."""
        if not self.logs:
            return {}
        *sums, rows = vector[-len(self.logs) - 1 :]
        means = [float(total / rows) if rows else 0.0 for total in sums]
        return dict(zip(self.logs, means, strict=True))


def loss_totals(model: Any) -> tuple[int, ...]:
    """Returns indices, among the sums, of losses that were multiplied by rows.

    They are those of Keras' trackers of the loss and of each output's loss.

    Args:
        model: A model whose metrics are built.
    """
    compiled: Any = model._compile_loss
    trackers = [model._loss_tracker, *(compiled.metrics if compiled else ())]
    ours = {id(tracker) for tracker in trackers}
    found: list[int] = []
    start = 0
    for metric in model.metrics:
        for variable in metric.variables:
            if id(metric) in ours and variable.name == "total":
                found.append(start)
            start += int(np.prod(variable.shape))
    return tuple(found)


def build_metrics(model: Any, *, x: Any, y: Any, sample_weight: Any = None) -> None:
    """Creates the state variables of loss and metrics, which Keras delays to `fit`.

    Nothing is computed. Metrics that are already built keep their state.

    Args:
        model: A compiled, built model.
        x: A few rows of input, in the structure of `fit`.
        y: Their targets.
        sample_weight: Their weights, when training uses weights.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile(loss="mse", metrics=["mae"])
        >>> build_metrics(model, x=np.ones((3, 2), "f4"), y=np.ones((3, 1), "f4"))
        >>> len(model.metrics_variables)
        4
    """
    model._symbolic_build(data_batch=(x, y, sample_weight))


def pythonify(logs: dict[str, Any]) -> dict[str, float]:
    """Turns results into floats the way Keras' `fit` does: sorted, nested ones flat.

    Example:
        >>> pythonify({"loss": np.float32(2.0), "f1": {"b": 1, "a": 0}})
        {'a': 0.0, 'b': 1.0, 'loss': 2.0}
    """
    flat: dict[str, float] = {}
    for key, value in sorted(logs.items()):
        if isinstance(value, dict):
            flat.update(pythonify(value))
            continue
        try:
            flat[key] = float(value)
        except (TypeError, ValueError):  # for example an array by class
            flat[key] = value
    return flat


def _names(model: Any) -> list[str]:
    """Names every variable by its metric, if that is known."""
    return [
        f"{getattr(metric, 'name', 'metric')}/{variable.name}"
        for metric in model.metrics
        for variable in metric.variables
    ]


def _initial_values(model: Any) -> list[Any]:
    """Returns the values after a reset, without a reset; None for kept ones."""
    keras = import_module("keras")
    variables = list(model.metrics_variables)
    with keras.StatelessScope() as scope:
        for metric in model.metrics:
            metric.reset_state()
        values = [scope.get_current_value(variable) for variable in variables]
        # NumPy itself does not copy from a device.
        return [v if v is None else keras.ops.convert_to_numpy(v) for v in values]
