"""Runs all benchmarks of speed one after the other, each in its own process.

Run: `make bench`, 20 minutes with few repeats, or `make bench-full` for figures that
are to be told.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

BENCHMARKS = (
    "throughput", "time_to_accuracy", "start", "exchange", "many_clients", "memory",
    "safety", "slow_link",
)  # fmt: skip


def main() -> None:
    """Runs each benchmark; stops at the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="all repeats")
    options = [] if parser.parse_args().full else ["--quick"]
    for name in BENCHMARKS:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", *options]
        done = subprocess.run(
            command, check=False, env={"KERAS_BACKEND": "jax", **os.environ}
        )
        if done.returncode:
            sys.exit(done.returncode)


if __name__ == "__main__":
    main()
