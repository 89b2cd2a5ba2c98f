"""Requests of the controller: the center, a checkpoint, a worker's state.

Requests of workers, and pushes that are repeated, are in `primary.py` and
`coordination/sequencer.py`.

Only workers have some of these states: then one of them is asked to publish its
state, and the controller gets it afterwards. The last published state is kept here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from shoal.engine.coordination.instructions import Instruction
from shoal.engine.coordination.sequencer import Sequencer
from shoal.engine.server.center import Center
from shoal.engine.server.checkpoint import pack_checkpoint
from shoal.engine.server.reports import ReportBuffer
from shoal.engine.server.session import WorkerSession
from shoal.engine.transport.changes import Changes
from shoal.engine.transport.messages.server_to_worker import RunState
from shoal.engine.transport.messages.state_reports import (
    CenterShown,
    OptimizerState,
    Sender,
    WorkerSnapshot,
    WorkerState,
)
from shoal.vectors import Vector


@final
class PendingRequests:
    """Requests without an answer so far; methods return instructions.

    Args:
        center: Center of the run; under gradient exchange, the last published one.
        report_buffer: Buffer of reports to the controller.
        state: Returns the state that every answer tells.
        version: Version of the center as it is now.
        blob: Optimizer state that belongs to it, empty for none.
        changes: Changes that callbacks made in the model.
        exchanges_gradients: Only workers have the weights; what they published is kept.
    """

    def __init__(
        self,
        center: Center,
        report_buffer: ReportBuffer,
        state: Callable[[], RunState],
        *,
        version: int,
        blob: bytes,
        changes: Changes,
        exchanges_gradients: bool,
    ) -> None:
        self._center, self._report_buffer, self._state = center, report_buffer, state
        self.blob, self._changes, self._exchanges_gradients = (
            blob,
            changes,
            exchanges_gradients,
        )
        self._saved: tuple[Vector, Vector] | None = None
        self._is_state_wanted = self._is_center_wanted = False
        self._is_whole_wanted = False
        self._last_publisher = -1
        self._save(version)

    _PLAIN = (
        "blob", "_is_state_wanted", "_is_center_wanted", "_is_whole_wanted",
        "_version", "_last_publisher", "_saved",
    )  # fmt: skip

    def freeze(self) -> dict[str, Any]:
        """Returns the mutable state; pickle it before it changes."""
        return {name: getattr(self, name) for name in self._PLAIN}

    def thaw(self, frozen: dict[str, Any]) -> None:
        """The inverse of `freeze`."""
        for name, value in frozen.items():
            setattr(self, name, value)

    def _save(self, version: int) -> None:
        self._version = version
        if self._exchanges_gradients:
            center = self._center
            self._saved = (center.vector.copy(), center.statistics.copy())

    def change(self, fresh: Changes) -> None:
        """Records a callback's change; a rollback keeps it."""
        if self._saved is not None:
            fresh.write_statistics(self._saved[1])

    def roll_back(self) -> None:
        """Restores the published center and sums, after all workers are lost."""
        if self._saved is not None:
            self._center.vector[:], self._center.statistics[:] = self._saved
        self._report_buffer.epoch_totals.restore()

    # ------------------------------------------------------------- questions

    def ask_center(self, sequencer: Sequencer) -> list[Instruction]:
        """Requests a report that shows the center."""
        self._is_center_wanted = True
        return self._ask_worker(sequencer)

    def ask_checkpoint(
        self, sequencer: Sequencer, with_snapshot: bool
    ) -> list[Instruction]:
        """Requests all that another server needs to continue.

        Args:
            sequencer: Sequencer of the run.
            with_snapshot: Also request, later, the optimizer's state of the next worker
                in turn; under gradient exchange the checkpoint contains it.
        """
        self._is_whole_wanted = True
        found = self._ask_worker(sequencer)
        if with_snapshot and not sequencer.rules.exchanges_gradients:
            found += sequencer.ask(after=self._last_publisher)
        return found

    def ask_state(self, sequencer: Sequencer) -> list[Instruction]:
        """Requests one worker's optimizer state, which `fit` returns."""
        if sequencer.rules.exchanges_gradients and self.blob:
            self._report_buffer.tell(OptimizerState(), self.blob)
            return []
        self._is_state_wanted = True
        return sequencer.ask()

    def _ask_worker(self, sequencer: Sequencer) -> list[Instruction]:
        """Answers now; under gradient exchange, once a worker has published."""
        has_ready = any(m.is_ready for m in sequencer.members.values())
        is_old = self._version != sequencer.version
        if sequencer.rules.exchanges_gradients and has_ready and is_old:
            return sequencer.ask()
        self._tell(sequencer)
        return []

    # --------------------------------------------------------------- answers

    def published(
        self, sequencer: Sequencer, session: WorkerSession, blob: bytes
    ) -> list[Instruction]:
        """Handles a published state; under gradient exchange it is the new center."""
        if sequencer.publisher != session.rank:  # the run has ended in between
            return []
        exchanges_gradients = sequencer.rules.exchanges_gradients
        self.blob, self._last_publisher = blob, session.rank
        if exchanges_gradients:
            self._center.vector[:] = session.buffers.message
            self._center.statistics[:] = session.buffers.message_statistics
            self._report_buffer.epoch_totals.save()
            self._save(sequencer.version)
        # The ledger of this moment is saved first: it belongs to the center.
        later = sequencer.published(session.rank, session.incarnation)
        self._tell(sequencer)
        if self._is_state_wanted and (
            exchanges_gradients or sequencer.is_first(session.rank)
        ):
            self._is_state_wanted = False
            self._tell_state(OptimizerState, sequencer, session)
        elif not exchanges_gradients:  # under gradient exchange checkpoints contain it
            self._tell_state(WorkerSnapshot, sequencer, session)
        if self._is_state_wanted:  # `fit` returns the state of the first rank
            later = [*later, *sequencer.ask()]
        return later

    def _tell(self, sequencer: Sequencer) -> None:
        """Answers the controller's request, if there is one."""
        if self._is_whole_wanted:
            self._is_whole_wanted = False
            report, body = pack_checkpoint(
                sequencer,
                self._center,
                self._report_buffer.epoch_totals,
                self.blob,
                self._changes.serial,
            )
            self._report_buffer.tell(report, *body)
        if self._is_center_wanted:
            self._is_center_wanted = False
            ledger = sequencer.ledger
            center = self._center
            shown = CenterShown(
                samples=sum(ledger.committed(epoch) for epoch in ledger.epochs),
                state=self._state(),
                size=center.vector.size,
                statistics=center.statistics.size,
            )
            self._report_buffer.show(shown, center)

    def _tell_state(
        self, kind: type[WorkerState], sequencer: Sequencer, session: WorkerSession
    ) -> None:
        sender = None
        if not sequencer.rules.exchanges_gradients:
            member = sequencer.members[session.rank]
            sender = Sender(session.rank, session.incarnation, member.sequence)
        self._report_buffer.tell(kind(sender=sender), self.blob)
