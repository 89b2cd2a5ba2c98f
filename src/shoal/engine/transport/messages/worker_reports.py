"""A worker's reports to the controller, through its server: failures, data, machine.

A server passes it on as it is, with the worker's rank. `pack` and `parse` are the
worker's frame; `to_json` and `from_json` are the fields that are passed on, and kept in
the records of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, final

from shoal.engine.transport.fields import (
    MOST_LETTERS,
    MOST_NAME,
    MOST_PARTS,
    Flag,
    Letters,
    Name,
    Text,
    Whole,
    amount,
    each,
    mapping,
    quantity,
    some,
    text,
    whole,
)
from shoal.engine.transport.messages.base import Message
from shoal.engine.transport.messages.structs import Spread
from shoal.facts import GpuUse, NodeUse
from shoal.wire.frames import Head

MOST_GPUS = 256


class WorkerReport(Message):
    """A report to the controller."""

    @classmethod
    def from_json(cls, found: Head) -> Self:
        """The inverse of `to_json`."""
        return cls.parse(found)


@final
class Failed(WorkerReport):
    """The user's code raised, which ends the run.

    Args:
        step: The worker's steps until then.
        is_data: The data could not be read.
        error: Type and text of the error.
        traceback: Its traceback.
    """

    kind: ClassVar[str] = "failed"
    step: Whole
    is_data: Flag = False
    error: Text
    traceback: Text

    def pack(self) -> Head:
        """The head of its frame."""
        return {
            "kind": self.kind, "traceback": self.traceback, "error": self.error,
            "step": self.step, "is_data": self.is_data,
        }  # fmt: skip


def _range(found: Any) -> tuple[int, int]:
    start, stop = found
    return whole(start), whole(stop)


@final
class NanReport(WorkerReport):
    """Numbers of a worker are NaN or infinite.

    Args:
        reaction: The policy of `on_nan`.
        what: Which numbers: "weights", "statistics", "gradient" or "loss".
        epoch: Epoch of the samples.
        step: The first step in which it may have happened, of the worker's count.
        last_step: The last such step.
        bad_rows: Number of rows of that data that are not finite.
        rows: Row numbers of the first of them.
        ranges: Samples of these steps, by places in the epoch's order.

    Example:
        >>> found = NanReport(reaction="skip", what="loss", epoch=0, step=3,
        ...     last_step=3, bad_rows=1, rows=(5,), ranges=((0, 8),))
        >>> NanReport.parse(found.pack()) == found
        True
    """

    kind: ClassVar[str] = "not_finite"
    reaction: Letters
    what: Letters
    epoch: Whole
    step: Whole
    last_step: Whole
    bad_rows: Whole
    rows: Annotated[tuple[int, ...], each(whole, MOST_PARTS)]
    ranges: Annotated[tuple[tuple[int, int], ...], each(_range, MOST_PARTS)]

    def pack(self) -> Head:
        """The head of its frame."""
        return {
            "kind": self.kind, "reaction": self.reaction, "what": self.what,
            "epoch": self.epoch, "ranges": self.ranges, "step": self.step,
            "last_step": self.last_step, "rows": self.rows, "bad_rows": self.bad_rows,
        }  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        lists = {"rows": [*self.rows], "ranges": [[*pair] for pair in self.ranges]}
        return {**super().to_json(), **lists}


@final
class DataRetry(WorkerReport):
    """Data could not be read, and is read again.

    Args:
        text: The error, and the time of the next attempt.
        attempt: Number of attempts.
    """

    kind: ClassVar[str] = "data_retry"
    text: Letters
    attempt: Whole


def _digests(found: Any) -> dict[str, str]:
    return {
        text(name, MOST_LETTERS): text(digest, MOST_NAME)
        for name, digest in some([*mapping(found).items()])
    }


@final
class DataState(WorkerReport):
    """State of the user's code in a worker's copy of the data, see `ChunkedSource`.

    Args:
        epoch: Number of the pass over the data.
        digests: Digests by name.

    Example:
        >>> DataState(epoch=1, digests={"order": "a"}).pack()
        {'kind': 'data_state', 'epoch': 1, 'names': ['order'], 'digests': ['a']}
    """

    kind: ClassVar[str] = "data_state"
    epoch: Whole
    digests: Annotated[dict[str, str], _digests]

    def pack(self) -> Head:
        """The head of its frame."""
        return {
            "kind": self.kind, "epoch": self.epoch, "names": [*self.digests],
            "digests": [*self.digests.values()],
        }  # fmt: skip

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        pairs = zip(some(head["names"]), some(head["digests"]), strict=True)
        return cls.from_json({**head, "digests": dict(pairs)})

    @classmethod
    def from_json(cls, found: Head) -> Self:
        """The inverse of `to_json`."""
        return super().parse(found)


def _use(head: Head) -> NodeUse:
    return NodeUse(
        percent=quantity(head["percent"]),
        memory_mib=quantity(head["memory_mib"]),
        total_mib=quantity(head["total_mib"]),
        gpus=tuple(map(_gpu, some(head["gpus"], MOST_GPUS))),
    )


def _gpu(found: Any) -> GpuUse:
    return GpuUse(
        whole(found["number"]),
        text(found["name"], MOST_NAME),
        *(amount(found[name]) for name in GpuUse._fields[2:]),
    )


@final
class NodeUsed(WorkerReport):
    """A machine's use.

    Args:
        node: Its address, empty if it is the server's own.
        use: Its use; None for unknown parts.
    """

    kind: ClassVar[str] = "node_used"
    node: Name
    use: Annotated[NodeUse, Spread(_use, NodeUse.to_json)]


WORKER_REPORTS: Mapping[str, type[WorkerReport]] = {
    report.kind: report
    for report in (Failed, NanReport, DataRetry, DataState, NodeUsed)
}
"""By kind."""


def read_passed_on(head: Head) -> WorkerReport:
    """Reads a report that a server passes on."""
    return WORKER_REPORTS[head["kind"]].from_json(head)


def pack_passed_on(report: WorkerReport) -> dict[str, Any]:
    """The inverse of `read_passed_on`, without the kind."""
    return report.to_json()
