"""Trains until it is killed: the process that act 3 of the demo kills.

Run: `python -m shoal.demo.victim SETTINGS STRATEGY WORKERS ROOT`, settings as JSON.
"""

from __future__ import annotations

import json
import sys

from shoal.api import fit
from shoal.demo.contest import Settings, make_model, request, rows, watched
from shoal.demo.flights import load_flights
from shoal.runs.store import create


def main(settings: str, strategy: str, workers: str, root: str) -> None:
    """Prints the folder of its run, and trains."""
    given = Settings(**json.loads(settings))
    flights = load_flights()
    run = create(root, f"demo-{strategy}-controller-killed")
    sys.stdout.write(f"{run.url}\n")
    sys.stdout.flush()
    fit(
        make_model(flights, given), *rows(flights, given), strategy=strategy,
        workers=int(workers), run=run, checkpoint_every=1.0,
        validation_data=watched(flights), **request(given),
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
