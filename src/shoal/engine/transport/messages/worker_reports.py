"""A worker's reports to the controller, through its server: failures, data, machine.

A server passes it on as it is, with the worker's rank. `pack` and `parse` are the
worker's frame; `to_json` and `from_json` are the fields that are passed on, and kept in
the records of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, final

from shoal.engine.transport.fields import (
    MOST_LETTERS,
    MOST_NAME,
    MOST_TEXT,
    amount,
    mapping,
    quantity,
    some,
    text,
    whole,
)
from shoal.engine.transport.messages.base import FixedKind
from shoal.facts import GpuUse, NodeUse
from shoal.wire.frames import Head

MOST_GPUS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport(FixedKind):
    """A report to the controller."""

    @classmethod
    def from_json(cls, found: Head) -> Self:
        """The inverse of `to_json`."""
        return cls.parse(found)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(WorkerReport):
    """The user's code raised, which ends the run.

    Args:
        step: The worker's steps until then.
        is_data: The data could not be read.
        error: Type and text of the error.
        traceback: Its traceback.
    """

    kind: ClassVar[str] = "failed"
    step: int
    is_data: bool
    error: str
    traceback: str

    def pack(self) -> Head:
        """The head of its frame."""
        return {
            "kind": self.kind, "traceback": self.traceback, "error": self.error,
            "step": self.step, "is_data": self.is_data,
        }  # fmt: skip

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(
            step=whole(head["step"]),
            is_data=bool(head.get("is_data")),
            error=text(head["error"], MOST_TEXT),
            traceback=text(head["traceback"], MOST_TEXT),
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
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
    reaction: str
    what: str
    epoch: int
    step: int
    last_step: int
    bad_rows: int
    rows: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]

    def pack(self) -> Head:
        """The head of its frame."""
        return {
            "kind": self.kind, "reaction": self.reaction, "what": self.what,
            "epoch": self.epoch, "ranges": self.ranges, "step": self.step,
            "last_step": self.last_step, "rows": self.rows, "bad_rows": self.bad_rows,
        }  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        return {
            "reaction": self.reaction, "what": self.what, "epoch": self.epoch,
            "step": self.step, "last_step": self.last_step, "bad_rows": self.bad_rows,
            "rows": [*self.rows], "ranges": [[*pair] for pair in self.ranges],
        }  # fmt: skip

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(
            reaction=text(head["reaction"], MOST_LETTERS),
            what=text(head["what"], MOST_LETTERS),
            epoch=whole(head["epoch"]),
            step=whole(head["step"]),
            last_step=whole(head["last_step"]),
            bad_rows=whole(head["bad_rows"]),
            rows=tuple(map(whole, some(head["rows"]))),
            ranges=tuple(
                (whole(start), whole(stop)) for start, stop in some(head["ranges"])
            ),
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DataRetry(WorkerReport):
    """Data could not be read, and is read again.

    Args:
        text: The error, and the time of the next attempt.
        attempt: Number of attempts.
    """

    kind: ClassVar[str] = "data_retry"
    text: str
    attempt: int

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(
            text=text(head["text"], MOST_LETTERS), attempt=whole(head["attempt"])
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
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
    epoch: int
    digests: dict[str, str]

    def pack(self) -> Head:
        """The head of its frame."""
        return {
            "kind": self.kind, "epoch": self.epoch, "names": [*self.digests],
            "digests": [*self.digests.values()],
        }  # fmt: skip

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        names = [text(name, MOST_LETTERS) for name in some(head["names"])]
        digests = [text(digest, MOST_NAME) for digest in some(head["digests"])]
        pairs = zip(names, digests, strict=True)
        return cls(epoch=whole(head["epoch"]), digests=dict(pairs))

    @classmethod
    def from_json(cls, found: Head) -> Self:
        """The inverse of `to_json`."""
        digests = mapping(found["digests"])
        names, values = [*digests], [*digests.values()]
        return cls.parse({**found, "names": names, "digests": values})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUsed(WorkerReport):
    """A machine's use.

    Args:
        node: Its address, empty if it is the server's own.
        use: Its use; None for unknown parts.
    """

    kind: ClassVar[str] = "node_used"
    node: str
    use: NodeUse

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        return {"node": self.node, **self.use.to_json()}

    @classmethod
    def parse(cls, head: Head) -> Self:
        """The inverse of `pack`."""
        return cls(
            node=text(head["node"], MOST_NAME),
            use=NodeUse(
                percent=quantity(head["percent"]),
                memory_mib=quantity(head["memory_mib"]),
                total_mib=quantity(head["total_mib"]),
                gpus=tuple(map(_gpu, some(head["gpus"], MOST_GPUS))),
            ),
        )


def _gpu(found: Any) -> GpuUse:
    return GpuUse(
        whole(found["number"]),
        text(found["name"], MOST_NAME),
        *(amount(found[name]) for name in GpuUse._fields[2:]),
    )


WORKER_REPORTS: Mapping[str, type[WorkerReport]] = {
    report.kind: report
    for report in (Failed, NanReport, DataRetry, DataState, NodeUsed)
}
"""By kind."""
