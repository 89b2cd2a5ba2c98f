"""What the controller is told of exchanges, epochs and damage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shoal.vectors import Sums as Sums
from shoal.vectors import Vector


class Record(NamedTuple):
    """One exchange, as the server saw it.

    Args:
        t: Seconds since the server began.
        rank: Of the sender.
        epoch: Its samples are of.
        samples: Committed by it.
        steps: Local optimizer steps it covers.
        version: Of the center afterwards.
        staleness: Server updates since the sender's last pull, plus 1.
        compute_s: Computing.
        data_s: Reading data.
        wait_s: Waiting for work, at the end of an epoch for example.
        exchange_s: Exchanging, waiting for others in a round included, before it.
        sums: The epoch's metric states so far, where they are small.
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
        rows: Samples that are committed of it.
        metrics: Its metric states.
        vector: Weights.
        statistics: Their statistics.
        optimizer_state: Of one worker, about then; None where none could be had.
        changes: Serial number of the newest change of a callback that is in here.
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
    """What is left of a run that is broken off.

    Args:
        vector: Weights of the center.
        statistics: Their statistics.
        samples: Committed in all epochs.
        clock: Steps of the user's batch size they make.
        optimizer_state: Of one worker, None when none answered in time.
    """

    vector: Vector
    statistics: Vector
    samples: int
    clock: int
    optimizer_state: bytes | None = None
