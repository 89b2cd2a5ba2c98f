"""Many random schedules of whole runs, in which anything may fail; see `shoal.testing`.

Run: `make simulate`, or `python -m benchmarks.simulate --seeds 0:100000 --processes 2`.
A seed that breaks a promise is printed with the command that replays it, event by
event: `python -m benchmarks.simulate --seed 7`, or `--standby 7` for a run whose server
has a standby.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import TypeAlias

from tests.simulation import failover
from tests.simulation.failover import FailoverRun
from tests.simulation.protocol import ProtocolRun, Violation, draw

CHUNK = 250
PER_FAILOVER = 10  # schedules without a standby for each schedule with one
MOST_SHOWN = 10  # seeds that failed
LABELS = {
    "events": "events",
    "kill": "workers killed",
    "cut": "connections cut",
    "crash": "servers killed",
    "blackout": "runs of which all processes were killed, resumed",
    "abort": "runs that used up their restarts, resumed",
    "late": "workers that joined late",
    "halt": "runs halted",
    "repeated": "pushes repeated after they were applied",
    "outdated": "pushes of an older lineage sent to a new server",
    "overdue": "rounds closed without late workers",
    "belated": "pushes that came too late for their round",
    "stray": "pushes of lost workers delivered late",
    "refused": "workers refused",
    "rollback": "rollbacks of all_reduce",
    "grouped": "steps that a group averaged itself",
    "ungrouped": "groups that gave up averaging",
    "alone": "pushes of a worker of all_reduce without a partner",
    "checkpoint": "checkpoints",
    "damaged": "checkpoints found damaged",
}
FAILOVER_LABELS = {
    "events": "events",
    "crash": "leading servers killed",
    "hang": "leading servers stopped",
    "lose": "standbys killed",
    "deafen": "standbys stopped",
    "split": "connections between both servers cut",
    "kill": "workers killed",
    "cut": "connections of workers cut",
    "late": "workers that joined late",
    "jump": "times the clock jumped",
    "overdue": "rounds closed without late workers",
    "succession": "standbys that took over",
    "lost": "runs that lost both servers, and continued from a checkpoint",
}


Found: TypeAlias = tuple[Counter[str], dict[int, str]]


def simulate(first: int, end: int) -> Found:
    """Runs the schedules of some seeds; returns event counts, and broken promises."""
    return _run(first, end, lambda seed: ProtocolRun(draw(seed)))


def simulate_failovers(first: int, end: int) -> Found:
    """Runs the schedules of some seeds with a standby."""
    return _run(first, end, lambda seed: FailoverRun(failover.draw(seed)))


def _run(
    first: int, end: int, make: Callable[[int], ProtocolRun | FailoverRun]
) -> Found:
    tally: Counter[str] = Counter()
    broken: dict[int, str] = {}
    for seed in range(first, end):
        run = make(seed)
        try:
            run.run()
        except Violation as violation:
            broken[seed] = str(violation)
        tally += run.tally
    return tally, broken


def parts(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Cuts a range of seeds into chunks."""
    for start in range(first, end, CHUNK):
        yield start, min(end, start + CHUNK)


def simulate_all(
    first: int, end: int, processes: int, *, has_standby: bool = False
) -> int:
    """Runs the schedules on several processes, and prints the results.

    Returns:
        Seeds that broke a promise.
    """
    run, labels, option = simulate, LABELS, "--seed"
    if has_standby:
        run, labels, option = simulate_failovers, FAILOVER_LABELS, "--standby"
    began, done, shown = time.perf_counter(), 0, 0
    tally: Counter[str] = Counter()
    broken: dict[int, str] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        futures: dict[Future[Found], int] = {
            pool.submit(run, *part): part[1] - part[0] for part in parts(first, end)
        }
        for future in as_completed(futures):
            found, failed = future.result()
            tally, done = tally + found, done + futures[future]
            for seed, why in failed.items():
                report(seed, why, option)
            broken |= failed
            if done * 10 // (end - first) > shown:
                shown = done * 10 // (end - first)
                seconds = time.perf_counter() - began
                print(f"{done:>9,} schedules  {seconds:7.1f} s", flush=True)
            if len(broken) >= MOST_SHOWN:
                pool.shutdown(cancel_futures=True)
                break
    seconds = time.perf_counter() - began
    print(
        f"\n{done:,} schedules, seeds {first}:{end}, {processes} process(es), ", end=""
    )
    print(f"{seconds:.0f} s; promises broken: {len(broken)}")
    for name, label in labels.items():
        print(f"{tally[name]:>12,}  {label}")
    return len(broken)


def report(seed: int, why: str, option: str = "--seed") -> None:
    """Prints a failed seed, and the command that replays it."""
    print(f"seed {seed}: {why}")
    print(f"  python -m benchmarks.simulate {option} {seed}", flush=True)


def replay(run: ProtocolRun | FailoverRun) -> int:
    """Runs one schedule and prints each of its events.

    Returns:
        1 if it breaks a promise.
    """
    seed = run.scenario.seed
    try:
        run.run()
    except Violation as violation:
        print(run.story(len(run.log)))
        print(f"\nseed {seed}: {violation}")
        return 1
    print(run.story(len(run.log)))
    print(f"\nseed {seed}: every promise kept, {run.tally['events']:,} events")
    return 0


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:100000", help="first:end")
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--standby", type=int, help="replay this one of a standby")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seed is not None:
        sys.exit(replay(ProtocolRun(draw(options.seed))))
    if options.standby is not None:
        sys.exit(replay(FailoverRun(failover.draw(options.standby))))
    first, end = map(int, options.seeds.split(":"))
    if end <= first:
        parser.error(
            f"--seeds {options.seeds} names no seed: give first:end, end above"
        )
    broken = simulate_all(first, end, options.processes)
    print("\nWith a standby, by real servers and workers:\n")
    last = first + -(-(end - first) // PER_FAILOVER)
    broken += simulate_all(first, last, options.processes, has_standby=True)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
