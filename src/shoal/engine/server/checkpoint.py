"""A server's checkpoint: the run as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from shoal.engine.coordination.instructions import Rules
from shoal.engine.coordination.sequencer import Sequencer
from shoal.engine.coordination.skipped import Skipped
from shoal.engine.server.center import Center
from shoal.engine.server.reports import EpochTotals
from shoal.engine.transport.messages.state_reports import RestartState

Arrays = Mapping[str, npt.NDArray[Any]]

STATE, SUMS = "state/", "sums/"


class OptimizerSnapshot(NamedTuple):
    """The optimizer's state of one worker, at its own moment.

    Args:
        incarnation: Incarnation of the worker.
        sequence: Number of its last push that was applied.
        blob: Result of `Backend.snapshot`.
    """

    incarnation: int
    sequence: int
    blob: bytes


@final
@dataclass(frozen=True, kw_only=True)
class ServerCheckpoint:
    """Ledger, center and state of the strategy at one moment.

    Args:
        sequencer: The sequencer as JSON values.
        arrays: Arrays "vector", "statistics", "state/NAME" and "sums/EPOCH".
        blob: Optimizer state of one worker, empty for none.
        left_out: Samples that did harm; the server does not know them.
        snapshots: The newest snapshot by rank; the server does not keep them. Empty
            under gradient exchange: all workers have the state in `blob`.
        changes: Serial number of the newest callback change that is included.
    """

    sequencer: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]
    blob: bytes = b""
    left_out: Skipped = field(default_factory=Skipped)
    snapshots: Mapping[int, OptimizerSnapshot] = field(
        default_factory=dict[int, OptimizerSnapshot]
    )
    changes: int = 0

    @property
    def newest_state(self) -> bytes | None:
        """Optimizer state of the server, or of the lowest rank; None for none."""
        of_workers = [self.snapshots[rank].blob for rank in sorted(self.snapshots)]
        return next((blob for blob in (self.blob, *of_workers) if blob), None)

    def at_least(self, lineage: int) -> ServerCheckpoint:
        """Returns this with a lineage that is not lower than the given one."""
        newest = max(lineage, int(self.sequencer["lineage"]))
        return replace(self, sequencer={**self.sequencer, "lineage": newest})

    def open_sequencer(self, rules: Rules) -> Sequencer:
        """Returns a sequencer of the lineage after this one."""
        return Sequencer.from_json(rules, self.sequencer)

    def fill(self, center: Center, epoch_totals: EpochTotals) -> None:
        """Restores center and sums."""
        center.vector[:] = self.arrays["vector"]
        center.statistics[:] = self.arrays["statistics"]
        sums: dict[int, npt.NDArray[np.float64]] = {}
        for name, array in self.arrays.items():
            if name.startswith(STATE):
                center.state[name.removeprefix(STATE)][:] = array
            elif name.startswith(SUMS):
                sums[int(name.removeprefix(SUMS))] = array
        epoch_totals.adopt(sums)


def pack_checkpoint(
    sequencer: Sequencer,
    center: Center,
    epoch_totals: EpochTotals,
    blob: bytes,
    changes: int,
) -> tuple[RestartState, list[bytes]]:
    """Returns a report of a server's whole state, and its body.

    Args:
        sequencer: Sequencer of the run.
        center: Center of the run.
        epoch_totals: Sums of metrics.
        blob: Optimizer state of one worker, empty for none.
        changes: Serial number of the newest callback change.
    """
    arrays: dict[str, npt.NDArray[Any]] = {
        "vector": center.vector,
        "statistics": center.statistics,
        **{STATE + name: value for name, value in center.state.items()},
        **{
            SUMS + str(e): s
            for e, s in epoch_totals.kept(sequencer.rules.exchanges_gradients)
        },
    }
    table = tuple((name, str(a.dtype), a.size) for name, a in arrays.items())
    report = RestartState(sequencer=sequencer.to_json(), arrays=table, changes=changes)
    return report, [*(array.tobytes() for array in arrays.values()), blob]


def read_checkpoint(report: RestartState, body: memoryview) -> ServerCheckpoint:
    """The inverse of `pack_checkpoint`."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    at = 0
    for name, dtype, size in report.arrays:
        end = at + np.dtype(dtype).itemsize * size
        # Copied: a part may not be aligned for its numbers.
        arrays[name] = np.frombuffer(bytes(body[at:end]), dtype)
        at = end
    return ServerCheckpoint(
        sequencer=report.sequencer,
        arrays=arrays,
        blob=bytes(body[at:]),
        changes=report.changes,
    )
