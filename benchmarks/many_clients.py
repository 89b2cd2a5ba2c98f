"""Many clients of one server, each sending its next message when it has its reply.

Run: `python -m benchmarks.many_clients`. It runs 4, 16 and 64 clients in two processes
with 1.6 MB each, and measures exchanges a second, and the slowest client against the
fastest one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import threading
import time
from typing import Any

from benchmarks.one_server import Client, one_server
from shoal.engine.transport.client_connection import ServerAddress

STRATEGY, PROCESSES, SIZE = "aeasgd", 2, 400_000
COUNTS = (4, 16, 64)


def crowd(
    server_address: ServerAddress, count: int, gate: Any, over: Any, told: Any
) -> None:
    """This many clients in threads of this process."""
    clients = [Client(server_address, STRATEGY) for _ in range(count)]
    done = [0] * count

    def run(number: int) -> None:
        while not over.is_set():
            clients[number].exchange()
            done[number] += 1

    gate.wait()
    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told.put(done)


def measure(count: int, seconds: float) -> dict[str, float]:
    """Exchanges a second of all, and of the slowest against the fastest."""
    context = multiprocessing.get_context("spawn")
    gate, over = context.Barrier(PROCESSES + 1), context.Event()
    told = context.Queue()
    with one_server(SIZE, STRATEGY, clients=count) as server_address:
        share = count // PROCESSES
        crowds = [
            context.Process(
                target=crowd, args=(server_address, share, gate, over, told)
            )
            for _ in range(PROCESSES)
        ]
        for process in crowds:
            process.start()
        gate.wait()
        began = time.perf_counter()
        time.sleep(seconds)
        over.set()
        took_s = time.perf_counter() - began
        done = [number for _ in crowds for number in told.get()]
        for process in crowds:
            process.join()
    return {
        "clients": count, "per_s": sum(done) / took_s,
        "slowest_to_fastest": min(done) / max(done),
    }  # fmt: skip


def main() -> None:
    """Prints a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--quick", action="store_true", help="3 s each")
    given = parser.parse_args()
    rows = [measure(count, 3.0 if given.quick else given.seconds) for count in COUNTS]
    best = max(row["per_s"] for row in rows)
    for row in rows:
        row["of_best"] = row["per_s"] / best
        print(
            f"{row['clients']:4} clients {row['per_s']:8,.0f} exchanges/s   "
            f"{row['of_best']:5.2f} of the best   slowest to fastest "
            f"{row['slowest_to_fastest']:5.2f}"
        )
    print("asked at 64 clients: 0.8 of the best, slowest to fastest 0.5")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
