"""The weights of workers that exchange gradients, as the server knows them. Pure.

Only workers have the current weights then. This file decides what follows when one of
them has published its state, and when the last worker that had the weights is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from shoal.engine.coordination.epochs import Epochs
from shoal.engine.coordination.grants import Grants
from shoal.engine.coordination.instructions import EpochDone, Instruction, Respond
from shoal.engine.coordination.publishing import Publishing
from shoal.engine.coordination.roster import Member, Roster


@final
class PublishedWeights:
    """The published weights: for epochs that end, workers that join, and a rollback.

    Args:
        roster: Members of the run.
        epochs: Epochs of the run, whose ledger is saved with the weights.
        publishing: Requests for a worker's state.
        grants: Leases of workers that join.
    """

    def __init__(
        self, roster: Roster, epochs: Epochs, publishing: Publishing, grants: Grants
    ) -> None:
        self._roster, self._epochs = roster, epochs
        self._publishing, self._grants = publishing, grants

    def end_epochs(self) -> None:
        """Ends complete epochs; they are reported with a center that shows them."""
        self._publishing.epochs += self._epochs.end()

    def published(self, version: int) -> list[Instruction]:
        """Ends epochs and lets workers join that have waited for the weights.

        Args:
            version: Version of the weights that were published.
        """
        self._epochs.save(version)
        done = [EpochDone(epoch) for epoch in self._publishing.take_epochs()]
        return [*done, *self.welcome(self._joiners(), version)]

    def welcome(self, fresh: Sequence[Member], version: int) -> list[Instruction]:
        """Gives the published weights to workers that join.

        They get them at once, with or without data: the next round changes their
        weights.
        """
        for member in fresh:
            member.is_ready, member.is_parked = True, False
            member.version = version
        if self._grants.has_started:
            self._grants.distribute(version)
        return [Respond(m.rank, "grant", "snapshot", m.tell()) for m in fresh]

    def roll_back(self, version: int) -> list[Instruction]:
        """Goes back to the published weights, or to the initial ones without any.

        Samples committed since then are free again: the weights that were trained on
        them are lost.
        """
        self._epochs.restore()
        self._publishing.take_epochs()
        self._grants.has_started = False
        self.end_epochs()
        joiners = self._joiners()
        if self._epochs.is_saved:
            return self.welcome(joiners, version)
        for member in joiners:  # they hold the initial weights
            member.is_ready, member.version = True, version
        return []

    def _joiners(self) -> list[Member]:
        return [self._roster.members[rank] for rank in self._publishing.take_joiners()]
