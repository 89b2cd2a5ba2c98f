"""Reports to the controller about exchanges, epochs and failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shoal.vectors import Sums as Sums
from shoal.vectors import Vector


class Record(NamedTuple):
    """One exchange, as the server saw it.

    Args:
        t: Seconds since the server began.
        rank: Rank of the sender.
        epoch: Epoch of its samples.
        samples: Samples that it committed.
        steps: Local optimizer steps that it covers.
        version: Version of the center afterwards.
        staleness: Server updates since the sender's last pull, plus 1.
        compute_s: Seconds of computing.
        data_s: Seconds of reading data.
        wait_s: Seconds of waiting for work, such as at the end of an epoch.
        exchange_s: Seconds of the exchange before it, waiting for a round included.
        sums: The first metric states of the epoch so far; None if unknown.
    """

    t: float
    rank: int
    epoch: int
    samples: int
    steps: int
    version: int
    staleness: int
    compute_s: float
    data_s: float
    wait_s: float
    exchange_s: float
    sums: list[float] | None = None


@dataclass(frozen=True, kw_only=True)
class EpochEnd:
    """An epoch whose last sample is committed, and the center at that moment.

    Args:
        epoch: Its number.
        rows: Committed samples of the epoch.
        metrics: Its metric states.
        vector: Weights.
        statistics: Their statistics.
        optimizer_state: Optimizer state of one worker, from about that time; None if
            there is none.
        changes: Serial number of the newest callback change that is included.
    """

    epoch: int
    rows: int
    metrics: Sums
    vector: Vector
    statistics: Vector
    optimizer_state: bytes | None = None
    changes: int = 0


@dataclass(frozen=True, kw_only=True)
class Rescue:
    """The result of a run that was broken off.

    Args:
        vector: Weights of the center.
        statistics: Their statistics.
        samples: Committed samples of all epochs.
        clock: Committed steps of the user's batch size.
        optimizer_state: Optimizer state of one worker, None if none answered in time.
    """

    vector: Vector
    statistics: Vector
    samples: int
    clock: int
    optimizer_state: bytes | None = None
