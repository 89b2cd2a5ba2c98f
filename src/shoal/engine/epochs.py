"""Which epochs are open, and what the run clock says. Pure.

This file decides when an epoch opens and when it is complete; the samples in
between are the ledger's.
"""

from __future__ import annotations

from typing import Any

from shoal.engine.instructions import Rules
from shoal.engine.ledger import Ledger


class Epochs:
    """The epochs of a run, and the ledger of their samples.

    Args:
        rules: Of the run.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.ledger = Ledger()
        self._allowed = rules.first_epoch - 1
        self._past_steps = 0
        self._is_halted = False
        self._saved: dict[str, Any] | None = None

    def proceed(self, epoch: int) -> None:
        """Opens an epoch; without a barrier the one after it may open by itself."""
        self._allowed = epoch if self._rules.has_barrier else epoch + 1
        self.ledger.open(epoch, self._rules.rows_of(epoch))

    def open_next(self) -> None:
        """Without a barrier the next epoch opens while the last one drains."""
        rules, opened = self._rules, self.ledger.epochs
        upcoming = max(opened, default=rules.first_epoch - 1) + 1
        if upcoming <= self._allowed and upcoming < rules.epochs and not self.has_data:
            self.ledger.open(upcoming, rules.rows_of(upcoming))

    @property
    def has_data(self) -> bool:
        """Whether there are samples that nobody holds and nobody has done."""
        return any(self.ledger.free(e) for e in self.ledger.active)

    @property
    def clock(self) -> int:
        """Steps of the user's batch size that are committed; a short batch counts.

        It ends where plain Keras' step count would.
        """
        return self._past_steps + sum(map(self._steps, self.ledger.active))

    def _steps(self, epoch: int) -> int:
        return -(-self.ledger.committed(epoch) // self._rules.batch)

    def end(self) -> list[int]:
        """Closes the epochs that are complete now, and returns them."""
        fresh = [e for e in self.ledger.active if self.ledger.is_done(e)]
        for epoch in fresh:
            self._past_steps += self._steps(epoch)
            self.ledger.close(epoch)
        return fresh

    def halt(self) -> None:
        """Opens no more epochs, and ends those that are open with what is held."""
        self._is_halted = True
        self._allowed = self._rules.first_epoch - 1
        for epoch in self.ledger.active:
            self.ledger.cut(epoch)

    def save(self) -> None:
        """Keeps what is committed now, to go back to."""
        self._saved = self.ledger.to_json()

    @property
    def is_saved(self) -> bool:
        """Whether anything was kept."""
        return self._saved is not None

    def restore(self) -> None:
        """Goes back to what was kept; epochs that were open stay so."""
        opened, saved = self.ledger.epochs, self._saved
        self.ledger = Ledger() if saved is None else Ledger.from_json(saved)
        self.ledger.release_all()
        for epoch in opened:
            self.ledger.open(epoch, self._rules.rows_of(epoch))
        if self._is_halted:
            self.halt()
        active = set(self.ledger.active)
        self._past_steps = sum(self._steps(e) for e in opened if e not in active)
