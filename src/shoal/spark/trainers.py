"""Trainers of dist-keras: names, arguments and defaults; `shoal.fit` does the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from shoal import strategies
from shoal.spark.trainer import (
    AsynchronousDistributedTrainer,
    DistributedTrainer,
    Trainer,
)
from shoal.strategies.base import Strategy


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


class EnsembleTrainer(DistributedTrainer):
    """Trains several models apart, each on one worker and on all rows.

    As many train at a time as have room. `train` returns a list of models, the best
    first; `history.members` has the history of each.
    """

    further: ClassVar[Mapping[str, Any]] = {"num_ensembles": 2}

    num_ensembles: int

    @property
    def workers(self) -> int | tuple[int, int]:
        """Returns from one worker to one for each model."""
        return 1 if self.num_ensembles == 1 else (1, self.num_ensembles)

    def strategy(self) -> Strategy:
        """Returns `ensemble`."""
        return strategies.Ensemble(members=self.num_ensembles)

    def _result(self, model: Any) -> list[Any]:
        """Returns all models."""
        return list(self.history.models)


class EASGD(DistributedTrainer):
    """Elastic averaging in rounds, at each step; moving_rate = rho * learning_rate."""

    further: ClassVar[Mapping[str, Any]] = {
        "num_workers": 2, "rho": 5.0, "learning_rate": 0.01, "master_port": 5000
    }  # fmt: skip

    def strategy(self) -> Strategy:
        """Returns `easgd`."""
        return strategies.EASGD(
            rho=self.rho, learning_rate=self.learning_rate, period=1
        )


class AEASGD(AsynchronousDistributedTrainer):
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


class EAMSGD(AsynchronousDistributedTrainer):
    """`AEASGD` with Nesterov momentum on the workers."""

    further: ClassVar[Mapping[str, Any]] = {**AEASGD.further, "momentum": 0.9}

    def strategy(self) -> Strategy:
        """Returns `eamsgd`."""
        return strategies.EAMSGD(
            period=self.communication_window, rho=self.rho,
            learning_rate=self.learning_rate, momentum=self.momentum,
        )  # fmt: skip


class DOWNPOUR(AsynchronousDistributedTrainer):
    """Adds each worker's change to the center.

    `learning_rate` is that of the worker's optimizer, if it is given by name.
    """

    further: ClassVar[Mapping[str, Any]] = {
        "num_workers": 2, "communication_window": 5, "learning_rate": None
    }  # fmt: skip

    @property
    def named_rate(self) -> float | None:
        """Returns the rate of an optimizer that is given by name."""
        return self.learning_rate

    def strategy(self) -> Strategy:
        """Returns `downpour`."""
        return strategies.Downpour(period=self.communication_window)


class ADAG(AsynchronousDistributedTrainer):
    """Adds each worker's mean step to the center."""

    further: ClassVar[Mapping[str, Any]] = {
        "num_workers": 2, "communication_window": 12
    }  # fmt: skip

    def strategy(self) -> Strategy:
        """Returns `adag`."""
        return strategies.ADAG(period=self.communication_window)


class DynSGD(AsynchronousDistributedTrainer):
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


class AsyncDiLoCo(AsynchronousDistributedTrainer):
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
