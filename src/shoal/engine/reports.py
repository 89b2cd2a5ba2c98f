"""What the server tells the controller of, as frames: both directions in one place."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.engine.observer import EpochEnd, Record, Sums
from shoal.engine.wire import Head
from shoal.vectors import Vector


def pack_center(vector: Vector, statistics: Vector, sums: Sums | None) -> list[bytes]:
    """The body of a report that shows the center."""
    found = [vector.tobytes(), statistics.tobytes()]
    return found if sums is None else [*found, sums.tobytes()]


def read_center(head: Head, body: memoryview) -> tuple[Vector, Vector, Sums]:
    """Center, statistics and sums of metrics; the sums are empty where none came."""
    at = 4 * int(head["size"])
    end = at + 4 * int(head["statistics"])
    vector = np.frombuffer(body[:at], np.float32)
    statistics = np.frombuffer(body[at:end], np.float32)
    # Copied: they need not start where float64 may.
    return vector, statistics, np.frombuffer(bytes(body[end:]), np.float64)


def read_records(head: Head, body: memoryview) -> tuple[list[Record], dict[int, Sums]]:
    """Exchanges, and sums of metrics after the last of them where they are large."""
    records = [Record(*record) for record in head["records"]]
    sums = np.frombuffer(body, np.float64)
    return records, {records[-1].epoch: sums} if sums.size else {}


def read_epoch(head: Head, body: memoryview, state: bytes | None = None) -> EpochEnd:
    """The end of an epoch.

    Args:
        head: Of the frame.
        body: Of the frame.
        state: Of one worker's optimizer, None where there is none.
    """
    vector, statistics, metrics = read_center(head, body)
    return EpochEnd(
        epoch=int(head["epoch"]),
        rows=int(head["rows"]),
        metrics=metrics,
        vector=vector,
        statistics=statistics,
        optimizer_state=state,
        changes=int(head.get("changed", 0)),
    )


_OF_THE_WIRE = ("kind", "number", "token")


def fields(head: Head) -> dict[str, Any]:
    """What a report says beside its kind."""
    return {key: value for key, value in head.items() if key not in _OF_THE_WIRE}
