"""`shoal.fit` on two workers."""

from __future__ import annotations

from functools import partial

import shoal
from benchmarks.entrants.keras_fit import train
from benchmarks.entrants.told import asked
from benchmarks.works import WORKS


def main() -> None:
    """Trains."""
    given = asked(
        lambda parser: parser.add_argument("--strategy", required=True),
        lambda parser: parser.add_argument("--workers", type=int, default=2),
    )
    ours = {"strategy": given.strategy, "workers": given.workers, "run": False}
    train(given, partial(shoal.fit, WORKS[given.work].make(), **ours))


if __name__ == "__main__":
    main()
