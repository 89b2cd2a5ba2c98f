"""Two workers behind cables of 100 Mbit/s and 10 ms each way, and without these.

Run as root: `python -m benchmarks.slow_link`. A perceptron of 6 million weights, 24 MB
a vector; each worker in a network namespace of its own, with TLS as between any hosts.
What is asked: with `codec="int8"` and `overlap=True` at least 0.9 of its own speed
without the cables. Gradients of every step are printed beside, and torch's DDP.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.contest import Aim, Contest, Entrant, keep
from benchmarks.works import WORKS

MBIT, DELAY_S = 100.0, 0.01
SLOW = f"{MBIT:g} Mbit/s"
LITTLE: dict[str, Any] = {"codec": "int8", "overlap": True}
ASYNC = {
    "diloco": {"strategy": "diloco", **LITTLE},
    "aeasgd, every 50 steps": {"strategy": {"name": "aeasgd", "period": 50}, **LITTLE},
}
LEAST = 0.9


def _entrant(name: str, arguments: Any, *, is_slow: bool, **given: Any) -> Entrant:
    options = ["--arguments", json.dumps(arguments)]
    if is_slow:
        options += ["--mbit", str(MBIT), "--delay", str(DELAY_S)]
    where = SLOW if is_slow else "no limit"
    return Entrant(
        name=f"{name}; {where}", options=tuple(options), limit_s=600.0,
        **{"module": "shoal_hosts", **given},
    )  # fmt: skip


def contest(rows: int, *, has_peers: bool) -> Contest:
    """All participants; those that exchange every step have fewer rows."""
    given: dict[str, Any] = {"work": "wide", "batch": 64, "rows": rows, "epochs": 2}
    few = given | {"rows": 64 * 20}
    entrants, aims = list[Entrant](), list[Aim]()
    for name, arguments in ASYNC.items():
        for is_slow in (False, True):
            entrants.append(_entrant(name, arguments, is_slow=is_slow, **given))
        slow, fast = entrants[-1].name, entrants[-2].name
        aims.append(Aim(slow, (fast,), LEAST, "without the limit"))
    every = {"strategy": "all_reduce", "codec": "int8"}
    entrants += [
        _entrant("all_reduce, int8 up", every, is_slow=True, **few | {"batch": 128}),
        _entrant("aeasgd as it is", {"strategy": "aeasgd"}, is_slow=True, **few),
    ]
    if has_peers:
        ddp = few | {"environment": "torch", "module": "ddp_hosts"}
        entrants.append(_entrant("torch DDP", {}, is_slow=True, **ddp))
    return Contest("Slow link: perceptron of 6 million weights", entrants, aims)


def main(words: Sequence[str] | None = None) -> None:
    """Prints a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=128_000)
    parser.add_argument("--quick", action="store_true", help="1 repeat")
    parser.add_argument("--ours", action="store_true", help="no other systems")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    given = parser.parse_args(words)
    if os.geteuid() or shutil.which("ip") is None:
        print("Not measured: it takes root and iproute2, for network namespaces.")
        return
    WORKS["wide"].samples(1)
    held = contest(given.rows, has_peers=not given.ours)
    held.hold(1 if given.quick else given.repeats)
    keep([held], given.out)


if __name__ == "__main__":
    main()
