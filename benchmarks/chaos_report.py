"""Results of the runs of `benchmarks.chaos`: a table, a verdict and a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from shoal.runs.samples import Samples

POINT = 0.01
SIGNAL_MARKS = {"SIGKILL": ("x", "#D55E00"), "SIGSTOP": ("s", "#E69F00")}


class Hit(NamedTuple):
    """One signal to a process.

    Args:
        at: Unix time.
        name: "server" or "worker".
        signal: SIGKILL or SIGSTOP.
        pid: Process id.
    """

    at: float
    name: str
    signal: str
    pid: int


@dataclass(kw_only=True)
class Result:
    """One run.

    Args:
        strategy: Name of the strategy.
        expected: Samples that should be committed.
        began: Unix time of the call of `fit`.
        seconds: Until it returned.
        accuracy: On test data.
        hits: Signals to its processes.
        events: Events of the run folder.
        leftovers: What it left behind.
        error: The error that ended it, "" for none.
        spares: Processes that waited.
    """

    strategy: str
    expected: int
    began: float
    seconds: float
    accuracy: float
    hits: list[Hit]
    events: list[dict[str, Any]]
    leftovers: list[str]
    error: str = ""
    spares: int = 0
    curve: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])

    def __post_init__(self) -> None:
        """Reads from the events how many samples were committed at which time."""
        samples = Samples()
        self.curve = [(0.0, 0)]
        for event in self.events:
            if event["kind"] == "exchanges":
                samples.add(event)
            elif event["kind"] == "rollback":
                samples.roll_back(event.get("committed") or {})
            elif event["kind"] == "epoch_ended":
                samples.end(int(event["epoch"]), event)
            else:
                continue
            self.curve.append((event["time"] - self.began, samples.total))

    @property
    def committed(self) -> int:
        """Samples committed in the end."""
        return self.curve[-1][1]

    def committed_by(self, seconds: float) -> int:
        """Samples committed this many seconds after the call."""
        return [samples for t, samples in self.curve if t <= seconds][-1]

    @property
    def kinds(self) -> Counter[str]:
        """Number of events of each kind."""
        return Counter(event["kind"] for event in self.events)

    @property
    def reasons(self) -> Counter[str]:
        """Lost processes, and how each loss was found."""
        return Counter(
            f"{event['kind'].replace('_', ' ')}: {event['reason']}"
            for event in self.events
            if event["kind"] in ("worker_lost", "server_lost")
        )

    @property
    def hit_s(self) -> float:
        """Seconds from the call until the last disturbed process was replaced."""
        if not self.hits:
            return self.seconds
        return min(self.seconds, self.hits[-1].at - self.began + 15.0)


def goodput(calm: Result, wild: Result, seconds: float) -> float:
    """Share of what the undisturbed run would have committed in that time."""
    pace = calm.committed / calm.seconds
    return wild.committed_by(seconds) / (pace * seconds)


def faults_of(calm: Result, wild: Result) -> list[str]:
    """The promises that a disturbed run does not keep."""
    found = [f"did not end: {wild.error}"] if wild.error else []
    if wild.committed != wild.expected:
        found.append(f"committed {wild.committed:,} samples of {wild.expected:,}")
    if calm.accuracy - wild.accuracy > POINT:
        found.append("lost more than a point of accuracy")
    found += [f"left behind: {what}" for what in (*calm.leftovers, *wild.leftovers)]
    return found


def report(pairs: Sequence[tuple[Result, Result]]) -> bool:
    """Prints the results; returns whether every promise was kept."""
    head = ("strategy", "spares", "seconds", "undisturbed", "accuracy", "undisturbed",
            "goodput", "while hit", "hits", "server", "worker")  # fmt: skip
    print(("\n{:11}" + "{:>12}" * 10).format(*head))
    for calm, wild in pairs:
        kinds = wild.kinds
        row = (
            wild.strategy, wild.spares, f"{wild.seconds:.0f}", f"{calm.seconds:.0f}",
            f"{wild.accuracy:.2%}", f"{calm.accuracy:.2%}",
            f"{goodput(calm, wild, wild.seconds):.0%}",
            f"{goodput(calm, wild, wild.hit_s):.0%}",
            len(wild.hits), kinds["server_replaced"], kinds["worker_replaced"],
        )  # fmt: skip
        print(("{:11}" + "{:>12}" * 10).format(*row))
    print("server, worker: how many were replaced, workers of a lost server aside\n")
    is_well = True
    for calm, wild in pairs:
        by = Counter(f"{hit.signal} {hit.name}" for hit in wild.hits)
        counts = ", ".join(f"{n} x {what}" for what, n in sorted(by.items()))
        counted = f"{wild.committed:,} of {wild.expected:,} samples"
        print(f"{wild.strategy}, {wild.spares} spare(s): {counted}")
        print(f"    hits: {counts or 'none'}")
        for what, times in sorted(wild.reasons.items()):
            print(f"    {times} x {what}")
        for what in faults_of(calm, wild):
            is_well = False
            print(f"    BROKEN: {what}")
    return is_well


def draw(pairs: Sequence[tuple[Result, Result]], out: Path) -> None:
    """Writes the picture: samples against time, a mark at each signal."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(4.2 * len(pairs), 4.0), layout="constrained")
    panels = figure.subplots(1, len(pairs), squeeze=False)[0]
    for axes, (calm, wild) in zip(panels, pairs, strict=True):
        for result, colour, label in (
            (calm, "#999999", "undisturbed"),
            (wild, "#0072B2", "disturbed"),
        ):
            seconds, samples = zip(*result.curve, strict=True)
            axes.plot(seconds, [n / 1e6 for n in samples], color=colour, label=label)
        for name, (mark, colour) in SIGNAL_MARKS.items():
            for role, face in (
                ("worker", "none"),
                ("server", colour),
                ("standby", "#999999"),
            ):
                hits = [h for h in wild.hits if (h.signal, h.name) == (name, role)]
                at = [hit.at - wild.began for hit in hits]
                heights = [wild.committed_by(t) / 1e6 for t in at]
                axes.scatter(
                    at, heights, marker=mark, s=60 if role == "server" else 30,
                    facecolors=face if mark == "s" else colour, zorder=3,
                    edgecolors=colour if mark == "s" else None,
                    linewidths=2.5 if role == "server" else 1.2,
                    label=f"{name}, {role}" if hits else None,
                )  # fmt: skip
        axes.set_title(f"{wild.strategy}: {goodput(calm, wild, wild.seconds):.0%}")
        axes.set_xlabel("seconds since the call of fit")
        axes.legend(frameon=False, fontsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("committed samples, millions")
    figure.savefig(out, dpi=120, format="png")
