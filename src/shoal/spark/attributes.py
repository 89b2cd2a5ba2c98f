"""Attributes of trainers that scripts of dist-keras set and get by methods."""

from __future__ import annotations

from typing import Any

from shoal.errors import ConfigError
from shoal.plan.request import require_whole
from shoal.spark.optimizer_names import rate_of

PREFETCH = 100
"""Mini-batches that workers of dist-keras read ahead."""


class Attributes:
    """Setters and getters; each is the attribute of a similar name."""

    worker_optimizer: Any
    batch_size: int
    num_epoch: int
    num_workers: int = 1
    communication_window: int = 0
    parallelism_factor: int = 1
    learning_rate: Any = None
    master_port: int | None = None
    max_prefetch: int = PREFETCH
    """Kept for scripts: workers read ahead by bytes, and wait for slow data."""
    master: str | None = None
    worker_rate: float | None = None
    """Rate of the workers' optimizer, None for its own."""

    @property
    def named_rate(self) -> float | None:
        """Returns the rate of an optimizer that is given by name; None for its own."""
        return None

    @property
    def is_elastic(self) -> bool:
        """Whether `learning_rate` is that of the elastic force."""
        return hasattr(self, "rho")

    def get_learning_rate(self) -> float:
        """Returns the elastic rate of elastic trainers, the optimizer's of others."""
        return self.learning_rate if self.is_elastic else self.get_worker_rate()

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the rate that `get_learning_rate` returns."""
        if self.is_elastic:
            self.learning_rate = learning_rate
        else:
            self.worker_rate = learning_rate

    def get_worker_rate(self) -> float:
        """Returns the rate of the workers' optimizer."""
        if self.worker_rate is not None:
            return self.worker_rate
        return rate_of(self.worker_optimizer, self.named_rate)

    def get_minibatch_size(self) -> int:
        """Returns the rows of a step."""
        return self.batch_size

    def set_minibatch_size(self, minibatch_size: int) -> None:
        """Sets the rows of a step."""
        self.batch_size = require_whole("minibatch_size", minibatch_size, 1)

    def get_num_workers(self) -> int:
        """Returns the number of workers."""
        return self.num_workers

    def set_num_workers(self, num_workers: int) -> None:
        """Sets the number of workers."""
        self.num_workers = require_whole("num_workers", num_workers, 1)

    def get_num_epoch(self) -> int:
        """Returns the passes over the rows."""
        return self.num_epoch

    def set_num_epoch(self, num_epoch: int) -> None:
        """Sets the passes over the rows."""
        self.num_epoch = require_whole("num_epoch", num_epoch, 1)

    def get_parallelism_factor(self) -> int:
        """Returns the factor by which groups of rows are smaller."""
        return self.parallelism_factor

    def set_parallelism_factor(self, factor: int) -> None:
        """Sets the factor by which groups of rows are smaller."""
        self.parallelism_factor = require_whole("parallelism_factor", factor, 1)

    def get_max_prefetch(self) -> int:
        """Returns the mini-batches that were set."""
        return self.max_prefetch

    def set_max_prefetch(self, max_mini_batches: int) -> None:
        """Keeps a number of mini-batches, which changes nothing."""
        self.max_prefetch = require_whole("max_prefetch", max_mini_batches, 1)

    def get_master(self) -> str | None:
        """Returns the address of the server that was set, None for the driver's."""
        return self.master

    def set_master(self, master: str) -> None:
        """Sets the address of the server, which has to be the driver's."""
        self.master = master

    def check_master(self) -> None:
        """Refuses an address that is not the driver's.

        Raises:
            ConfigError: The server cannot be there.
        """
        if self.master is None:
            return
        from shoal.launchers.spark_session import active_context, read_session

        host = read_session(active_context()).host
        if self.master != host:
            raise ConfigError(
                f"master={self.master!r} is not the address of the driver, {host!r}. "
                "Expected that address, because the parameter server runs beside the "
                "driver. Leave master out, or set spark.driver.host when the session "
                "is created."
            )
