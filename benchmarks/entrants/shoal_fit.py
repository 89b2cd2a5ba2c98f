"""`shoal.fit` with a strategy on two workers, or as it is called without options."""

from __future__ import annotations

from functools import partial
from typing import Any

import shoal
from benchmarks.entrants.keras_fit import train
from benchmarks.entrants.told import asked
from benchmarks.works import WORKS


def main() -> None:
    """Trains."""
    given = asked(
        lambda parser: parser.add_argument("--strategy", help="none: the default call"),
        lambda parser: parser.add_argument("--workers", type=int, default=2),
    )
    ours: dict[str, Any] = {"run": False}
    if given.strategy:
        ours |= {"strategy": given.strategy, "workers": given.workers}
    train(given, partial(shoal.fit, WORKS[given.work].make(), **ours))


if __name__ == "__main__":
    main()
