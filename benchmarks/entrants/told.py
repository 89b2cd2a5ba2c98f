"""Command line and result of all participants of a contest.

Each trains in a process of its own, and ends with one line of JSON: seconds of its
epochs, its losses, and when the model was trained.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any


def asked(*more: Callable[[argparse.ArgumentParser], object]) -> argparse.Namespace:
    """Parses the command line that `contest` writes.

    Args:
        more: Each adds an argument of one contestant.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", required=True)
    parser.add_argument("--batch", type=int, required=True, help="see the contestant")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--most", type=int, help="epochs at which it ends with --loss")
    parser.add_argument("--until", type=float, help="validation accuracy; then it ends")
    parser.add_argument(
        "--loss", type=float, help="after --epochs it goes on to this training loss"
    )
    for add in more:
        add(parser)
    return parser.parse_args()


def answer(spans: Sequence[float], losses: Sequence[float], **more: Any) -> None:
    """Prints the line that `contest` reads.

    Args:
        spans: Seconds of each epoch.
        losses: Mean loss of each epoch.
        more: Other measurements.
    """
    found = {"spans": [*spans], "losses": [*losses], "trained_at": time.time(), **more}
    print(json.dumps(found), flush=True)
