"""Progress of a run for the user: one live line an epoch, and warnings.

A live line needs a terminal or a notebook; elsewhere, in logs, every epoch is one
line at its end. If a terminal is too narrow for a live line, the least
important fields are left out; the time left stays longest.
"""

from __future__ import annotations

import shutil
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO, TypeAlias, final

from shoal.engine.server.records import Record
from shoal.errors import ShoalWarning
from shoal.plan import Plan
from shoal.terminal import one_line, say, say_output, write

ERASE = "\r\x1b[K"
PACE_S = 0.25  # seconds between two updates of a live line
RECENT = 32  # exchanges whose staleness is shown
NARROW = 20  # a terminal that reports fewer columns than this is not believed
GAP = "  "

Field: TypeAlias = tuple[int, str]
"""A part of the live line, after its weight: a narrow line omits the lightest."""


def warn_aside(text: str) -> None:
    """Warns of a fault during training, which it must not stop."""
    with suppress(ShoalWarning):  # if warnings are errors
        warnings.warn(text, ShoalWarning, stacklevel=3)


@final
class Display:
    """Writes lines to the present standard output, one of which may be rewritten.

    Args:
        is_live: Whether a line may be rewritten.
    """

    def __init__(self, *, is_live: bool) -> None:
        self._is_live = is_live
        self._shown = 0
        self._at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the live line is due to be rewritten."""
        is_time = time.monotonic() - self._at >= PACE_S
        return self._is_live and is_time and can_change(sys.stdout)

    def show(self, fields: Sequence[Field]) -> None:
        """Shows fields on the live line, as many as there is room for."""
        if not self.is_due:
            return
        stream, self._at = sys.stdout, time.monotonic()
        fields = [(weight, one_line(text)) for weight, text in fields]
        columns = shutil.get_terminal_size().columns if stream.isatty() else 0
        text = line_of(fields, columns - 1 if columns >= NARROW else None)
        if stream.isatty():
            write(stream, ERASE + text)
        else:  # a notebook: no codes, so a longer old text is overwritten
            write(stream, "\r" + text.ljust(self._shown))
        self._shown = len(text)

    def say(self, text: str) -> None:
        """Writes a permanent line."""
        self.clear()
        say(text)

    def say_output(self, text: str, before: str) -> None:
        """Writes a line of a process, which may have colours."""
        self.clear()
        say_output(text, before=before)

    def clear(self) -> None:
        """Empties the live line."""
        if self._shown:
            is_terminal = sys.stdout.isatty()
            write(sys.stdout, ERASE if is_terminal else f"\r{' ' * self._shown}\r")
        self._shown, self._at = 0, 0.0


def writing_progress(verbose: int | str) -> Callable[[str, bool], None] | None:
    """Returns what shows that rows are written before a run; None shows nothing.

    Args:
        verbose: As for `Progress`.
    """
    if verbose == 0:
        return None
    display = Display(is_live=verbose in (1, "auto"))

    def tell(text: str, is_over: bool) -> None:
        if is_over:
            display.say(text)
        else:
            display.show([(0, text)])

    return tell


def can_change(stream: TextIO) -> bool:
    """Whether a line of a stream can be rewritten: a terminal or a notebook."""
    return stream.isatty() or type(stream).__module__.startswith("ipykernel")


def line_of(fields: Sequence[Field], columns: int | None = None) -> str:
    """Joins fields; omits the lightest, the last of equals, until they fit.

    Args:
        fields: Fields in reading order.
        columns: Width of the line; None for any.

    Example:
        >>> fields = [(2, "Epoch 1/3"), (0, "2 workers"), (1, "25%"), (3, "0:02 left")]
        >>> line_of(fields)
        'Epoch 1/3  2 workers  25%  0:02 left'
        >>> line_of(fields, 30)
        'Epoch 1/3  25%  0:02 left'
    """
    kept = list(fields)
    while columns is not None and len(kept) > 1 and len(_joined(kept)) > columns:
        lightest = min(weight for weight, _ in kept)
        del kept[max(n for n, (weight, _) in enumerate(kept) if weight == lightest)]
    return _joined(kept)[:columns]


def _joined(fields: Sequence[Field]) -> str:
    return GAP.join(text for _, text in fields)


@final
class ProgressDisplay:
    """Shows a run as `verbose` asks, as in Keras.

    Args:
        plan: Plan of the run.
        verbose: 0 nothing; 1 or "auto" a live line, where the output can show one,
            and a line for each epoch; 2 a line for each epoch.
    """

    def __init__(self, plan: Plan, verbose: int | str) -> None:
        self._plan, self._order = plan, plan.order()
        self._is_silent = verbose == 0
        self._display = Display(is_live=verbose in (1, "auto"))
        self._alive: set[int] = set()
        self._share = ExchangeShare()
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._begin(plan.request.initial_epoch)

    def _begin(self, epoch: int) -> None:
        self._epoch, self._samples = epoch, 0
        self._rows = self._order.rows_of(epoch) * self._plan.models
        self._span: tuple[float, float] | None = None

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Reports important events at once."""
        rank = int(fields.get("rank", -1))
        if kind == "worker_started":
            self._alive.add(rank)
        elif kind == "worker_lost":
            self._alive.discard(rank)
            self.say(f"worker {rank} is lost: {fields.get('reason')}")
        elif kind == "worker_replaced":
            seconds = float(fields.get("seconds", 0.0))
            self.say(f"worker {rank} is replaced, {seconds:.1f} s later")
        elif kind == "server_lost":
            reason = fields.get("reason")
            if fields.get("has_standby"):
                self.say(f"the server is lost: {reason}; its standby leads now")
            else:
                self._alive.clear()
                self.say(f"{reason}; going on from the last checkpoint")
        elif kind == "warning":
            self._warn(str(fields.get("text")))

    def _warn(self, text: str) -> None:
        """Writes a warning; without lines, as a Python warning."""
        if self._is_silent:
            warn_aside(text)
        else:
            self._display.say(f"warning: {text}")

    def say(self, text: str) -> None:
        """Writes a line, unless output is off."""
        if not self._is_silent:
            self._display.say(text)

    def echo(self, name: str, line: str) -> None:
        """Writes a process's output, in any verbosity."""
        self._display.say_output(line, f"[{name}] ")

    def epoch_begin(self, epoch: int) -> None:
        """Starts the line of an epoch."""
        self._begin(epoch)
        if not self._share.records and not self._is_silent:
            workers = f"{self._plan.workers} worker{'s'[: self._plan.workers > 1]}"
            self._display.show([(1, self._title()), (0, f"starting {workers}")])

    def update(
        self, records: list[Record], logs: Callable[[], Mapping[str, Any]]
    ) -> None:
        """Updates the line with exchanges of its epoch.

        Args:
            records: Records of the exchanges.
            logs: Returns the metrics since the epoch began. Their computation takes
                longer than all the rest: it is called only if they will be shown.
        """
        for record in records:
            self._samples += record.samples
            self._recent.append(record.staleness)
            self._share.add(record)
            start = record.t - record.compute_s - record.data_s
            before = self._span[0] if self._span else start
            self._span = (min(before, start), record.t)
        if not self._is_silent and self._display.is_due:
            self._display.show(self._live_fields(logs()))

    def _live_fields(self, logs: Mapping[str, Any]) -> list[Field]:
        done = min(1.0, self._samples / max(1, self._rows))
        rate, left = self._rate(), max(0, self._rows - self._samples)
        staleness = sum(self._recent) / max(1, len(self._recent))
        alive = len(self._alive) or self._plan.workers
        # The first metric, the loss, outlasts the speed; the others do not.
        return [
            (6, self._title()),
            (5, f"{done:4.0%}"),
            (3, f"{rate:,.0f} samples/s"),
            *((2 if place else 4, t) for place, t in enumerate(_numbers(logs))),
            (1, f"{alive} worker{'s'[: alive > 1]}"),
            (0, f"staleness {staleness:.1f}"),
            (7, f"{minutes(left / rate) if rate else '?'} left"),
        ]

    def epoch_end(self, rows: int, logs: Mapping[str, Any]) -> None:
        """Ends the line, with all metrics of the epoch."""
        seconds = self._span[1] - self._span[0] if self._span else 0.0
        parts = [self._title(), f"{rows:,} samples", f"{seconds:.1f} s"]
        if seconds > 0:
            parts.append(f"{rows / seconds:,.0f} samples/s")
        self.say(GAP.join([*parts, *_numbers(logs)]))

    def awaiting(self, epoch: int) -> None:
        """Shows that training is over, and the validation of an epoch is not."""
        if not self._is_silent:
            self._display.show([(1, self._title(epoch)), (0, "validating")])

    def epoch_scored(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Reports the validation of an earlier epoch."""
        self.say(GAP.join([self._title(epoch), *_numbers(logs)]))

    def advice(self) -> str | None:
        """Returns a faster alternative if most of the time went to exchanges."""
        plan, share = self._plan, self._share.share
        is_cpu_in_step = (
            plan.exchanges_gradients and plan.workers > 1 and plan.device == "cpu"
        )
        if not is_cpu_in_step or share <= 0.5:
            return None
        return (
            f"{plan.strategy.name} spent {share:.0%} of the workers' time exchanging, "
            "because on CPU every step waits for one; strategy='auto' "
            "exchanges less often and is faster, on another curve"
        )

    def close(self) -> None:
        """Leaves the terminal as it was."""
        self._display.clear()

    def _title(self, epoch: int | None = None) -> str:
        number = self._epoch if epoch is None else epoch
        return f"Epoch {number + 1}/{self._plan.request.epochs}"

    def _rate(self) -> float:
        """Returns samples a second of this epoch, by the server's clock."""
        if self._span is None or self._span[1] <= self._span[0]:
            return 0.0
        return self._samples / (self._span[1] - self._span[0])


@final
class ExchangeShare:
    """The share of the workers' working time that went to exchanges.

    Waiting for callbacks between epochs is not counted as work.

    Example:
        >>> share = ExchangeShare()
        >>> row = dict(t=1.0, rank=0, epoch=0, samples=1, steps=1, version=1)
        >>> row |= dict(staleness=1, compute_s=1.0, data_s=0.0, wait_s=9.0)
        >>> share.add(Record(**row, exchange_s=3.0))
        >>> share.share
        0.75
    """

    def __init__(self) -> None:
        self.records = 0
        self._busy_s = self._exchange_s = 0.0

    def add(self, record: Record) -> None:
        """Adds one exchange."""
        self.records += 1
        self._busy_s += record.compute_s + record.data_s
        self._exchange_s += record.exchange_s

    @property
    def share(self) -> float:
        """Returns the share, between 0 and 1."""
        return self._exchange_s / max(1e-9, self._busy_s + self._exchange_s)


def _numbers(logs: Mapping[str, Any]) -> list[str]:
    """Returns metrics as text, the loss first."""
    names = sorted(logs, key=lambda name: (name != "loss", name.startswith("val_")))
    return [f"{n} {logs[n]:.4g}" for n in names if _is_number(logs[n])]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def minutes(seconds: float) -> str:
    """Returns minutes and seconds, like a clock.

    Example:
        >>> minutes(75.2)
        '1:15'
    """
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02d}"
