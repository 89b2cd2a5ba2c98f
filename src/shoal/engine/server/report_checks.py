"""Validates what a server reports, before the controller uses it. Pure.

Fields are read by the classes of messages. This file checks what only the spec of the
server can tell: lengths of bodies, epochs of the run, the state of a sequencer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.engine.coordination.sequencer import Sequencer
from shoal.engine.server.checkpoint import STATE, SUMS
from shoal.engine.server.reports import SMALL_METRICS
from shoal.engine.server.spec import ServerSpec
from shoal.engine.transport.fields import WRONG, is_measured, some, whole
from shoal.engine.transport.messages.base import Report
from shoal.engine.transport.messages.server_to_controller import Exchanges
from shoal.engine.transport.messages.state_reports import (
    CenterShown,
    EpochEnded,
    RestartState,
)
from shoal.wire.frames import BadFrame

FLOAT, DOUBLE = 4, 8
TIMES = 4
"""Measured times in a record."""
ITEM_BYTES = {
    str(dtype): dtype.itemsize
    for dtype in map(
        np.dtype, [*np.typecodes["AllInteger"], *np.typecodes["AllFloat"], "?"]
    )
}
"""By the name of a dtype: numbers, and nothing that holds objects or text."""


def check_report(report: Report, body_bytes: int, spec: ServerSpec) -> None:
    """Checks a report against the spec of the server that sent it.

    Args:
        report: The report.
        body_bytes: Length of the bytes that follow it.
        spec: Spec of the server; of its part, if several share the vector.

    Raises:
        BadFrame: No server with this spec reports this.
    """
    try:
        match report:
            case Exchanges():
                _check_exchanges(report, body_bytes, spec)
            case EpochEnded():
                _check_epoch(report.epoch, spec)
                _check_center(report, body_bytes, DOUBLE * spec.sizes.metrics, spec)
            case CenterShown():
                _check_center(report, body_bytes, 0, spec)
            case RestartState():
                _check_restart(report, body_bytes, spec)
            case _:
                pass
    except WRONG as error:
        raise BadFrame(f"{report.kind!r}: {error!r:.200}") from error


def _check_epoch(epoch: int, spec: ServerSpec) -> None:
    if epoch >= spec.rules.epochs:
        raise ValueError(f"epoch {epoch} is none of the run")


def _check_center(
    report: EpochEnded | CenterShown, body_bytes: int, sums: int, spec: ServerSpec
) -> None:
    sizes = spec.sizes
    if (report.size, report.statistics) != (sizes.vector, sizes.statistics):
        raise ValueError(f"a center of {report.size} + {report.statistics} numbers")
    _check_length(body_bytes, FLOAT * (sizes.vector + sizes.statistics) + sums)


def _check_exchanges(report: Exchanges, body_bytes: int, spec: ServerSpec) -> None:
    metrics = spec.sizes.metrics
    for record in report.records:
        _check_record(some(record), metrics, spec)
    if body_bytes:
        _check_length(body_bytes if report.records else -1, DOUBLE * metrics)


def _check_record(record: list[Any], metrics: int, spec: ServerSpec) -> None:
    """Checks the fields of a `Record`, in their order."""
    at, rank, epoch, samples, steps, version, staleness, *times, sums = record
    if not all(map(is_measured, (at, *times))):  # they are recorded, and added up
        raise ValueError(f"times of {times} s at {at} s")
    for value in (rank, epoch, samples, steps, version, staleness):
        if not isinstance(value, int):
            raise TypeError(f"a record counts {value!r:.40}")
        _ = whole(value)
    if len(times) != TIMES:
        raise ValueError(f"a record of {len(record)} fields")
    _check_epoch(epoch, spec)
    # Sums may be NaN and infinite: those of a loss are.
    size = min(metrics, SMALL_METRICS)
    if sums is not None and [type(value) for value in sums] != [float] * size:
        raise ValueError("sums of other metrics")


def _check_restart(report: RestartState, body_bytes: int, spec: ServerSpec) -> None:
    sizes, length = spec.sizes, 0
    missing: dict[str, int | None] = {
        "vector": sizes.vector,
        "statistics": sizes.statistics,
        **{STATE + name: None for name in spec.strategy.init(0)},
    }
    for name, dtype, size in report.arrays:
        expected = sizes.metrics if name.startswith(SUMS) else missing.pop(name)
        if name.startswith(SUMS):
            _check_epoch(whole(name.removeprefix(SUMS)), spec)
        if expected not in (None, size):
            raise ValueError(f"{name} of {size} numbers")
        length += ITEM_BYTES[dtype] * size
    if missing or length > body_bytes:
        raise ValueError(f"{body_bytes:,} bytes of {length:,}; missing: {[*missing]}")
    # A range of closed epochs may name more of them than memory holds.
    for first, stop, _ in report.sequencer["epochs"]["ledger"]["closed"]:
        _check_epoch(whole(first), spec)
        _check_epoch(whole(stop) - 1, spec)
    sequencer = Sequencer.from_json(spec.rules, report.sequencer)
    for value in (sequencer.lineage, sequencer.version, sequencer.upcoming):
        _ = whole(value)


def _check_length(found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{found:,} bytes, where {expected:,} belong")
