"""What happened in a run, for its reader: which events are told, and in which words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from shoal.runs.events import Event


@final
@dataclass(frozen=True, kw_only=True)
class Moment:
    """Something that happened in a run, a mark in its charts and a row in its list.

    Args:
        kind: Kind of the event.
        t: Seconds of the run.
        time: Unix seconds.
        samples: Samples committed before it.
        text: What happened.
    """

    kind: str
    t: float
    time: float
    samples: int
    text: str

    @property
    def is_usual(self) -> bool:
        """Whether it is part of every run."""
        return self.kind == "checkpoint_written"


@final
@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was written.

    Args:
        number: Its number in the run.
        epoch: The epoch that a resume would begin or go on with, from 0.
        samples: Samples that it holds.
        bytes: Its size.
        time: Unix seconds.
    """

    number: int
    epoch: int
    samples: int
    bytes: int
    time: float

    @classmethod
    def of(cls, event: Event) -> Checkpoint:
        """Returns what an event tells, 0 for what it does not."""
        names = ("number", "epoch", "samples", "bytes")
        counts = {name: int(event.get(name, 0)) for name in names}
        return cls(**counts, time=float(event.get("time", 0.0)))


def _because(event: Event) -> str:
    reason = event.get("reason")
    return f": {reason}" if reason else ""


def _text(event: Event) -> str:
    return str(event.get("text", ""))


def _late(event: Event) -> str:
    ranks = ", ".join(map(str, event.get("ranks") or ()))
    return f"a round was closed without workers {ranks}"


def _server(event: Event) -> str:
    return str(event["kind"]).replace("_", " ") + _because(event)


_TOLD: Mapping[str, Callable[[Event], str]] = {
    "worker_lost": lambda e: f"worker {e.get('rank')} lost{_because(e)}",
    "worker_replaced": lambda e: f"worker {e.get('rank')} replaced",
    "server_lost": _server,
    "server_replaced": _server,
    "standby_ready": _server,
    "standby_lost": _server,
    "not_finite": lambda e: (
        f"worker {e.get('rank')}: NaN or infinity in {e.get('what', 'numbers')}"
    ),
    "rolling_back": lambda e: f"going back to a checkpoint{_because(e)}",
    "rollback": lambda _: "rolled back to a checkpoint",
    "late": _late,
    "data_retry": lambda e: f"worker {e.get('rank')} reads data again: {_text(e)}",
    "checkpoint_written": lambda e: f"checkpoint {e.get('number', '')}",
    "checkpoint_failed": lambda e: f"checkpoint failed{_because(e)}",
    "run_resumed": lambda e: f"resumed with {e.get('workers', '?')} workers",
    "stop_asked": lambda e: f"asked to stop by {e.get('by', 'somebody')}",
    "run_finished": lambda e: f"run {e.get('status', 'ended')}",
    "warning": _text,
    "note": _text,
}


def told(event: Event) -> str:
    """Returns what an event means for a reader; "" for everyday ones.

    Example:
        >>> told({"kind": "worker_lost", "rank": 1, "reason": "killed"})
        'worker 1 lost: killed'
        >>> told({"kind": "exchanges"})
        ''
    """
    tells = _TOLD.get(str(event.get("kind")))
    return tells(event) if tells else ""
