"""Trainers of dist-keras: names, arguments and defaults; `shoal.fit` does the work.

A trainer of your own is a class with a `strategy` of one line.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from inspect import Parameter, Signature
from typing import Any, ClassVar

import keras

from shoal import strategies
from shoal.api import fit
from shoal.errors import ConfigError
from shoal.plan.request import require_whole
from shoal.spark import shuffling
from shoal.spark.optimizer_names import optimizer_of
from shoal.strategies.base import Strategy

NEEDED = ("keras_model", "worker_optimizer", "loss")
COMMON: Mapping[str, Any] = {
    "metrics": ("accuracy",), "features_col": "features", "label_col": "label",
    "batch_size": 32, "num_epoch": 1,
}  # fmt: skip
BY_NAME: Mapping[str, Any] = {"cluster": "spark", "loss_weights": None}
LEAST = {"batch_size": 1, "num_epoch": 1, "num_workers": 1, "communication_window": 0}


class Trainer(ABC):
    """Trains copies of a model on DataFrames.

    The arguments are, in this order: keras_model, worker_optimizer, loss, metrics,
    features_col, label_col, batch_size, num_epoch, and those of the class (`further`).
    Each is an attribute, which may be set before `train`.

    Args:
        keras_model: The model. It is not changed: each training begins at its weights.
        worker_optimizer: Name of an optimizer, with the rate that it had in Keras 1, or
            an optimizer.
        loss: Loss, as for `compile`; so are `metrics` and `loss_weights`.
        features_col: Column of x, several that become one array, or a mapping from
            inputs to columns.
        label_col: Column of y, in the same forms.
        batch_size: Rows of a step; of each worker, but for `AllReduce`.
        num_epoch: Passes over the rows.
        num_workers: Number of workers. Training begins with those that have room, and
            others join.
        communication_window: Steps between two exchanges, 0 for an epoch.
        cluster: Where workers run, as for `shoal.fit`; by name.
        options: Other arguments of `shoal.fit`, such as callbacks and validation_data.

    Raises:
        TypeError: An argument is missing.
        ConfigError: A number is too small.
    """

    further: ClassVar[Mapping[str, Any]] = {}
    """Arguments after the common ones, in order, with their defaults."""

    keras_model: Any
    worker_optimizer: Any
    loss: Any
    metrics: Any
    loss_weights: Any
    features_col: Any
    label_col: Any
    batch_size: int
    num_epoch: int
    cluster: Any
    options: dict[str, Any]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        plain, named = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
        given = {**COMMON, **cls.further}
        cls.__signature__ = Signature(  # pyright: ignore[reportAttributeAccessIssue]
            [
                *(Parameter(name, plain) for name in NEEDED),
                *(Parameter(n, plain, default=value) for n, value in given.items()),
                *(Parameter(n, named, default=value) for n, value in BY_NAME.items()),
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
                f"{type(self).__name__} has not trained yet. Expected `train` before. "
                "Call train(df)."
            )
        return self.history.run

    def get_training_time(self) -> float:
        """Returns the seconds of the last training, with all that it waited for."""
        return self._seconds

    def optimizer(self) -> Any:
        """Returns a new optimizer for each training."""
        return optimizer_of(self.worker_optimizer)

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
        self.history = fit(
            model, rows, features=self.features_col, label=self.label_col,
            batch_size=self.batch_size, epochs=self.num_epoch,
            strategy=self.strategy(), workers=self.workers, cluster=self.cluster,
            **self.options,
        )  # fmt: skip
        self._seconds = time.monotonic() - began
        return model


class DistributedTrainer(Trainer):
    """Trains on several workers."""

    further: ClassVar[Mapping[str, Any]] = {"num_workers": 2}

    num_workers: int
    communication_window: int
    rho: float
    learning_rate: Any
    momentum: float

    @property
    def workers(self) -> int | tuple[int, int]:
        """Returns from one worker to all of them."""
        return 1 if self.num_workers == 1 else (1, self.num_workers)


class SingleTrainer(Trainer):
    """Trains on one worker, as Keras does: the baseline of every comparison."""

    def strategy(self) -> Strategy:
        """Returns `single`."""
        return strategies.Single()


class AveragingTrainer(DistributedTrainer):
    """Averages weights once an epoch."""

    def strategy(self) -> Strategy:
        """Returns `averaging`."""
        return strategies.Averaging()


class EASGD(DistributedTrainer):
    """Elastic averaging in rounds, at each step; moving_rate = rho * learning_rate."""

    further: ClassVar[Mapping[str, Any]] = {
        "num_workers": 2, "rho": 5.0, "learning_rate": 0.01
    }  # fmt: skip

    def strategy(self) -> Strategy:
        """Returns `easgd`."""
        return strategies.EASGD(rho=self.rho, learning_rate=self.learning_rate)


class AEASGD(DistributedTrainer):
    """Elastic averaging, asynchronous; moving_rate = rho * learning_rate."""

    further: ClassVar[Mapping[str, Any]] = {
        "num_workers": 2, "communication_window": 32, "rho": 5.0, "learning_rate": 0.1
    }  # fmt: skip

    def strategy(self) -> Strategy:
        """Returns `aeasgd`."""
        return strategies.AEASGD(
            period=self.communication_window, rho=self.rho,
            learning_rate=self.learning_rate,
        )  # fmt: skip


class EAMSGD(DistributedTrainer):
    """`AEASGD` with Nesterov momentum on the workers."""

    further: ClassVar[Mapping[str, Any]] = {**AEASGD.further, "momentum": 0.9}

    def strategy(self) -> Strategy:
        """Returns `eamsgd`."""
        return strategies.EAMSGD(
            period=self.communication_window, rho=self.rho,
            learning_rate=self.learning_rate, momentum=self.momentum,
        )  # fmt: skip


class DOWNPOUR(DistributedTrainer):
    """Adds each worker's change to the center.

    `learning_rate` is that of the worker's optimizer, if it is given by name.
    """

    further: ClassVar[Mapping[str, Any]] = {
        "num_workers": 2, "communication_window": 5, "learning_rate": None
    }  # fmt: skip

    def optimizer(self) -> Any:
        """Returns a new optimizer for each training."""
        return optimizer_of(self.worker_optimizer, self.learning_rate)

    def strategy(self) -> Strategy:
        """Returns `downpour`."""
        return strategies.Downpour(period=self.communication_window)


class ADAG(DistributedTrainer):
    """Adds each worker's mean step to the center."""

    further: ClassVar[Mapping[str, Any]] = {
        "num_workers": 2, "communication_window": 12
    }  # fmt: skip

    def strategy(self) -> Strategy:
        """Returns `adag`."""
        return strategies.ADAG(period=self.communication_window)


class DynSGD(DistributedTrainer):
    """Adds each worker's change to the center, divided by its staleness."""

    further: ClassVar[Mapping[str, Any]] = {
        "num_workers": 2, "communication_window": 5
    }  # fmt: skip

    def strategy(self) -> Strategy:
        """Returns `dynsgd`."""
        return strategies.DynSGD(period=self.communication_window)


class LocalSGD(DistributedTrainer):
    """Averages weights every few steps."""

    further: ClassVar[Mapping[str, Any]] = {
        "num_workers": 2, "communication_window": strategies.LocalSGD().period
    }  # fmt: skip

    def strategy(self) -> Strategy:
        """Returns `local_sgd`."""
        return strategies.LocalSGD(period=self.communication_window)


class DiLoCo(DistributedTrainer):
    """Averages changes every tens or hundreds of steps, with momentum."""

    further: ClassVar[Mapping[str, Any]] = {
        "num_workers": 2, "communication_window": strategies.DiLoCo().period
    }  # fmt: skip

    def strategy(self) -> Strategy:
        """Returns `diloco`."""
        return strategies.DiLoCo(period=self.communication_window)


class AsyncDiLoCo(DistributedTrainer):
    """`DiLoCo` without rounds."""

    further: ClassVar[Mapping[str, Any]] = {
        "num_workers": 2, "communication_window": strategies.AsyncDiLoCo().period
    }  # fmt: skip

    def strategy(self) -> Strategy:
        """Returns `async_diloco`."""
        return strategies.AsyncDiLoCo(period=self.communication_window)


class AllReduce(DistributedTrainer):
    """Averages gradients at every step."""

    def strategy(self) -> Strategy:
        """Returns `all_reduce`."""
        return strategies.AllReduce()


AsynchronousEASGD = AEASGD
AsynchronousEAMSGD = EAMSGD
