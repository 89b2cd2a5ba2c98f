"""A short report at the end of a run: times, best loss, GPUs, models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from shoal.easydist.timing import Spent


@final
@dataclass(frozen=True, kw_only=True)
class ExperimentReport:
    """The report of an experiment.

    Args:
        number: Number of the experiment.
        total_s: Seconds from the call of `fit` to the saved model.
        opening_s: Part of it before training: listing, fetching and preprocessing all
            files once, to count their rows.
        spent: Preprocessing after that: time in the user's code alone.
        epochs_s: Seconds of each epoch, from the start of its first step to its last
            exchange.
        best: (metric, value, epoch from 0) of the best model, None for none.
        gpus: Load of the GPUs; see `shoal.runs.use`.
        models: Names of the files in the models folder.
        run: Id of the run.

    Example:
        >>> report = ExperimentReport(
        ...     number=2, total_s=9.0, opening_s=0.5, spent=Spent(0.25, 4, 2),
        ...     epochs_s=(1.0, 2.0), best=("loss", 0.5, 1), models=("best.keras",),
        ... )
        >>> print(report)
        Experiment 2
          total time          9.00 s
          preprocessing       0.75 s
            before training   0.50 s: files listed, fetched, preprocessed and counted
            in the workers    0.25 s: 4 calls in 2 processes, beside training
          mean epoch time     1.50 s of 2 epochs
          best loss           0.5, epoch 2
          GPU                 none
          models/002          best.keras
    """

    number: int
    total_s: float
    opening_s: float
    spent: Spent
    epochs_s: tuple[float, ...]
    best: tuple[str, float, int] | None
    gpus: tuple[Mapping[str, Any], ...] = ()
    models: tuple[str, ...] = ()
    run: str = ""

    def __str__(self) -> str:
        calls, count = self.spent.calls, self.spent.workers
        before_s = self.opening_s + self.spent.before_s
        in_all = before_s + self.spent.seconds
        before = "files listed, fetched, preprocessed and counted"
        processes = f"{count} process{'es'[: 2 * (count != 1)]}"
        beside = f"{calls} call{'s'[: calls != 1]} in {processes}, beside training"
        rows = [
            ("total time", f"{self.total_s:.2f} s"),
            ("preprocessing", f"{in_all:.2f} s"),
            ("  before training", f"{before_s:.2f} s: {before}"),
            ("  in the workers", f"{self.spent.seconds:.2f} s: {beside}"),
        ]
        if self.epochs_s:
            mean = sum(self.epochs_s) / len(self.epochs_s)
            epochs = f"{len(self.epochs_s)} epoch{'s'[: len(self.epochs_s) != 1]}"
            rows.append(("mean epoch time", f"{mean:.2f} s of {epochs}"))
        if self.best is not None:
            name, value, epoch = self.best
            rows.append((f"best {name}", f"{value:.6g}, epoch {epoch + 1}"))
        rows += [("GPU", text) for text in self._gpu_lines()]
        rows.append((f"models/{self.number:03}", ", ".join(self.models) or "none"))
        if self.run:
            rows.append(("run", f"{self.run} (shoal runs show {self.run})"))
        lines = [f"  {name:<20}{text}" for name, text in rows]
        return "\n".join([f"Experiment {self.number}", *lines])

    def _gpu_lines(self) -> list[str]:
        return [
            f"{gpu['what'].removeprefix('GPU ')} ({gpu['name']}): busy "
            f"{gpu['mean_percent']:.0f} % of the time, at most "
            f"{gpu['most_memory_mib']:,.0f} of {gpu['total_mib']:,.0f} MiB in use"
            for gpu in self.gpus
            if "mean_percent" in gpu  # not every GPU reports it
        ] or ["none"]


def epoch_seconds(records: Iterable[Mapping[str, Any]]) -> tuple[float, ...]:
    """Returns the duration of each epoch, by the clock of the server.

    Args:
        records: Records of exchanges; see `runs.events.EXCHANGE_FIELDS`.

    Example:
        >>> row = {"epoch": 0, "compute_s": 1.0, "data_s": 0.0}
        >>> epoch_seconds([{**row, "t": 3.0}, {**row, "t": 4.5}])
        (2.5,)
    """
    spans: dict[int, tuple[float, float]] = {}
    for record in records:
        end = float(record.get("t") or 0.0)
        busy = float(record.get("compute_s") or 0.0) + float(record.get("data_s") or 0)
        first, last = spans.get(int(record["epoch"]), (end - busy, end))
        spans[int(record["epoch"])] = (min(first, end - busy), max(last, end))
    return tuple(last - first for _, (first, last) in sorted(spans.items()))
