"""Inputs and outputs of the sequencer: plain values.

This file defines the instructions for a server; `sequencer.py` decides when to give
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from shoal.engine.coordination.ledger import Piece
from shoal.strategies.base import Facts


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The parts of the plan that the sequencer needs.

    Args:
        epoch_rows: Samples of epochs 0, 1, ..., repeated from the start.
        first_epoch: The first epoch of the run.
        epochs: The epoch before which the run ends.
        workers: Number of workers that must be ready before a round strategy starts.
        batch: Rows of one step of one worker; with `exchanges_gradients`, of all
            workers together.
        window: Steps between two exchanges.
        is_rounds: Messages are merged in rounds.
        exchanges_gradients: Rounds are single steps of gradients, one share a worker.
        is_elastic: A worker keeps its own weights where others adopt the center.
        has_barrier: An epoch opens when the controller says so; otherwise when the
            one before is leased out, but never two ahead of the controller.
        quorum: Number of workers whose messages can close a round while others are
            late, 0 for all. Not with `exchanges_gradients`: a worker that misses a step
            no longer has the common weights, and has to join again.
        borders: Positions in an epoch where chunks begin, in order: each worker then
            continues near its last lease, and few chunks are opened twice. None if
            every sample costs the same, and with `exchanges_gradients`, where workers
            share each step. It must be picklable.
        starts: Positions in an epoch where the data's own batches begin, each of them a
            step; None, or None for an epoch, if steps are cut from the samples.
        share: Rows that each share of a common step must have, for a model that takes
            no others; 0 for any. A step has fewer rows while workers are missing.
        has_groups: Workers that exchange gradients may average a step among themselves.
        group_s: Seconds for which they may wait for each other without a message.
        alone_steps: Steps that a worker that exchanges gradients takes before it
            pushes, while no other worker has joined: it has no partner, and applies its
            own gradients. 0 if it exchanges each step.

    Raises:
        ValueError: A batch or a window is empty, so that no data could be dealt; or
            there is a quorum without rounds, or with `exchanges_gradients`.
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
    alone_steps: int = 0

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
        """Positions where steps begin in an epoch; None if cut from the samples."""
        return None if self.starts is None else self.starts(epoch)


class PushMetadata(NamedTuple):
    """A worker's push as the sequencer sees it: all but its vectors.

    A server makes it of the message `Push`.

    With a `group` there is no vector: the sender has the mean of that group, or all
    members of the group can read its gradient.

    Some losses are scaled by sums over the whole step, such as its rows: the sender
    tells its part of each sum (`own`) and the sums that it used (`assumed`). A round
    closes only if these are the sums of its messages; both are empty for losses that
    depend on no such sum.

    With `is_alone` there is no vector either: the sender was the only worker, and has
    taken all steps of its pieces itself.

    `rows` is the number of samples that were trained on, if `samples` is another weight
    of the message; None if both are the same.
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
    is_alone: bool = False


class Group(NamedTuple):
    """Workers that average a step among themselves.

    Args:
        generation: Counts groups; 1 is the first.
        ranks: Ranks of its members.
    """

    generation: int
    ranks: tuple[int, ...]


class Apply(NamedTuple):
    """Apply the sender's message to the center."""

    rank: int
    facts: Facts


class Merge(NamedTuple):
    """Merge the messages of a round; for a grouped one everything but the vectors.

    A round of a worker that was alone is grouped, too: it has applied its gradients.
    """

    facts: dict[int, Facts]
    is_grouped: bool = False


Kind: TypeAlias = Literal[
    "reply", "merged", "grant", "repeat", "again", "publish", "done"
]
Body: TypeAlias = Literal["none", "reply", "center", "snapshot"]


class Respond(NamedTuple):
    """Respond to a worker that waits; a server makes the message `Answer` of it.

    Args:
        rank: The worker's rank.
        kind: "reply" to its push, "merged" for a round in which it had no rows, "grant"
            of data, "repeat" of a push that was already applied, "again" if a push must
            be sent again with its vector, or be computed again for other `sums`,
            "publish" to request a snapshot, "done" at the end of the run.
        body: What is sent with it: the strategy's reply, the center, or the center with
            the state of the worker that published it.
        pieces: New leases; for a "repeat" all leases, as an answer was lost.
        group: The group that averages the next step, None if the server does.
        sums: Sums of the round for which the push must be computed; see
            `PushMetadata.assumed`.
        wants_snapshot: The worker is also asked for its state; "publish" only asks.
    """

    rank: int
    kind: Kind
    body: Body = "none"
    pieces: tuple[Piece, ...] = ()
    group: Group | None = None
    sums: tuple[float, ...] = ()
    wants_snapshot: bool = False


class Refuse(NamedTuple):
    """Refuse a message: the sender drops it, and joins again or exits."""

    rank: int
    incarnation: int
    reason: str


class EpochDone(NamedTuple):
    """Every sample of an epoch is committed and the center is up to date."""

    epoch: int


class Rollback(NamedTuple):
    """All copies of the weights are lost: continue from the last published center."""

    lineage: int


class Ungroup(NamedTuple):
    """Groups fail for an unknown reason: the server averages from now on."""


Instruction: TypeAlias = (
    Apply | Merge | Respond | Refuse | EpochDone | Rollback | Ungroup
)
