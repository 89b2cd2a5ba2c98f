"""What the controller is told of a run, in the order in which it happened.

Exchanges are gathered and told in one go; whatever else is told comes after those that
happened before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, final

from shoal.engine.accounts import Accounts, share_of_loss
from shoal.engine.bulk import Sizes
from shoal.engine.center import Center
from shoal.engine.post import Post
from shoal.engine.reports import pack_center
from shoal.engine.wire import Head
from shoal.strategies.base import Facts


class ReportOutlet(Protocol):
    """Where reports go."""

    def report(self, head: Head, *body: bytes) -> None:
        """The controller is told; `head["number"]` counts what it was told."""


@final
class Teller:
    """Gathers and numbers what the controller is told.

    Args:
        sizes: Of the vectors.
        outlet: Where reports go.
        losses: See `Accounts`.
    """

    def __init__(
        self, sizes: Sizes, outlet: ReportOutlet, losses: Sequence[int] = ()
    ) -> None:
        self.outlet = outlet
        self.accounts = Accounts(sizes.metrics, losses)
        self._sizes, self._told, self._has_worked = sizes, 0, False

    def freeze(self) -> tuple[Any, ...]:
        """Everything that may change, as one value; pickle it before it does."""
        return self.accounts, self._told, self._has_worked

    def thaw(self, frozen: tuple[Any, ...]) -> None:
        """The inverse of `freeze`."""
        self.accounts, self._told, self._has_worked = frozen

    @property
    def has_records(self) -> bool:
        """Whether there are exchanges that the controller was not told of."""
        return self.accounts.has_records

    def note(
        self,
        posts: Mapping[int, Post],
        found: dict[int, Facts],
        at: float,
        version: int,
    ) -> None:
        """Enters what was applied together, and tells of the first at once.

        Args:
            posts: Whose pushes it were, by rank.
            found: What the strategy was told, by rank.
            at: Seconds of the run.
            version: Of the center, after it.
        """
        for rank, facts in found.items():
            share = share_of_loss(rank, found)
            self.accounts.note(posts[rank], at, version, facts.staleness, share)
        if not self._has_worked:
            self._has_worked = True
            self.flush()

    def tell(self, head: Head, *body: bytes) -> None:
        """Tells of something, after everything that happened before."""
        self.flush()
        self._report(head, *body)

    def flush(self) -> None:
        """Tells of exchanges since the last time."""
        records, sums = self.accounts.take_records()
        if records:
            self._report({"kind": "records", "records": records}, sums)

    def show(
        self, head: Head, center: Center, state: Head, epoch: int | None = None
    ) -> None:
        """Tells what the center is.

        Args:
            head: Why it is told.
            center: As it is now.
            state: What every answer tells.
            epoch: Whose sums of metrics follow, as it is over; None for none.
        """
        self.flush()  # its last records tell of sums that go now
        sizes = self._sizes
        lengths = {"size": sizes.vector, "statistics": sizes.statistics}
        sums = None if epoch is None else self.accounts.close(epoch)
        body = pack_center(center.vector, center.statistics, sums)
        self._report({**head, **state, **lengths}, *body)

    def _report(self, head: Head, *body: bytes) -> None:
        self._told += 1
        self.outlet.report({**head, "number": self._told}, *body)
