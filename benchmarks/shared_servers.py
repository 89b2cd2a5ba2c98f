"""Several servers that share a vector: with cables of their own, and with 1 GB.

Run: `python -m benchmarks.shared_servers`. As root two clients first exchange 64 MB
with 1, 2 and 4 servers, each in a network namespace of its own behind a cable of
1 Gbit/s: the more cables, the less time. Then one client exchanges 1 GB with four
servers of this host, each with a standby; one of them is killed meanwhile, and then the
one that orders.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.one_server import Client
from shoal.engine.controller.process_pool import ProcessPool, WorkerEnvironment
from shoal.engine.controller.shared_servers import SharedServers, cut
from shoal.engine.coordination.instructions import Rules
from shoal.engine.server.main import ServeInherited
from shoal.engine.server.spec import ServerSpec
from shoal.engine.transport.buffers import Sizes
from shoal.engine.transport.client_connection import ServerAddress
from shoal.engine.transport.messages.controller_to_server import AskCenter, Proceed
from shoal.engine.transport.messages.server_to_controller import CenterShown
from shoal.launchers.base import Preload, Role
from shoal.launchers.process import ProcessLauncher
from shoal.strategies import get
from shoal.wire.frames import Link
from tests.support.hosts import Cable, Hosts

STRATEGY, MBIT, CLIENTS = "downpour", 1000.0, 2
CLONE_NEWNET = 0x40000000


def spec_of(size: int, servers: int, clients: int) -> ServerSpec:
    """The spec of all servers together; there is always more data."""
    rules = Rules(
        epoch_rows=(1 << 40,), first_epoch=0, epochs=1, workers=clients, batch=1,
        window=1, is_rounds=False, exchanges_gradients=False, is_elastic=False,
    )  # fmt: skip
    return ServerSpec(
        secret=secrets.token_bytes(32), strategy=get(STRATEGY), rules=rules,
        sizes=Sizes(vector=size, statistics=0, metrics=4, digest=""),
        vector=np.zeros(size, "f4"), statistics=np.zeros(0, "f4"), shards=servers,
    )  # fmt: skip


# ------------------------------------------------------------ cables of their own


def listen_in(host: str, address: str) -> socket.socket:
    """Listens in a network namespace; a socket stays in the one where it was made."""
    found: list[socket.socket] = []

    def make() -> None:
        with open(f"/run/netns/{host}") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        found.append(socket.create_server((address, 0), backlog=16))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return found[0]


@contextmanager
def behind_cables(size: int, servers: int) -> Generator[ServerAddress]:
    """Starts servers in namespaces; yields the addresses for a client."""
    hosts, cable = Hosts(servers), Cable(mbit=MBIT)
    launchers: list[ProcessLauncher] = []
    listeners: list[socket.socket] = []
    links: list[Link] = []
    spec = spec_of(size, servers, CLIENTS)
    try:
        for n, host in enumerate(hosts.names):
            cable.limit(f"{hosts.bridge}-{n}")
            cable.limit("eth0", host)
            address = f"{hosts.address.rpartition('.')[0]}.{n + 2}"
            listeners.append(listen_in(host, address))
        order = listeners[0].getsockname()
        for n, host in enumerate(hosts.names):
            inside = ProcessLauncher(
                through=lambda _, host=host: ("ip", "netns", "exec", host)
            )
            launchers.append(inside)
            descriptor = listeners[n].fileno()
            role = Role(
                target="shoal.engine.server.main:serve",
                name=host,
                inherits=(descriptor,),
            )
            token = inside.start(role)
            part = cut(spec, n, order if n else None)
            inside.give(token, ServeInherited(spec=part, descriptor=descriptor))
            links.append(Link(listeners[n].getsockname(), spec.secret))
            links[-1].send({"kind": "control"})
        links[0].send({"kind": "proceed", "epoch": 0})
        yield ServerAddress(
            address=order, secret=spec.secret, sizes=spec.sizes, hint=-1, token="",
            shards=tuple((listener.getsockname(),) for listener in listeners[1:]),
        )  # fmt: skip
    finally:
        for link in links:
            link.close()
        for listener in listeners:
            listener.close()
        for launcher in launchers:
            launcher.close()
        hosts.close()


def exchange(server_address: ServerAddress, times: int, gate: Any, told: Any) -> None:
    """One client; sends the seconds of each exchange."""
    client = Client(server_address, STRATEGY, has_slot=False)
    client.exchange()
    gate.wait()
    found: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        client.exchange()
        found.append(time.perf_counter() - began)
    told.put(found)


def with_cables(size: int, servers: int, times: int) -> float:
    """Median seconds of an exchange."""
    context = multiprocessing.get_context("spawn")
    gate, told = context.Barrier(CLIENTS), context.Queue()
    with behind_cables(size, servers) as server_address:
        clients = [
            context.Process(target=exchange, args=(server_address, times, gate, told))
            for _ in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        found = [seconds for _ in clients for seconds in told.get()]
        for client in clients:
            client.join()
    return float(np.median(found))


# ------------------------------------------------------------------------- 1 GB


class Notes:
    """An observer that keeps the events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_event(self, kind: str, **fields: Any) -> None:
        """Keeps an event."""
        self.events.append(kind)


def large(size: int, servers: int, times: int) -> dict[str, Any]:
    """One client and several servers, each with a standby; two of them are killed.

    The client adds 1 to every weight at each exchange: the center tells how often each
    of its parts has heard of that.
    """
    pool = ProcessPool(WorkerEnvironment(workers=0, threads=1, preload=Preload()))
    notes: Any = Notes()
    spec = spec_of(size, servers, 1)
    shared = SharedServers(
        pool, notes, 1, lambda: ["client"], count=servers, has_standby=True
    )
    shared.start(spec)
    shared.connect(60.0, lambda: None)
    shared.command(Proceed(epoch=0))
    pairs = [pool.pair(n) for n in range(servers)]
    server_address = ServerAddress(
        address=pairs[0].address, other=pairs[0].other_address, secret=spec.secret,
        sizes=spec.sizes, hint=-1, token="client", wants_slot=False,
        shards=tuple((pair.address, pair.other_address) for pair in pairs[1:]),
    )  # fmt: skip
    seconds: list[float] = []
    steps = [threading.Event() for _ in range(times)]
    may: list[threading.Event] = [threading.Event() for _ in range(times)]

    def train() -> None:
        client = Client(server_address, STRATEGY, has_slot=False)
        for step in range(times):
            may[step].wait()
            began = time.perf_counter()
            client.local = client._client.local + np.float32(1.0)
            client.exchange()
            seconds.append(time.perf_counter() - began)
            steps[step].set()
        client.leave()

    thread = threading.Thread(target=train)
    thread.start()
    killed: list[str] = []
    peak = 0

    def attend(is_over: Any) -> None:
        nonlocal peak
        while not is_over():
            shared.receive(0.1)
            shared.look(pool.poll(), 300.0)
            peak = max(peak, _memory())

    attend(lambda: notes.events.count("standby_ready") == servers)
    for step in range(times):
        may[step].set()
        if step in (1, 3):  # during the exchange
            pair = pairs[servers - 1 if step == 1 else 0]
            pool.stop(pair.server)
            killed.append(pair.name)
        attend(steps[step].is_set)
    shared.command(AskCenter())
    report, body = None, memoryview(b"")
    while not isinstance(report, CenterShown):
        found = shared.receive(0.5)
        shared.look(pool.poll(), 300.0)
        if found is not None:
            report, body = found
    center = np.frombuffer(body[: 4 * size], np.float32)
    exact = bool((center == np.float32(times)).all())
    shared.close()
    pool.close()
    thread.join()
    return {
        "bytes": 4 * size, "servers": servers, "killed": killed, "exchanges": times,
        "seconds": [round(s, 2) for s in seconds], "is_exact": exact,
        "peak_gb": round(peak / 1e9, 1),
        "took_over": notes.events.count("server_replaced"),
    }  # fmt: skip


def _memory() -> int:
    """Proportional memory (PSS) of this process and all it has started."""
    found = 0
    for process in (me := psutil.Process(), *me.children(recursive=True)):
        try:
            found += process.memory_full_info().pss
        except psutil.Error:
            continue
    return found


def main() -> None:
    """Prints tables and JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--quick", action="store_true", help="fewer exchanges")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    if os.geteuid() or shutil.which("ip") is None:
        print("Cables not measured: it takes root and iproute2, for namespaces.")
    else:
        size, times = given.megabytes * 250_000, 3 if given.quick else 9
        rows = {n: with_cables(size, n, times) for n in (1, 2, 4)}
        for servers, s in rows.items():
            print(
                f"{servers} servers, {given.megabytes} MB, {CLIENTS} clients: "
                f"{s:6.2f} s an exchange, {rows[1] / s:4.2f} x one server"
            )
        found["cables"] = rows
    if given.gigabytes:
        size = int(given.gigabytes * 250_000_000)
        found["large"] = row = large(size, servers=4, times=6)
        print(json.dumps(row))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
