"""The options of `fit` about reading, for data of other libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

from shoal.data.arrays import FIT
from shoal.data.batches import STEPS
from shoal.data.draws import SEED
from shoal.errors import ConfigError

Tell: TypeAlias = Callable[[str, bool], None]
"""Shows a line; whether it is the last one, which stays."""


@final
@dataclass(frozen=True, kw_only=True)
class Reading:
    """How data will be read: for how long, and by how many workers.

    Args:
        steps_per_epoch: Batches of an epoch; default None means all batches.
        epochs: The first one, and one past the last.
        shards: Parts a stream is cut into for workers to open; default None leaves
            streams to the driver, and gives a `dataset_fn` four for each worker.
        workers: Largest number of training processes.
        seed: Seed of all random draws.
        floatx: Dtype in which floats are read; default None means Keras' floatx.
        is_training: Whether `fit` reads it.
        is_plan: Whether the data is only used for a plan.
        store: Folder or URL that all workers see, for rows that are written first.
        port: Port at which this process listens for workers, or the next free one.
        progress: Told of rows that are written first; None shows nothing.
        is_away: Whether workers may be on other machines.
        shuffle: Whether batches may come in another order.
        where: Origin of the data, for messages.
        steps_name: Name of the argument with the number of batches.
        generator_gb: Gigabytes after which a generator without a number of batches
            counts as endless; default None means `spooled.GENERATOR_GB`.

    Raises:
        ConfigError: A number is not positive.

    Example:
        >>> Reading(steps_per_epoch=10, epochs=range(3)).workers
        1
    """

    steps_per_epoch: int | None = None
    epochs: range = range(1)
    shards: int | None = None
    workers: int = 1
    seed: int = SEED
    floatx: str | None = None
    is_training: bool = False
    is_plan: bool = False
    store: str | None = None
    is_away: bool = False
    port: int = 0
    progress: Tell | None = None
    shuffle: bool = False
    where: str = FIT
    steps_name: str = STEPS
    generator_gb: float | None = None

    @classmethod
    def of_steps(
        cls,
        steps: object,
        where: str,
        name: str = "steps",
        generator_gb: float | None = None,
    ) -> Reading:
        """Returns one pass of so many batches; other values are refused elsewhere."""
        given = steps if isinstance(steps, int) and steps > 0 else None
        return cls(
            steps_per_epoch=given,
            where=where,
            steps_name=name,
            generator_gb=generator_gb,
        )

    def __post_init__(self) -> None:
        for name in ("steps_per_epoch", "shards", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(
                    f"{name}={value!r} ({self.where}). Expected a whole number of at "
                    f"least 1. Pass another {name}, or leave it out."
                )
