"""All figures, and the folder where they lie."""

from __future__ import annotations

from pathlib import Path

from figures import batches, curves, data, exchange, failure, leases, timing, workers

FOLDER = Path(__file__).parents[1] / "assets" / "concepts"


def figures() -> dict[str, str]:
    """Returns the text of each figure by the name of its file."""
    return {
        "batches.svg": batches.draw(),
        "data-flow.svg": data.draw(),
        "exchange.svg": exchange.draw(),
        "failure.svg": failure.draw(),
        "leases.svg": leases.draw(),
        "strategy-curves.svg": curves.draw(),
        "timing.svg": timing.draw(),
        "workers-and-server.svg": workers.draw(),
    }
