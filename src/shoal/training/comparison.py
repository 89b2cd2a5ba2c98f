"""The result of a comparison of strategies, as a table, JSON or picture."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, final

from shoal.errors import ConfigError
from shoal.runs.summary import RunSummary
from shoal.strategies import Single
from shoal.training.tables import table_of_records

SAME_LOSS = 1.005
"""A loss up to this many times another one counts as the same: another order of samples
makes as much difference."""
COLUMNS = {
    "strategy": "as in --strategy; single is plain Keras, the baseline.",
    "workers": "processes that trained.",
    "seed": "of the model and of the order of samples.",
    "loss, accuracy, ...": "the trained model's own metrics, on validation_data; "
    "without it, on the training data.",
    "seconds": "from the call of the training to its return, start-up and compilation "
    "included; evaluating the model afterwards is not.",
    "samples_per_s": "samples trained on, divided by the time from the end of the "
    "first epoch to the end of the last, validation included. With one epoch they are "
    "divided by seconds, so start-up and compilation count.",
    "ratio": "samples_per_s, divided by that of single: with the same seed, or of all.",
}
"""Meaning of the table's columns; the command line's help prints the same."""


@final
@dataclass(frozen=True, kw_only=True)
class Point:
    """The end of one epoch.

    Args:
        seconds: Seconds since the training was called.
        samples: Samples trained so far.
        metrics: Metrics, as Keras logs them.
    """

    seconds: float
    samples: int
    metrics: dict[str, float]


@final
@dataclass(frozen=True, kw_only=True)
class ComparisonEntry:
    """One training; `COLUMNS` defines each number.

    Args:
        strategy: Strategy in the command line's notation; `single` is plain Keras.
        workers: Number of workers that trained.
        seed: Seed of the model and of the order of samples.
        metrics: Metrics of the trained model, on the evaluation data.
        seconds: Seconds from call to return.
        samples_per_s: Samples a second; `COLUMNS` defines the time.
        points: Points of the curve, one for each epoch.
    """

    strategy: str
    workers: int
    seed: int
    metrics: dict[str, float]
    seconds: float
    samples_per_s: float
    points: tuple[Point, ...] = field(default=(), repr=False)


@final
@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Strategies side by side, trained on the same samples.

    Args:
        entries: One for each training, `single` being plain Keras.

    Example:
        >>> plain = ComparisonEntry(strategy="single", workers=1, seed=0,
        ...     metrics={"accuracy": 0.8}, seconds=4.0, samples_per_s=100.0)
        >>> other = ComparisonEntry(strategy="adag", workers=2, seed=0,
        ...     metrics={"accuracy": 0.7}, seconds=3.0, samples_per_s=150.0)
        >>> Comparison(entries=(plain, other)).rows[1]["ratio"]
        1.5
    """

    entries: tuple[ComparisonEntry, ...]

    @classmethod
    def of_runs(cls, runs: Iterable[RunSummary]) -> Comparison:
        """Compares runs that stand; each begins at 0.

        Their metrics are those of their last epoch, and their seconds those of the run.
        A run of a version that recorded no seed counts as one with seed 0.

        Args:
            runs: Their complete summaries, as `read_summary` returns them.

        Example:
            >>> ends = ({"epoch": 0, "seconds": 2.0, "samples": 100},
            ...         {"epoch": 1, "seconds": 3.0, "samples": 200})
            >>> run = RunSummary(strategy="adag", workers=2, seconds=4.0,
            ...     metrics=({"loss": 2.0}, {"loss": 1.0}), epoch_ends=ends)
            >>> Comparison.of_runs([run]).rows[0]["samples_per_s"]
            100.0
        """
        return cls(entries=tuple(map(_entry_of, runs)))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Returns one mapping for each training, as in `table` and `to_json`.

        `COLUMNS` defines each key.
        """
        base = {e.seed: e.samples_per_s for e in self.entries if _is_plain(e)}
        of_all = sum(base.values()) / len(base) if base else None
        return [
            {
                "strategy": entry.strategy,
                "workers": entry.workers,
                "seed": entry.seed,
                **entry.metrics,
                "seconds": round(entry.seconds, 3),
                "samples_per_s": round(entry.samples_per_s, 1),
                "ratio": _ratio(entry.samples_per_s, base.get(entry.seed, of_all)),
            }
            for entry in self.entries
        ]

    def table(self) -> Any:
        """Returns a `rich` table; print it with `rich.print`."""
        return table_of_records(self.rows)

    def to_json(self, path: str | Path | None = None) -> str:
        """Returns everything as JSON, with the curve of each training.

        Args:
            path: File to write as well; None to write nothing.
        """
        entries = [
            {**row, "points": [asdict(point) for point in entry.points]}
            for row, entry in zip(self.rows, self.entries, strict=True)
        ]
        text = json.dumps({"version": 1, "entries": entries}, indent=1)
        if path is not None:
            Path(path).write_text(text + "\n")
        return text

    def plot(self, path: str | Path, metric: str | None = None) -> Path:
        """Draws a metric against time and against samples.

        Args:
            path: File of the picture; its ending decides the format.
            metric: A name as Keras logs it, such as "val_accuracy"; default None: the
                first that is not a loss, of validation where there is one.

        Raises:
            ConfigError: matplotlib is not installed, or no training logged the metric.
        """
        figure_of = figure_class()
        shown = _metric(self.entries) if metric is None else metric
        if not any(shown in p.metrics for e in self.entries for p in e.points):
            raise ConfigError(
                f"no training logged metric={shown!r}. "
                "Expected a name as Keras logs it. "
                f"Known: {', '.join(sorted(_logged(self.entries)))}."
            )
        figure = figure_of(figsize=(11, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        _draw(left, self.entries, shown, lambda point: point.seconds)
        _draw(right, self.entries, shown, lambda point: point.samples)
        left.set(xlabel="seconds since the call", ylabel=shown)
        right.set(xlabel="samples")
        right.legend(loc="best", fontsize="small")
        figure.savefig(path, dpi=120)
        return Path(path)


def seconds_to(curve: Sequence[tuple[float, float]], loss: float) -> float | None:
    """Returns when a curve reached a loss: on a line between two of its points.

    Args:
        curve: Seconds, and the loss at that moment, in order.
        loss: The loss.

    Returns:
        Seconds; None if the curve stays above it.

    Example:
        >>> curve = [(2.0, 0.6), (4.0, 0.4), (6.0, 0.5)]
        >>> seconds_to(curve, 0.5), seconds_to(curve, 0.7), seconds_to(curve, 0.3)
        (3.0, 2.0, None)
    """
    for number, (seconds, now) in enumerate(curve):
        if now <= loss:
            if number == 0:
                return seconds
            before_s, before = curve[number - 1]
            return before_s + (seconds - before_s) * (before - loss) / (before - now)
    return None


def _entry_of(run: RunSummary) -> ComparisonEntry:
    points = tuple(
        Point(
            seconds=end["seconds"],
            samples=int(end["samples"]),
            metrics={n: v for n, v in metrics.items() if isinstance(v, (int, float))},
        )
        for end, metrics in zip(run.epoch_ends, run.metrics, strict=False)
    )
    samples, span = run.samples_committed, run.seconds
    if len(points) > 1:
        samples = points[-1].samples - points[0].samples
        span = points[-1].seconds - points[0].seconds
    return ComparisonEntry(
        strategy=run.setting,
        workers=run.workers,
        seed=run.seed or 0,
        metrics=points[-1].metrics if points else {},
        seconds=run.seconds,
        samples_per_s=samples / span if span > 0 else 0.0,
        points=points,
    )


def _is_plain(entry: ComparisonEntry) -> bool:
    return entry.strategy == Single.name


def _ratio(rate: float, base: float | None) -> float | None:
    return round(rate / base, 3) if base else None


def _logged(entries: Iterable[ComparisonEntry]) -> list[str]:
    return list(
        dict.fromkeys(name for e in entries for p in e.points for name in p.metrics)
    )


def _metric(entries: Iterable[ComparisonEntry]) -> str:
    """Returns the default metric: validation before training, others before a loss."""
    ranked = sorted(
        _logged(entries), key=lambda n: (not n.startswith("val_"), n.endswith("loss"))
    )
    return ranked[0] if ranked else "loss"


def check_picture(path: str | os.PathLike[str]) -> None:
    """Refuses a picture that cannot be drawn, before any training.

    Raises:
        ConfigError: matplotlib is not installed or does not write such files, or the
            folder does not exist.
    """
    figure_class()
    target = Path(path)
    kinds = import_module("matplotlib.backend_bases").FigureCanvasBase.filetypes
    if target.suffix[1:] not in kinds or not target.parent.is_dir():
        raise ConfigError(
            f"the picture {str(target)!r} cannot be written. Expected a file in a "
            f"folder that is there, ending in one of {', '.join(sorted(kinds))}. "
            "Make the folder, or write it as curves.png."
        )


def figure_class() -> Callable[..., Any]:
    """Returns matplotlib's figure class, which needs no display or global state.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return import_module("matplotlib.figure").Figure
    except ImportError:
        raise ConfigError(
            "a comparison can only be drawn with matplotlib, which is not installed. "
            "Expected the extra 'demo'. Install it with: pip install 'shoal[demo]'."
        ) from None


def _draw(
    axes: Any,
    entries: Iterable[ComparisonEntry],
    metric: str,
    across: Callable[[Point], float],
) -> None:
    """Draws one line for each training; the seeds of one setting share a colour."""
    colours: dict[tuple[str, int], str] = {}
    for entry in entries:
        key = (entry.strategy, entry.workers)
        is_first = key not in colours
        colour = "black" if _is_plain(entry) else f"C{len(colours) % 10}"
        colour = colours.setdefault(key, colour)
        points = [p for p in entry.points if metric in p.metrics]
        axes.plot(
            [across(p) for p in points],
            [p.metrics[metric] for p in points],
            color=colour,
            marker=".",
            linewidth=2.0 if _is_plain(entry) else 1.2,
            label=f"{entry.strategy}, {entry.workers}" if is_first else None,
        )
    axes.grid(visible=True, alpha=0.3)
