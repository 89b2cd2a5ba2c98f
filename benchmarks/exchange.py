"""One exchange (vector up, applied, reply down) against the time of the bytes alone.

Run: `python -m benchmarks.exchange`. On one host, NumPy copying the same bytes both
ways is timed in the same loop. Between two network namespaces (root only) it goes by
TCP, plain and with TLS, and a bare pair of sockets moves the same bytes, without and
with TLS. Medians.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import socket
import statistics as st
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.one_server import Client, one_server
from shoal.engine.transport.client_connection import ServerAddress
from shoal.wire.tls import (
    Identity,
    make_identity,
    server_context,
    wrap_callee,
    wrap_caller,
)
from tests.support.hosts import Hosts

WARM = 5
SIZES = {0.16: 2000, 1.6: 1000, 16.0: 100, 100.0: 20}
QUICK = {0.16: 200, 1.6: 100}
THERE = "from benchmarks.exchange import there; there()"


def timed(turn: Any, rounds: int) -> float:
    """Milliseconds of a call, median."""
    spans = list[float]()
    for _ in range(rounds + WARM):
        began = time.perf_counter()
        turn()
        spans.append(time.perf_counter() - began)
    return 1e3 * st.median(spans[WARM:])


def on_one_host(megabytes: float, strategy: str, rounds: int) -> dict[str, Any]:
    """Times exchanges through shared memory, and copies."""
    size = int(megabytes * 1e6 / 4)
    one, other = np.ones(size, "f4"), np.ones(size, "f4")
    exchanges, copies = list[float](), list[float]()
    with one_server(size, strategy) as server_address:
        client = Client(server_address, strategy, has_cores=True)
        for _ in range(rounds + WARM):
            began = time.perf_counter()
            client.exchange()
            exchanges.append(time.perf_counter() - began)
            began = time.perf_counter()
            np.copyto(one, client.local)
            np.copyto(other, one)
            copies.append(time.perf_counter() - began)
        client.leave()
    exchange, copy = st.median(exchanges[WARM:]), st.median(copies[WARM:])
    return {
        "MB": megabytes, "strategy": strategy, "exchange_ms": 1e3 * exchange,
        "copy_ms": 1e3 * copy, "ratio": exchange / copy, "asked": 4.0,
    }  # fmt: skip


# ------------------------------------------------------------- between hosts


def _echo(listener: socket.socket, size: int, identity: Identity | None) -> None:
    """The other end of bare sockets: receives bytes, and sends as many back.

    Of the second, where there is an identity, by TLS.
    """
    for given in (None, identity)[: 1 if identity is None else 2]:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if given is not None:
            connection = wrap_callee(connection, server_context(given))
            connection.do_handshake()
        memory = memoryview(bytearray(size))
        with connection:
            while _filled(connection, memory):
                connection.sendall(memory)


def _filled(connection: socket.socket, view: memoryview) -> bool:
    """Receives bytes; returns False at the end."""
    while view:
        got = connection.recv_into(view)
        if not got:
            return False
        view = view[got:]
    return True


def _both_ways(given: dict[str, Any], *, is_encrypted: bool) -> float:
    """Milliseconds of an exchange over bare sockets."""
    memory = memoryview(bytearray(4 * given["server_address"].sizes.vector))
    bare = socket.create_connection(given["bare"])
    bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if is_encrypted:
        encrypted = wrap_caller(bare, given["server_address"].certificate)
        encrypted.do_handshake()
        bare = encrypted

    def turn() -> None:
        bare.sendall(memory)
        _filled(bare, memory)

    with bare:
        return timed(turn, given["rounds"])


def there() -> None:
    """Runs on the other host; its tasks come by standard input."""
    given = pickle.load(sys.stdin.buffer)
    server_address: ServerAddress = given["server_address"]
    client = Client(server_address, given["strategy"], has_slot=False, has_cores=True)
    exchange_ms = timed(client.exchange, given["rounds"])
    client.leave()
    found = {
        "exchange_ms": exchange_ms,
        "bare_ms": _both_ways(given, is_encrypted=False),
    }
    if server_address.certificate is not None:
        found["bare_tls_ms"] = _both_ways(given, is_encrypted=True)
    print(json.dumps(found))


def between_hosts(
    hosts: Hosts, megabytes: float, strategy: str, rounds: int, *, is_encrypted: bool
) -> dict[str, Any]:
    """Times exchanges of a client in another network namespace, and bare sockets."""
    size = int(megabytes * 1e6 / 4)
    listener = socket.create_server((hosts.address, 0))
    identity = make_identity() if is_encrypted else None
    echo = threading.Thread(
        target=_echo, args=(listener, 4 * size, identity), daemon=True
    )
    echo.start()
    with one_server(
        size, strategy, host=hosts.address, identity=identity
    ) as server_address:
        given = {
            "server_address": replace(server_address, wants_slot=False),
            "strategy": strategy, "rounds": rounds, "bare": listener.getsockname(),
        }  # fmt: skip
        done = subprocess.run(
            ["ip", "netns", "exec", hosts.names[0], sys.executable, "-c", THERE],
            input=pickle.dumps(given), capture_output=True, check=True,
        )  # fmt: skip
    listener.close()
    found = json.loads(done.stdout.splitlines()[-1])
    return {
        "MB": megabytes, "strategy": strategy, "is_encrypted": is_encrypted, **found,
        "share": found["bare_ms"] / found["exchange_ms"],
        "asked": 0.6 if is_encrypted else 0.8,
    }  # fmt: skip


def main() -> None:
    """Prints tables and JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, few rounds")
    sizes = QUICK if parser.parse_args().quick else SIZES
    rows = list[dict[str, Any]]()
    for megabytes, rounds in sizes.items():
        for strategy in ("aeasgd", "downpour"):
            found = on_one_host(megabytes, strategy, rounds)
            rows.append(found)
            print(
                f"{megabytes:8.2f} MB  {strategy:10} "
                f"exchange {found['exchange_ms']:8.3f} ms  "
                f"copy both ways {found['copy_ms']:8.3f} ms  "
                f"ratio {found['ratio']:5.1f}",
                flush=True,
            )
    if os.geteuid() or shutil.which("ip") is None:
        print("Not between hosts: that takes root and iproute2.")
    else:
        hosts = Hosts()
        try:
            for megabytes, rounds in sizes.items():
                for is_encrypted in (False, True):
                    found = between_hosts(
                        hosts, megabytes, "aeasgd", max(10, rounds // 5),
                        is_encrypted=is_encrypted,
                    )  # fmt: skip
                    rows.append(found)
                    limit = found.get("bare_tls_ms")
                    print(
                        f"{megabytes:8.2f} MB  {'TLS' if is_encrypted else 'TCP':10} "
                        f"exchange {found['exchange_ms']:8.3f} ms  "
                        f"bare sockets {found['bare_ms']:8.3f} ms  "
                        f"share {found['share']:5.2f}"
                        + (f"  bare TLS {limit:8.3f} ms" if limit else ""),
                        flush=True,
                    )
        finally:
            hosts.close()
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
