"""What trainers have in common: arguments, a copy of the model, and its records.

A trainer of your own is a class with a `strategy` of one line.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from inspect import Parameter, Signature
from typing import Any, ClassVar

import keras

from shoal.api import fit
from shoal.clusters.finding import find_cluster
from shoal.clusters.spark import Spark
from shoal.data import kept_frames
from shoal.data.located import is_frame
from shoal.errors import ConfigError
from shoal.plan.request import require_whole
from shoal.spark import shuffling
from shoal.spark.attributes import Attributes
from shoal.spark.history import WorkerRecord, history_executors_average, history_of
from shoal.spark.optimizer_names import optimizer_of
from shoal.spark.serialization import to_json
from shoal.strategies.base import Strategy

NEEDED = ("keras_model", "worker_optimizer", "loss")
COMMON: Mapping[str, Any] = {
    "metrics": ("accuracy",), "features_col": "features", "label_col": "label",
    "batch_size": 32, "num_epoch": 1,
}  # fmt: skip
BY_NAME: Mapping[str, Any] = {"cluster": "spark", "loss_weights": None}
DISTRIBUTED: Mapping[str, Any] = {"master_port": None, "parallelism_factor": 1}
LEAST = {
    "batch_size": 1, "num_epoch": 1, "num_workers": 1, "num_ensembles": 1,
    "communication_window": 0, "parallelism_factor": 1,
}  # fmt: skip


class Trainer(Attributes, ABC):
    """Trains copies of a model on DataFrames.

    The arguments are, in this order: keras_model, worker_optimizer, loss, metrics,
    features_col, label_col, batch_size, num_epoch, and those of the class (`further`).
    Each is an attribute, which may be set before `train`.

    Args:
        keras_model: The model. It is not changed: each training begins at its weights.
        worker_optimizer: Name of an optimizer, with the rate that it had in Keras 1, or
            an optimizer.
        loss: Loss, as for `compile`.
        metrics: Metrics, as for `compile`.
        loss_weights: Weights of losses, as for `compile`; by name.
        features_col: Column of x, several that become one array, or a mapping from
            inputs to columns.
        label_col: Column of y, in the same forms.
        batch_size: Rows of a step, at least 1; of each worker, but for `AllReduce`.
        num_epoch: Passes over the rows, at least 1.
        num_workers: Number of workers, at least 1. Training begins with those that have
            room, and others join.
        num_ensembles: Models of an `EnsembleTrainer`, at least 1.
        communication_window: Steps between two exchanges, at least 1, or 0 for an
            epoch.
        rho: Elasticity of elastic trainers: `moving_rate = rho * learning_rate`.
        learning_rate: Elastic rate of elastic trainers; of others the rate of the
            workers' optimizer, if that is given by name.
        momentum: Nesterov momentum of `EAMSGD`.
        master_port: Port at which the server's agents listen on Spark, or the next free
            one; None for any. By name, except for `EASGD`.
        parallelism_factor: Factor by which the groups of rows that workers are given
            are smaller, at least 1; by name.
        cluster: Where workers run, as for `shoal.fit`; by name.
        options: Other arguments of `shoal.fit`, such as callbacks, validation_data and
            custom_objects.

    Raises:
        TypeError: An argument is missing.
        ConfigError: A number is too small.
    """

    further: ClassVar[Mapping[str, Any]] = {}
    """Arguments after the common ones, in order, with their defaults."""

    by_name: ClassVar[Mapping[str, Any]] = BY_NAME
    """Arguments that are passed by name, with their defaults."""

    keras_model: Any
    loss: Any
    metrics: Any
    loss_weights: Any
    features_col: Any
    label_col: Any
    cluster: Any
    options: dict[str, Any]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        plain, named = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
        given = {**COMMON, **cls.further}
        by_name = {n: v for n, v in cls.by_name.items() if n not in given}
        cls.__signature__ = Signature(  # pyright: ignore[reportAttributeAccessIssue]
            [
                *(Parameter(name, plain) for name in NEEDED),
                *(Parameter(n, plain, default=value) for n, value in given.items()),
                *(Parameter(n, named, default=value) for n, value in by_name.items()),
                Parameter("options", Parameter.VAR_KEYWORD),
            ]
        )

    def __init__(self, *arguments: Any, **named: Any) -> None:
        signature: Signature = type(self).__signature__  # pyright: ignore
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            if name in LEAST:
                value = require_whole(name, value, LEAST[name])
            setattr(self, name, value)
        self.history: Any = None
        self._seconds = 0.0

    @abstractmethod
    def strategy(self) -> Strategy:
        """Returns how workers agree."""

    @property
    def workers(self) -> int | tuple[int, int]:
        """Returns the number of workers, as for `shoal.fit`."""
        return 1

    @property
    def run(self) -> Any:
        """Returns the run of the last training.

        Raises:
            ConfigError: There was none.
        """
        if self.history is None:
            raise ConfigError(
                f"{type(self).__name__} has not trained yet. Expected a trained one. "
                "Call train(df) first."
            )
        return self.history.run

    @property
    def num_updates(self) -> int:
        """Returns the messages of workers that the server has applied."""
        return int(self.run.summary().exchanges)

    def get_training_time(self) -> float:
        """Returns the seconds of the last training, with all that it waited for."""
        return self._seconds

    def get_history(self) -> list[WorkerRecord]:
        """Returns the exchanges of all workers, in the order of their commit.

        Each has `worker_id`, `iteration` (steps of the worker), `timestamp`, and
        the loss and those metrics that are means, over the rows of the exchange.

        Raises:
            ConfigError: Nothing was trained, or run=False keeps no records.
        """
        return history_of(self.run)

    def get_averaged_history(self) -> list[WorkerRecord]:
        """Returns the means of the n-th exchanges of all workers."""
        return history_executors_average(self.get_history())

    def get_executor_history(self, executor_id: int) -> list[WorkerRecord]:
        """Returns the exchanges of one worker.

        Args:
            executor_id: Rank of the worker, from 0.
        """
        return [r for r in self.get_history() if r["worker_id"] == executor_id]

    def optimizer(self) -> Any:
        """Returns a new optimizer for each training."""
        rate = self.named_rate if self.worker_rate is None else self.worker_rate
        found = optimizer_of(self.worker_optimizer, rate)
        if self.worker_rate is not None:
            found.learning_rate = self.worker_rate
        return found

    def serialize(self) -> str:
        """Returns the class and its arguments, without the model, as JSON.

        `shoal.spark.deserialize_trainer` reads it.

        Raises:
            ConfigError: An argument has no form in JSON, such as a callback.
        """
        signature: Signature = type(self).__signature__  # pyright: ignore
        given = {n: getattr(self, n) for n in signature.parameters if n != "options"}
        return to_json(type(self).__name__, {**given, **self.options})

    def train(self, dataframe: Any, shuffle: bool = False) -> Any:
        """Trains a copy of the model; returns it, compiled.

        Args:
            dataframe: DataFrame with the columns.
            shuffle: Whether rows are put into a random order before. Training mixes
                them in any case.
        """
        model = keras.models.clone_model(self.keras_model)
        model.set_weights(self.keras_model.get_weights())
        model.compile(
            optimizer=self.optimizer(), loss=self.loss, metrics=list(self.metrics),
            loss_weights=self.loss_weights,
        )  # fmt: skip
        rows = shuffling.shuffle(dataframe) if shuffle else dataframe
        began = time.monotonic()
        with self._cut(rows):
            self.history = fit(
                model, rows, features=self.features_col, label=self.label_col,
                batch_size=self.batch_size, epochs=self.num_epoch,
                strategy=self.strategy(), workers=self.workers,
                cluster=self._cluster(), **self.options,
            )  # fmt: skip
        self._seconds = time.monotonic() - began
        return self._result(model)

    def _result(self, model: Any) -> Any:
        """Returns what `train` returns."""
        return model

    def _cluster(self) -> Any:
        """Returns the cluster, where it is Spark with the port of the trainer."""
        self.check_master()
        cluster = find_cluster(self.cluster)
        if isinstance(cluster, Spark) and cluster.port is None and self.master_port:
            return replace(cluster, port=self.master_port)
        return self.cluster

    def _cut(self, rows: Any) -> Any:
        """Has the rows of a frame cut into smaller groups while it is trained on."""
        if self.parallelism_factor == 1 or not is_frame(rows):
            return nullcontext()
        return kept_frames.cut_finer(rows, self.parallelism_factor)


class DistributedTrainer(Trainer):
    """Trains on several workers."""

    further: ClassVar[Mapping[str, Any]] = {"num_workers": 2}
    by_name: ClassVar[Mapping[str, Any]] = {**BY_NAME, **DISTRIBUTED}

    rho: float
    momentum: float

    @property
    def workers(self) -> int | tuple[int, int]:
        """Returns from one worker to all of them."""
        return 1 if self.num_workers == 1 else (1, self.num_workers)


class AsynchronousDistributedTrainer(DistributedTrainer):
    """Trains on several workers, none of which waits for another one."""

    further: ClassVar[Mapping[str, Any]] = {"num_workers": 2, "communication_window": 5}
