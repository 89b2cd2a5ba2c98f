"""All benchmarks of speed, one after the other, each in a process of its own.

Run: `make bench`, or `python -m benchmarks.bench --quick` for fewer repeats.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

BENCHMARKS = ("throughput", "start", "exchange")


def main() -> None:
    """Runs each; the first that fails ends it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    options = ["--quick"] if parser.parse_args().quick else []
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
