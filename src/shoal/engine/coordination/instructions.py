"""What goes into the sequencer and what comes out of it: plain values.

This file decides what a server may be told to do; `sequencer.py` decides when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from shoal.engine.coordination.ledger import Piece
from shoal.strategies.base import Facts


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the sequencer needs to know of the plan.

    Args:
        epoch_rows: Samples of epochs 0, 1, ..., repeated from the start.
        first_epoch: The epoch a run starts with.
        epochs: The epoch it ends before.
        workers: How many must be ready before a round strategy starts.
        batch: Rows of one step of one worker;
            of all together with `exchanges_gradients`.
        window: Steps between two exchanges.
        is_rounds: Messages are merged in rounds.
        exchanges_gradients: Rounds are single steps of gradients, one share a worker.
        is_elastic: A worker keeps its own weights where others adopt the center.
        has_barrier: An epoch opens when the controller says so; otherwise when the
            one before is leased out, but never two ahead of the controller.
        quorum: Workers of a round that are enough to close it when the others are
            late, 0 for all. Not for gangs: a worker that misses a step does not have
            the gang's weights any more, and would have to join it anew.
        borders: Where chunks begin in an epoch, in order: workers then go on where
            they are, and open few chunks twice. None where every sample is as near as
            any other, and for gangs, which share each step. It must be picklable.
        starts: Where the data's own batches begin in an epoch, each of them a step;
            None, or None of an epoch, where steps are cut from the samples.
        share: Rows that each share of a gang's step must have, of a model that takes
            no others; 0 for any. A step then has fewer rows while workers are missing.
        has_groups: Workers of a gang may average a step among themselves.
        group_s: Seconds for which they may wait for each other without a word.

    Raises:
        ValueError: A batch or a window is empty, so that no data could be dealt; or
            there is a quorum where there is no round, or of a gang.
    """

    epoch_rows: tuple[int, ...]
    first_epoch: int
    epochs: int
    workers: int
    batch: int
    window: int
    is_rounds: bool
    exchanges_gradients: bool
    is_elastic: bool
    has_barrier: bool = True
    quorum: int = 0
    borders: Callable[[int], Sequence[int]] | None = None
    starts: Callable[[int], Sequence[int] | None] | None = None
    share: int = 0
    has_groups: bool = False
    group_s: float = 0.0

    def __post_init__(self) -> None:
        if self.batch < 1 or self.window < 1:
            raise ValueError(f"a window of {self.window} steps of {self.batch} rows")
        has_rounds = self.is_rounds and not self.exchanges_gradients
        if self.quorum < 0 or (self.quorum and not has_rounds):
            raise ValueError(f"a quorum of {self.quorum} workers, without rounds of it")

    def rows_of(self, epoch: int) -> int:
        """Samples of an epoch."""
        return self.epoch_rows[epoch % len(self.epoch_rows)]

    def starts_of(self, epoch: int) -> Sequence[int] | None:
        """Where steps begin in an epoch; None where they are cut from the samples."""
        return None if self.starts is None else self.starts(epoch)


class Push(NamedTuple):
    """What a worker says about a message, without its vector.

    With a `group` there is no vector: the sender has the mean of that group, or all of
    the group can read its gradient.

    Some losses are scaled by sums over the whole step, such as its rows: the sender
    says what it has of each sum (`own`) and which sums it took (`assumed`). A round
    closes only where these are the sums of its messages; both are empty for losses
    that depend on no such sum.

    `rows` are the samples that something was learnt from, where `samples` is another
    weight of the message; None where it is the same.
    """

    rank: int
    incarnation: int
    lineage: int
    sequence: int
    pieces: tuple[Piece, ...]
    steps: int
    samples: float
    group: int = 0
    rows: float | None = None
    own: tuple[float, ...] = ()
    assumed: tuple[float, ...] = ()


class Group(NamedTuple):
    """Workers that average a step among themselves.

    Args:
        generation: Counts groups; 1 is the first.
        ranks: Of its members.
    """

    generation: int
    ranks: tuple[int, ...]


class Apply(NamedTuple):
    """Apply the sender's message to the center."""

    rank: int
    facts: Facts


class Merge(NamedTuple):
    """Merge the messages of a round; of a grouped one all but their vectors."""

    facts: dict[int, Facts]
    is_grouped: bool = False


Kind: TypeAlias = Literal[
    "reply", "merged", "grant", "repeat", "again", "publish", "done"
]
Body: TypeAlias = Literal["none", "reply", "center", "snapshot"]


class Answer(NamedTuple):
    """Answer a worker that waits.

    Args:
        rank: Whom.
        kind: "reply" to its push, "merged" for a round it had no rows in, "grant"
            of data, "repeat" of a push that was applied before, "again" where a push
            must come with its vector after all, or be computed for other `sums`,
            "publish" to ask for a snapshot, "done" at the end of the run.
        body: What travels along: the strategy's reply, the center, or the center
            with the state of the worker that published it.
        pieces: New leases; of a "repeat" all leases, as an answer was lost.
        group: That averages the next step, None where the server does.
        sums: Of the round, that the push is to be computed for; see `Push.assumed`.
        wants_snapshot: The worker is also asked for its state; "publish" says nothing
            else.
    """

    rank: int
    kind: Kind
    body: Body = "none"
    pieces: tuple[Piece, ...] = ()
    group: Group | None = None
    sums: tuple[float, ...] = ()
    wants_snapshot: bool = False


class Refuse(NamedTuple):
    """Refuse a message: the sender drops it and joins again, or exits."""

    rank: int
    incarnation: int
    reason: str


class EpochDone(NamedTuple):
    """Every sample of an epoch is committed and the center is up to date."""

    epoch: int


class Rollback(NamedTuple):
    """All copies of the weights are lost: go on from the last published center."""

    lineage: int


class Ungroup(NamedTuple):
    """Groups fail, and nobody can see why: all goes through the server from now on."""


Instruction: TypeAlias = (
    Apply | Merge | Answer | Refuse | EpochDone | Rollback | Ungroup
)
