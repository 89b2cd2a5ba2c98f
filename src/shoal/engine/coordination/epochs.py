"""Open epochs and the run clock. Pure.

This file decides when an epoch opens and when it is complete; the ledger decides
about the samples in between.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import count
from typing import Any, NamedTuple

from shoal.engine.coordination.instructions import Rules
from shoal.engine.coordination.ledger import Ledger


class Saved(NamedTuple):
    """A ledger to restore, and the version of the center that belongs to it."""

    ledger: dict[str, Any]
    version: int


class Epochs:
    """The epochs of a run, and the ledger of their samples.

    Args:
        rules: Rules of the run.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.ledger = Ledger()
        self._allowed = rules.first_epoch - 1
        self._past_steps = 0
        self.is_halted = False
        self._saved: Saved | None = None
        self._untold: list[int] = []

    def proceed(self, epoch: int) -> list[int]:
        """Opens an epoch; without a barrier the one after it may open by itself.

        Returns:
            Epochs from this one on that were already complete in the checkpoint; the
            controller that asks may not have heard of them.
        """
        # After a halt and a restart, a controller repeats what it said before the halt.
        is_last = self._rules.has_barrier or self.is_halted
        self._allowed = epoch if is_last else epoch + 1
        self.ledger.open(epoch, self._rules.rows_of(epoch))
        untold, self._untold = self._untold, []
        return [e for e in untold if e >= epoch]

    def open_next(self) -> None:
        """Without a barrier the next epoch opens while the last one drains."""
        rules, newest = self._rules, self.ledger.newest
        upcoming = rules.first_epoch if newest is None else newest + 1
        if upcoming <= self._allowed and upcoming < rules.epochs and not self.has_data:
            self.ledger.open(upcoming, rules.rows_of(upcoming))

    @property
    def has_data(self) -> bool:
        """Whether there are samples that are neither leased nor committed."""
        return any(self.ledger.free(e) for e in self.ledger.active)

    @property
    def clock(self) -> int:
        """Committed steps of the user's batch size; a short batch counts.

        It ends at the step count of plain Keras.
        """
        return self._past_steps + sum(map(self._steps, self.ledger.active))

    def _steps(self, epoch: int) -> int:
        rows, starts = self.ledger.committed(epoch), self._rules.starts_of(epoch)
        if starts is not None:
            return bisect_left(starts, rows)
        return -(-rows // self._rules.batch)

    def end(self) -> list[int]:
        """Closes the epochs that are complete now, and returns them."""
        fresh = [e for e in self.ledger.active if self.ledger.is_done(e)]
        for epoch in fresh:
            self._past_steps += self._steps(epoch)
            self.ledger.close(epoch)
        return fresh

    @property
    def upcoming(self) -> int:
        """The first epoch that is not complete."""
        complete = set(self._complete())
        return next(e for e in count(self._rules.first_epoch) if e not in complete)

    def _complete(self) -> list[int]:
        active = set(self.ledger.active)
        return [e for e in self.ledger.epochs if e not in active]

    def halt(self) -> None:
        """Opens no more epochs; open ones end with the samples that are leased."""
        self.is_halted = True
        self._allowed = self._rules.first_epoch - 1
        for epoch in self.ledger.active:
            self.ledger.cut(epoch)

    def save(self, version: int) -> None:
        """Saves what is committed now, for a rollback."""
        self._saved = Saved(self.ledger.to_json(), version)

    @property
    def is_saved(self) -> bool:
        """Whether anything was saved."""
        return self._saved is not None

    @property
    def saved_version(self) -> int:
        """Version of the center that was saved with it; 0 for the initial one."""
        return 0 if self._saved is None else self._saved.version

    def restore(self) -> None:
        """Restores what was saved; open epochs stay open."""
        self._take(self._kept())

    def _kept(self) -> Ledger:
        ledger = Ledger() if self._saved is None else Ledger.from_json(self._saved[0])
        ledger.release_all()
        # Epochs that were opened since then stay open, with all their samples free.
        for epoch in ledger.missing(self.ledger):
            ledger.open(epoch, self._rules.rows_of(epoch))
        return ledger

    def _take(self, ledger: Ledger) -> None:
        """Continues from another ledger; none of it is leased."""
        self.ledger = ledger
        if self.is_halted:  # samples that are free again are not handed out
            self.halt()
        self._past_steps = sum(map(self._steps, self._complete()))

    # ----------------------------------------------------------- checkpoints

    def to_json(self) -> dict[str, Any]:
        """State for a new server; under gradient exchange, what was saved last."""
        ledger = self._kept() if self._rules.exchanges_gradients else self.ledger
        return {
            "ledger": ledger.to_json(),
            "allowed": self._allowed,
            "is_halted": self.is_halted,
            "is_saved": self.is_saved,
        }

    @classmethod
    def from_json(cls, rules: Rules, document: dict[str, Any], version: int) -> Epochs:
        """Continues from `to_json`: leases are free, complete epochs stay complete.

        Args:
            rules: Rules of the run from now on.
            document: Result of `to_json`.
            version: Version of the center in the same checkpoint.
        """
        epochs = cls(rules)
        epochs._allowed = document["allowed"]
        epochs.is_halted = document["is_halted"]
        ledger = Ledger.from_json(document["ledger"])
        ledger.release_all()
        epochs._take(ledger)
        epochs.end()  # after a halt, all open epochs
        epochs._untold = epochs._complete()
        if document["is_saved"]:
            epochs.save(version)
        return epochs
