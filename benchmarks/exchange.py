"""One exchange on one host: vector up, applied, reply down; against a plain copy.

Run: `python -m benchmarks.exchange`. Medians; the copy is NumPy copying the same
bytes both ways, timed in the same loop.
"""

from __future__ import annotations

import argparse
import json
import secrets
import socket
import statistics as st
import time

import numpy as np

from shoal.engine.bulk import Sizes
from shoal.engine.ledger import Piece
from shoal.engine.machine import ServerSpec
from shoal.engine.member import Member, Seat
from shoal.engine.sequencer import Rules
from shoal.engine.serving import ServeInherited
from shoal.engine.wire import Link
from shoal.launchers.base import Role
from shoal.launchers.process import ProcessLauncher
from shoal.strategies import get


def measure(megabytes: float, strategy: str, rounds: int) -> dict[str, float]:
    """Seconds of one exchange and of one copy both ways, medians."""
    size = int(megabytes * 1e6 / 4)
    listener = socket.create_server(("127.0.0.1", 0))
    launcher = ProcessLauncher(shared=[listener.fileno()])
    sizes = Sizes(vector=size, statistics=0, metrics=4, digest="")
    rules = Rules(
        epoch_rows=(1 << 40,), first_epoch=0, epochs=1, workers=1, batch=1,
        window=1, is_rounds=False, is_gang=False, is_elastic=True,
    )  # fmt: skip
    secret = secrets.token_bytes(32)
    chosen = get(strategy)
    spec = ServerSpec(
        secret=secret, strategy=chosen, rules=rules, sizes=sizes,
        vector=np.zeros(size, "f4"), statistics=np.zeros(0, "f4"),
    )  # fmt: skip
    try:
        server = launcher.start(
            Role(target="shoal.engine.serving:serve", name="server")
        )
        launcher.give(server, ServeInherited(spec=spec, descriptor=listener.fileno()))
        address = listener.getsockname()
        control = Link(address, secret)
        control.send({"kind": "control"})
        control.send({"kind": "proceed", "epoch": 0})
        member = Member(
            Seat(address=address, secret=secret, sizes=sizes, hint=0, token=""), chosen
        )
        member.ready()
        return _loop(member, size, rounds)
    finally:
        launcher.close()
        listener.close()


def _loop(member: Member, size: int, rounds: int) -> dict[str, float]:
    local, nothing = np.ones(size, "f4"), np.zeros(0, "f4")
    one, other = np.ones(size, "f4"), np.ones(size, "f4")
    exchanges, copies = [], []
    for _ in range(rounds):
        piece: Piece = member.progress.pieces.popleft()
        began = time.perf_counter()
        member.push_weights(local, nothing, [piece], 1)
        exchanges.append(time.perf_counter() - began)
        began = time.perf_counter()
        np.copyto(one, local)
        np.copyto(other, one)
        copies.append(time.perf_counter() - began)
    exchange, copy = st.median(exchanges[5:]), st.median(copies[5:])
    return {"exchange_ms": exchange * 1e3, "copy_ms": copy * 1e3}


def main() -> None:
    """Prints a table and JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--quick", action="store_true", help="small vectors, few rounds"
    )
    cases = [(0.16, 2000), (1.6, 1000), (16.0, 100), (100.0, 20)]
    if parser.parse_args().quick:
        cases = [(0.16, 200), (1.6, 100)]
    rows = []
    for megabytes, rounds in cases:
        for strategy in ("aeasgd", "downpour"):
            found = measure(megabytes, strategy, rounds)
            ratio = found["exchange_ms"] / found["copy_ms"]
            rows.append(
                {"MB": megabytes, "strategy": strategy, **found, "ratio": ratio}
            )
            print(
                f"{megabytes:8.2f} MB  {strategy:10} "
                f"exchange {found['exchange_ms']:8.3f} ms  "
                f"copy both ways {found['copy_ms']:8.3f} ms  ratio {ratio:5.1f}"
            )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
