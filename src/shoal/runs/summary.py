"""The summary of a run, folded from its events. Pure except for `look`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias, cast, final

from pydantic import BaseModel, ConfigDict, model_validator

from shoal.facts import Monitor
from shoal.host.processes import Process
from shoal.runs.events import exchange_columns
from shoal.runs.history import best_epoch
from shoal.runs.samples import Samples
from shoal.runs.use import Use

Status: TypeAlias = Literal[
    "running", "finished", "failed", "interrupted", "lost", "damaged"
]
"""`lost`: the process that wrote the events ended without a final event; `damaged`:
its events cannot be read."""


class WriterState(NamedTuple):
    """What is known of the process that writes a run.

    Args:
        may_live: Whether it may be alive.
        heard_s: Seconds since its heartbeat, by the clock of the storage; None if that
            is unknown, or was not asked.
    """

    may_live: bool
    heard_s: float | None = None


Look: TypeAlias = Callable[[Process], WriterState]
"""Returns what is known of the process that writes the events."""

SPENT = ("compute_s", "data_s", "wait_s", "exchange_s")
"""Parts of a worker's time."""

WRITER_KINDS = ("run_created", "run_started", "run_resumed", "segment")
"""Events that name the process which writes them, not a worker."""

LIST_FIELDS = {
    "id", "name", "status", "strategy", "setting", "workers", "started", "seconds",
}  # fmt: skip
"""Fields of a list of runs."""


@final
class RunSummary(BaseModel):
    """The summary of one run.

    Args:
        id: Date, name and random letters.
        name: Name given by the user, or the model's name.
        status: Running, finished, failed, interrupted, lost or damaged.
        strategy: Name of the strategy.
        setting: The strategy with the parameters that were given, as the command line
            takes it; the name alone in runs of versions that did not record it.
        seed: Seed of the order of samples; None if none is recorded.
        workers: Planned number of training processes.
        started: ISO time with offset; "" if the run wrote nothing.
        started_unix: The same in Unix seconds, 0 if it wrote nothing.
        seconds: Seconds from the start to the last event, without the time between the
            end of one process and the start of the next.
        url: The run folder.
        epochs: Epochs that ended.
        epochs_planned: Requested epochs.
        rows: Samples of one epoch.
        samples_expected: Expected number of committed samples.
        samples_committed: Committed samples.
        samples_overrun: Samples of epochs that had begun when the run stopped, and
            that the model does not contain.
        exchanges: Pushes that were acknowledged.
        workers_lost: Workers that died or stopped answering.
        metrics: Metrics by name, one mapping for each ended epoch.
        epoch_ends: For each of them its number `epoch` from 0, `seconds` of the run at
            its end, and `samples` committed until then.
        report: total_s, of the call and so a little more than `seconds`; startup_s;
            compute_s, data_s, wait_s and exchange_s summed over workers, with the
            share of each, such as compute_share; and `best`.
        warnings: One line each.
        use: Load of the machines, see `Use.rows`.
        damage: Reason why the run cannot be read; "" if it can.
        heard_s: Seconds since the driver of an unfinished run was heard, by the clock
            of the storage. None where its process can be seen, and where that is
            unknown.

    Example:
        >>> summary = RunSummary(status="finished", rows=512, samples_committed=1024)
        >>> summary.samples_committed // summary.rows, summary.model_dump()["status"]
        (2, 'finished')
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _has_setting(cls, given: Any) -> Any:
        """Outlines of versions that recorded no setting have the name alone."""
        if not isinstance(given, Mapping):
            return given
        fields = cast("Mapping[str, Any]", given)
        return {
            **fields,
            "setting": fields.get("setting") or fields.get("strategy", ""),
        }

    id: str = ""
    name: str = ""
    status: Status = "running"
    strategy: str = ""
    setting: str = ""
    seed: int | None = None
    workers: int = 0
    started: str = ""
    started_unix: float = 0.0
    seconds: float = 0.0
    url: str = ""
    epochs: int = 0
    epochs_planned: int = 0
    rows: int = 0
    samples_expected: int = 0
    samples_committed: int = 0
    samples_overrun: int = 0
    exchanges: int = 0
    workers_lost: int = 0
    metrics: tuple[dict[str, Any], ...] = ()
    epoch_ends: tuple[dict[str, float], ...] = ()
    report: dict[str, Any] = {}
    warnings: tuple[str, ...] = ()
    use: tuple[dict[str, Any], ...] = ()
    damage: str = ""
    heard_s: float | None = None


def summarise(
    events: Iterable[Mapping[str, Any]],
    *,
    url: str = "",
    look: Look | None = None,
) -> RunSummary:
    """Folds the events of a run into its summary.

    Args:
        events: Events, oldest first; unknown kinds and missing fields are ignored.
        url: Place of the run, copied into the summary.
        look: Looks at the writer of an unfinished run; default None: it is alive.

    Example:
        >>> started = {"kind": "run_started", "strategy": "adag", "workers": 2}
        >>> summarise([started, {"kind": "run_finished", "status": "finished"}]).status
        'finished'
    """
    fold = Fold(url=url)
    for event in events:
        fold.add(event)
    return fold.summary(look)


@final
class Fold:
    """Adds events one by one and keeps a summary, in constant memory.

    Args:
        url: Place of the run.

    Attributes:
        is_empty: Whether there was no event so far.

    Example:
        >>> fold = Fold()
        >>> fold.add({"kind": "worker_lost", "rank": 1})
        >>> fold.summary().workers_lost
        1
    """

    def __init__(self, *, url: str = "") -> None:
        self._url = url
        self._id = self._name = ""
        self._plan: dict[str, Any] = {}
        self._writer: Process | None = None
        self._first_time: float | None = None
        self.is_empty = True
        self._seconds = 0.0
        self._startup_s: float | None = None
        self._final: tuple[Status, dict[str, Any]] | None = None
        self._metrics: dict[int, dict[str, Any]] = {}
        self._ended_s: dict[int, float] = {}
        self._samples = Samples()
        self._spent = dict.fromkeys(SPENT, 0.0)
        self._exchanges = self._workers_lost = 0
        self._held: int | None = None
        self._warnings: list[str] = []
        self._use = Use()

    def add(self, event: Mapping[str, Any]) -> None:
        """Adds the next event."""
        self.is_empty = False
        if self._first_time is None and "time" in event:
            self._first_time = float(event["time"])
        self._seconds = max(self._seconds, float(event.get("t", 0.0)))
        if event.get("kind") in WRITER_KINDS:
            self._writer = Process.read(event) or self._writer
        step = getattr(self, f"_on_{event.get('kind')}", None)
        if step is not None:
            step(event)

    def _on_interrupted(self, event: Mapping[str, Any]) -> None:
        # The ledger's count: records of the last moments were never sent.
        if "samples" in event:
            self._held = int(event["samples"])

    def summary(self, look: Look | None = None) -> RunSummary:
        """Returns the summary of the events so far.

        Args:
            look: See `summarise`.
        """
        status: Status = self._final[0] if self._final else "running"
        heard_s: float | None = None
        if not self._final and self._writer and look:
            may_live, heard_s = look(self._writer)
            status = "running" if may_live else "lost"
        report = self._report()
        committed, overrun = self._counts()
        committed = committed if self._held is None else self._held
        return RunSummary(
            id=self._id,
            name=self._name,
            status=status,
            strategy=_strategy_name(self._plan.get("strategy")),
            setting=str(self._plan.get("setting") or ""),
            seed=self._plan.get("seed"),
            workers=int(self._plan.get("workers") or 0),
            started=_iso(self._first_time),
            started_unix=self._first_time or 0.0,
            seconds=round(self._seconds, 3),
            url=self._url,
            epochs=len(self._metrics),
            epochs_planned=self._epochs_planned,
            rows=int(self._plan.get("rows") or 0),
            samples_expected=int(report.get("samples_expected", self._expected())),
            samples_committed=int(report.get("samples_committed", committed)),
            samples_overrun=overrun,
            exchanges=int(report.get("exchanges", self._exchanges)),
            workers_lost=self._workers_lost,
            metrics=tuple(self._metrics[epoch] for epoch in sorted(self._metrics)),
            epoch_ends=tuple(self._ends()),
            report=report,
            warnings=tuple(self._warnings),
            use=tuple(self._use.rows()),
            heard_s=heard_s,
        )

    @property
    def writer(self) -> Process | None:
        """The process that writes the run, None if no event names one."""
        return self._writer

    @property
    def has_ended(self) -> bool:
        """Whether the last process that wrote the run has ended it."""
        return self._final is not None

    @property
    def epochs_reached(self) -> int:
        """Epochs up to the last one whose end is known."""
        return len(self._reached)

    @property
    def samples_reached(self) -> int:
        """Samples that these epochs should have."""
        return sum(self._samples.rows_of(epoch, self._plan) for epoch in self._reached)

    @property
    def _reached(self) -> range:
        first = int(self._plan.get("initial_epoch") or 0)
        last = min(max(self._metrics, default=-1), first + self._epochs_planned - 1)
        return range(first, max(first, last + 1))

    @property
    def _epochs_planned(self) -> int:
        first = int(self._plan.get("initial_epoch") or 0)
        return max(0, int(self._plan.get("epochs") or 0) - first)

    def _ends(self) -> Iterator[dict[str, float]]:
        """Yields time and samples at the end of each epoch."""
        samples = 0
        for epoch in sorted(self._metrics):
            samples += self._samples.committed([epoch])
            seconds = round(self._ended_s.get(epoch, 0.0), 3)
            yield {"epoch": epoch, "seconds": seconds, "samples": samples}

    def _counts(self) -> tuple[int, int]:
        """Returns committed samples, and those that overran."""
        total = self._samples.total
        if not self._is_complete or not self._metrics:
            return total, 0
        counted = self._samples.committed(self._metrics)
        return counted, total - counted

    @property
    def _is_complete(self) -> bool:
        return self._final is not None and self._final[0] == "finished"

    def _expected(self) -> int:
        if self._is_complete and 0 < len(self._metrics) < self._epochs_planned:
            # A callback stopped the training: no further epochs are expected.
            return sum(self._samples.rows_of(e, self._plan) for e in self._metrics)
        if "samples_expected" in self._plan:
            return int(self._plan["samples_expected"])
        return int(self._plan.get("rows") or 0) * self._epochs_planned

    def _report(self) -> dict[str, Any]:
        total = sum(self._spent.values())
        found: dict[str, Any] = {"total_s": round(self._seconds, 3)}
        if self._startup_s is not None:
            found["startup_s"] = round(self._startup_s, 3)
        for name, value in self._spent.items():
            found[name] = round(value, 3)
            share = round(value / total, 4) if total else 0.0
            found[f"{name.removesuffix('_s')}_share"] = share
        metrics = [self._metrics[epoch] for epoch in sorted(self._metrics)]
        for monitor in (self._monitor(), Monitor(name="val_loss"), Monitor()):
            best = best_epoch(metrics, monitor)
            if best is not None:
                epoch = sorted(self._metrics)[best[0]]
                place = {"metric": monitor.name, "value": best[1], "epoch": epoch}
                found["best"] = place
                break
        return {**found, **(self._final[1] if self._final else {})}

    def _monitor(self) -> Monitor:
        """Returns the run's monitored metric with its direction."""
        is_higher_better = bool(self._plan.get("is_higher_better"))
        name = str(self._plan.get("monitor") or "val_loss")
        return Monitor(name=name, is_higher_better=is_higher_better)

    def _on_run_created(self, event: Mapping[str, Any]) -> None:
        self._id = str(event.get("id", self._id))
        self._name = str(event.get("name", self._name))

    def _on_run_started(self, event: Mapping[str, Any]) -> None:
        plan = event.get("plan")
        nested = cast(Mapping[str, Any], plan) if isinstance(plan, Mapping) else {}
        self._plan = {**nested, **event}
        self._final = None  # a resumed run starts again

    def _on_run_resumed(self, event: Mapping[str, Any]) -> None:
        self._plan["workers"] = event.get("workers", self._plan.get("workers"))
        self._final = self._held = None

    def _on_run_finished(self, event: Mapping[str, Any]) -> None:
        report = cast(Mapping[str, Any], event.get("report") or {})
        status = cast(Status, event.get("status", "finished"))
        self._final = (status, dict(report))

    def _on_worker_started(self, event: Mapping[str, Any]) -> None:
        if self._startup_s is None and "t" in event:
            self._startup_s = float(event["t"])

    def _on_worker_lost(self, event: Mapping[str, Any]) -> None:
        del event
        self._workers_lost += 1

    def _on_warning(self, event: Mapping[str, Any]) -> None:
        self._warnings.append(str(event.get("text", "")))

    def _on_node_used(self, event: Mapping[str, Any]) -> None:
        self._use.add(event)

    def _on_exchanges(self, event: Mapping[str, Any]) -> None:
        self._samples.add(event)
        self._exchanges += len(event.get("rows") or ())
        columns = exchange_columns(event)
        for name in self._spent:
            self._spent[name] += sum(filter(None, columns.get(name, ())))

    def _on_rollback(self, event: Mapping[str, Any]) -> None:
        self._samples.roll_back(event.get("committed") or {})

    def _on_epoch_ended(self, event: Mapping[str, Any]) -> None:
        epoch = int(event.get("epoch", len(self._metrics)))
        metrics = cast(Mapping[str, Any], event.get("metrics") or {})
        self._metrics[epoch] = dict(metrics)
        self._ended_s[epoch] = float(event.get("t", 0.0))
        self._samples.end(epoch, event)

    def _on_epoch_scored(self, event: Mapping[str, Any]) -> None:
        metrics = cast(Mapping[str, Any], event.get("metrics") or {})
        self._metrics.setdefault(int(event.get("epoch", 0)), {}).update(metrics)


def _strategy_name(strategy: object) -> str:
    if isinstance(strategy, Mapping):
        return str(cast(Mapping[str, Any], strategy).get("name", ""))
    return str(strategy or "")


def _iso(unix_time: float | None) -> str:
    if unix_time is None:
        return ""
    return datetime.fromtimestamp(unix_time).astimezone().isoformat("T", "seconds")
