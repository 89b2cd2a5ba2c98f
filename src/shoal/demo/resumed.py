"""Act 3 of the demo: everything is killed, and another process resumes the run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import final

from shoal.api import resume
from shoal.demo.contest import Settings, accuracy
from shoal.demo.flights import Flights
from shoal.runs.events import read_events
from shoal.runs.store import StoredRun, open_run

POLL_S = 0.05


@final
@dataclass(frozen=True, kw_only=True)
class Resumed:
    """Result of a run whose process was killed.

    Args:
        strategy: Strategy of the run.
        killed_at: Seconds since its start when the process was killed, None when the
            run was over first.
        saved: Samples that the last checkpoint held.
        seconds: Seconds from the call of `resume` to the end of the run.
        accuracy: Accuracy on test rows.
        curve: (seconds since the start, loss on test rows) of each epoch.
        committed: Committed samples.
        expected: Expected number of committed samples.
        run: Path or URL of the run folder.
    """

    strategy: str
    killed_at: float | None
    saved: int
    seconds: float
    accuracy: float
    curve: list[tuple[float, float]]
    committed: int
    expected: int
    run: str


def kill_and_resume(
    flights: Flights, settings: Settings, *, strategy: str, workers: int, root: str
) -> Resumed:
    """Trains in another process, kills that, and resumes its run in this one."""
    command = [
        sys.executable, "-m", "shoal.demo.victim", json.dumps(asdict(settings)),
        strategy, str(workers), root,
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        try:
            url = victim.stdout.readline().strip() if victim.stdout else ""
            is_killed = _wait(victim, url, settings.kill_at * settings.samples)
        finally:
            victim.kill()
    killed = time.time()
    began = time.perf_counter()
    if is_killed:
        model = resume(url, verbose=0).model
        found = accuracy(model, flights)
    else:
        found = float("nan")
    run = open_run(url)
    events = list(read_events(run.folder))
    start = float(events[0]["time"])
    summary = run.summary()
    return Resumed(
        strategy=strategy,
        killed_at=killed - start if is_killed else None,
        saved=_saved(events),
        seconds=time.perf_counter() - began,
        accuracy=found,
        curve=[
            (float(event["time"]) - start, float(event["metrics"]["val_loss"]))
            for event in events
            if event["kind"] == "epoch_ended"
        ],
        committed=summary.samples_committed,
        expected=summary.samples_expected,
        run=url,
    )


def _wait(victim: subprocess.Popen[str], url: str, goal: float) -> bool:
    """Waits until the run has reached the goal; returns False when it ended before."""
    while victim.poll() is None:
        run: StoredRun = open_run(url)
        if run.summary().samples_committed >= goal:
            return True
        time.sleep(POLL_S)
    return False


def _saved(events: list[dict[str, object]]) -> int:
    """Returns the samples with which the new process began, from its server's event."""
    is_resumed = False
    for event in events:
        is_resumed |= event["kind"] == "run_resumed"
        committed = event.get("committed")
        if is_resumed and event["kind"] == "rollback" and isinstance(committed, dict):
            return sum(int(n) for n in committed.values())
    return 0


def describe_resume(resumed: Resumed) -> str:
    """Returns a sentence about the cost of the killed process.

    Example:
        >>> print(describe_resume(Resumed(
        ...     strategy="aeasgd", killed_at=6.0, saved=400, seconds=9.0, accuracy=0.8,
        ...     curve=[], committed=1000, expected=1000, run="shoal-runs/a-run")))
        The process that trained, and all its workers, were killed after 6.0 s...
    """
    if resumed.killed_at is None:
        return "The run was over before its process could be killed."
    return (
        "The process that trained, and all its workers, were killed after "
        f"{resumed.killed_at:.1f} s; `shoal runs resume` went on from the last "
        f"checkpoint ({resumed.saved:,} samples) in another process: samples committed "
        f"{resumed.committed:,} of {resumed.expected:,}, {resumed.seconds:.1f} s more; "
        f"accuracy {resumed.accuracy:.1%}."
    )
