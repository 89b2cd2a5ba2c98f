"""Many random schedules of whole runs, in which anything may fail; see `shoal.testing`.

Run: `make simulate`, or `python -m benchmarks.simulate --seeds 0:100000 --processes 2`.
A seed that breaks a promise is printed with the command that replays it, event by
event: `python -m benchmarks.simulate --seed 7`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed

from shoal.testing.fleet import Fleet, Violation, draw

CHUNK = 250
MOST_SHOWN = 10  # seeds that failed
LABELS = {
    "events": "events",
    "kill": "workers killed",
    "cut": "connections cut",
    "crash": "servers killed",
    "blackout": "everything killed, run resumed",
    "abort": "restarts used up, run resumed",
    "late": "workers that joined late",
    "halt": "runs halted",
    "repeated": "pushes repeated after they were applied",
    "outdated": "pushes of an older lineage sent to a new server",
    "overdue": "rounds closed without the late",
    "belated": "pushes that came too late for their round",
    "stray": "pushes of the dead delivered late",
    "refused": "workers refused",
    "rollback": "gangs rolled back",
    "checkpoint": "checkpoints",
    "damaged": "checkpoints found damaged",
}


def simulate(first: int, end: int) -> tuple[Counter[str], dict[int, str]]:
    """Runs the schedules of some seeds; returns what befell them, and what broke."""
    tally: Counter[str] = Counter()
    broken: dict[int, str] = {}
    for seed in range(first, end):
        fleet = Fleet(draw(seed))
        try:
            fleet.run()
        except Violation as violation:
            broken[seed] = str(violation)
        tally += fleet.tally
    return tally, broken


def parts(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Cuts a range of seeds into chunks."""
    for start in range(first, end, CHUNK):
        yield start, min(end, start + CHUNK)


def simulate_all(first: int, end: int, processes: int) -> int:
    """Runs the schedules on several processes, and prints what was found.

    Returns:
        Seeds that broke a promise.
    """
    began, done, shown = time.perf_counter(), 0, 0
    tally: Counter[str] = Counter()
    broken: dict[int, str] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        futures: dict[Future[tuple[Counter[str], dict[int, str]]], int] = {
            pool.submit(simulate, *part): part[1] - part[0]
            for part in parts(first, end)
        }
        for future in as_completed(futures):
            found, failed = future.result()
            tally, done = tally + found, done + futures[future]
            for seed, why in failed.items():
                report(seed, why)
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
    for name, label in LABELS.items():
        print(f"{tally[name]:>12,}  {label}")
    return len(broken)


def report(seed: int, why: str) -> None:
    """Prints a seed that failed, and how to see it again."""
    print(f"seed {seed}: {why}")
    print(f"  python -m benchmarks.simulate --seed {seed}", flush=True)


def replay(seed: int) -> int:
    """Runs one schedule again and prints each of its events.

    Returns:
        1 if it breaks a promise.
    """
    fleet = Fleet(draw(seed))
    try:
        fleet.run()
    except Violation as violation:
        print(fleet.story(len(fleet.log)))
        print(f"\nseed {seed}: {violation}")
        return 1
    print(fleet.story(len(fleet.log)))
    print(f"\nseed {seed}: every promise kept, {fleet.tally['events']:,} events")
    return 0


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:100000", help="first:end")
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seed is not None:
        sys.exit(replay(options.seed))
    first, end = map(int, options.seeds.split(":"))
    if end <= first:
        parser.error(
            f"--seeds {options.seeds} names no seed: give first:end, end above"
        )
    sys.exit(1 if simulate_all(first, end, options.processes) else 0)


if __name__ == "__main__":
    main()
