"""Messages of a worker to the ordering server: it joins, pushes, asks for data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeAlias, final

from shoal.engine.coordination.ledger import Piece
from shoal.engine.transport.fields import (
    MAX_HINT,
    MOST,
    Flag,
    Name,
    Pid,
    Whole,
    is_measured,
    whole,
)
from shoal.engine.transport.messages.base import Message, Parser, by_kind, read
from shoal.engine.transport.messages.worker_reports import WORKER_REPORTS, WorkerReport
from shoal.wire.frames import Head

MOST_SUMS = 64  # most sums by which the losses of a model are scaled


class NanStatus(IntEnum):
    """A worker's status of its part of a step; the highest counts for all workers.

    `LEFT_OUT`: the samples are left out on purpose.
    """

    FINITE = 0
    LOSS = 1
    GRADIENT = 2
    LEFT_OUT = 3

    @classmethod
    def parse(cls, value: Any) -> NanStatus:
        """Reads a status.

        Raises:
            ValueError: It is unknown.
        """
        return _STATUSES[whole(value, len(_STATUSES))]


_STATUSES = tuple(NanStatus)

# ------------------------------------------------------------------------ callers


# Whatever another version says there is another layout, and is refused as one.
def _digest(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _metrics(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < MOST else -1


def _hint(value: Any) -> int:
    return found if 0 <= (found := int(value)) < MAX_HINT else -1


@final
class Join(Message):
    """A process wants to be a worker.

    Args:
        digest: Digest of its model's layout.
        metrics: Size of its metric states.
        hint: The rank it asks for, -1 for any.
        node: Its machine.
        pid: Process id on that machine.
        token: Name of the process for the controller.
        wants_slot: Whether it can map memory of the server.
    """

    kind: ClassVar[str] = "join"
    digest: Annotated[str, _digest]
    metrics: Annotated[int, _metrics]
    hint: Annotated[int, _hint]
    node: Name
    pid: Pid
    token: Name
    wants_slot: Flag = False


@final
class Rejoin(Message):
    """A worker whose server was lost rejoins at the one that took over.

    Args:
        rank: Rank of the worker.
        incarnation: Incarnation of the worker.
        token: Token with which it joined.
        wants_slot: Whether it can map memory of the server.
    """

    kind: ClassVar[str] = "rejoin"
    rank: Whole
    incarnation: Whole
    token: Name
    wants_slot: Flag = False


@final
class SlotSettled(Message):
    """A worker has mapped the memory that it was offered, or cannot.

    Args:
        is_shared: Whether vectors go through it.
    """

    kind: ClassVar[str] = "slot"
    is_shared: Flag


# ----------------------------------------------------------------------- requests


@final
class Push(Message):
    """A worker's work since its last push; its vectors follow.

    Args:
        lineage: Lineage of the center that it began with.
        sequence: Counts its pushes.
        pieces: Samples that it covers.
        steps: Local optimizer steps.
        samples: Weight of the message.
        nan_status: Whether its numbers are finite.
        group: Generation of the group that has averaged it, 0 for none.
        times: Seconds of computing, reading, waiting and exchanging.
        rows: Samples that were trained on, None for `samples`.
        own: This worker's part of each sum over the step that scales the loss.
        assumed: The sums that it scaled its loss by.
        is_alone: It was the only worker, and has applied its gradients itself: its
            vectors are its statistics alone.
    """

    kind: ClassVar[str] = "push"
    lineage: int
    sequence: int
    pieces: tuple[Piece, ...]
    steps: int
    samples: float
    nan_status: NanStatus = NanStatus.FINITE
    group: int = 0
    times: tuple[float, ...]
    rows: float | None = None
    own: tuple[float, ...] = ()
    assumed: tuple[float, ...] = ()
    is_alone: bool = False

    def pack(self) -> Head:
        """The head of its frame."""
        # Keys are bytes on the wire and stay as they were: "doubt" is `nan_status`.
        head: Head = {
            "kind": "push", "lineage": self.lineage, "sequence": self.sequence,
            "pieces": self.pieces, "steps": self.steps, "samples": self.samples,
            "doubt": self.nan_status, "group": self.group, "times": self.times,
        }  # fmt: skip
        if self.rows is not None:
            head["rows"] = self.rows
        if self.own:
            head["own"], head["assumed"] = self.own, self.assumed
        if self.is_alone:
            head["alone"] = True
        return head

    def to_json(self) -> dict[str, Any]:
        """The fields as servers send them to each other."""
        found: dict[str, Any] = {
            "lineage": self.lineage, "sequence": self.sequence,
            "pieces": self.pieces, "steps": self.steps, "samples": self.samples,
            "group": self.group, "rows": self.rows, "own": self.own,
            "assumed": self.assumed, "doubt": self.nan_status, "times": self.times,
        }  # fmt: skip
        return {**found, "alone": True} if self.is_alone else found

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`, and of `to_json`."""
        compute_s, data_s, wait_s, exchange_s = map(float, head["times"])
        samples, steps = float(head["samples"]), whole(head["steps"])
        if steps < 1 or not (math.isfinite(samples) and samples >= 0):
            raise ValueError(f"{steps} steps of {samples} samples")
        times = compute_s, data_s, wait_s, exchange_s
        if not all(map(is_measured, times)):  # they are recorded, and added up
            raise ValueError(f"times of {times} s")
        rows, own, assumed = _sums(head)
        return cls(
            lineage=whole(head["lineage"]),
            sequence=whole(head["sequence"]),
            pieces=tuple(Piece(*map(whole, piece)) for piece in head["pieces"]),
            steps=steps,
            samples=samples,
            nan_status=NanStatus.parse(head.get("doubt", 0)),
            group=whole(head.get("group", 0)),
            times=times,
            rows=rows,
            own=own,
            assumed=assumed,
            is_alone=bool(head.get("alone")),
        )


def _sums(
    head: Head,
) -> tuple[float | None, tuple[float, ...], tuple[float, ...]]:
    """Weights of a message beside `samples`; see `PushMetadata`."""
    rows = head.get("rows")
    if rows is None and "own" not in head and "assumed" not in head:
        return None, (), ()
    rows = None if rows is None else float(rows)
    own, assumed = (
        tuple(float(value) for value in head.get(name, ()))
        for name in ("own", "assumed")
    )
    numbers = [*own, *assumed, *([] if rows is None else [rows])]
    is_sound = all(math.isfinite(number) and number >= 0 for number in numbers)
    if not is_sound or len(own) != len(assumed) or len(own) > MOST_SUMS:
        raise ValueError(f"a message of {rows} rows, with {own} of {assumed}")
    return rows, own, assumed


@final
class Ready(Message):
    """The model is compiled: a worker can take data."""

    kind: ClassVar[str] = "ready"


@final
class Need(Message):
    """A worker has no data left."""

    kind: ClassVar[str] = "need"


@final
class Snapshot(Message):
    """A worker's optimizer state follows; under gradient exchange its whole state."""

    kind: ClassVar[str] = "snapshot"


@final
class Compiling(Message):
    """A step of another shape has to be compiled."""

    kind: ClassVar[str] = "compiling"


@final
class ReadingData(Message):
    """A worker waits for its data."""

    kind: ClassVar[str] = "reading"


@final
class Busy(Message):
    """A worker computes for an unknown time."""

    kind: ClassVar[str] = "busy"


FromWorker: TypeAlias = (
    Push | Ready | Need | Snapshot | Compiling | ReadingData | Busy | WorkerReport
)
"""Requests of a worker that has joined."""
REQUESTS: Mapping[str, Parser[FromWorker]] = {
    **by_kind(Push, Ready, Need, Snapshot, Compiling, ReadingData, Busy),
    **WORKER_REPORTS,
}
"""By kind."""


@final
class WorkerRequest(NamedTuple):
    """A message of a worker that needs an answer.

    Args:
        message: The message.
        number: Counts its requests; 0 for one that need not be repeated.
        is_coded: Whether its vector is encoded.
    """

    message: FromWorker
    number: int
    is_coded: bool = False

    def pack(self) -> Head:
        """The head of its frame."""
        head = self.message.pack()
        head["question"] = self.number
        if self.is_coded:
            head["is_coded"] = True
        return head

    @classmethod
    def parse(cls, head: Head) -> WorkerRequest:
        """The inverse of `pack`.

        Raises:
            BadFrame: No worker of this version sends this.
        """
        message = read(REQUESTS, head, "a worker")
        number = whole(head.get("question", 0))
        return cls(message, number, bool(head.get("is_coded")))
