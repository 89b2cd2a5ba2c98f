"""The controller's input: the parts of a plan that it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from shoal.engine.coordination.restart_policy import RestartPolicy
from shoal.plan.often import Often


@final
@dataclass(frozen=True, kw_only=True)
class ControllerSpec:
    """The parts of the plan that the controller needs.

    Args:
        workers: Number of processes.
        policy: Policy for lost processes.
        first_epoch: The first epoch of the run.
        epochs: The epoch before which it ends.
        log: Returns the path of a worker's log, None for no log.
        often: Interval of checkpoints.
        has_standby: A second server has the state of the first one.
        spares: Processes that wait for the loss of a worker.
        servers: Number of servers that share the vector.
        growth: Workers that are added when a machine has room for them.
    """

    workers: int
    policy: RestartPolicy
    first_epoch: int
    epochs: int
    log: Callable[[int], Path | None]
    often: Often
    has_standby: bool = False
    spares: int = 0
    servers: int = 1
    growth: int = 0
