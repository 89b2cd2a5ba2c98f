"""What an exchange may cost: memory, bytes between processes, and copies of vectors.

Bounds are far above what is measured, so that only a change of kind breaks them.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest

from benchmarks.one_server import Client, one_server
from shoal.engine.transport.client_connection import ServerAddress
from shoal.engine.worker.client import ServerClient
from shoal.strategies import get
from shoal.testing.problems import LeastSquares
from shoal.wire.frames import Link
from tests.support.inline import Cluster, Setup

PROBLEM = LeastSquares.seeded(rows=4, size=1 << 20)
VECTOR_BYTES = 4 * PROBLEM.size
MOST_FRAME_BYTES = 1024


@contextmanager
def joined_client(name: str, *, wants_slot: bool = True) -> Iterator[ServerClient]:
    """A client of a server in a thread of this process, before its first push."""
    fields = {"workers": 1, "epochs": 4, "batch_size": 1}
    strategy = type(get(name))(period=1)
    with Cluster(Setup.linear(PROBLEM, strategy, **fields)) as cluster:
        client = ServerClient(
            ServerAddress(
                address=cluster.address, secret=cluster.secret, sizes=cluster.sizes,
                hint=0, token="t", wants_slot=wants_slot,
            ),
            strategy,
        )  # fmt: skip
        cluster.command("proceed", epoch=0)
        client.ready()
        yield client
        client.leave()


def push(client: ServerClient, local: Any) -> None:
    pieces = [client.progress.pieces.popleft()]
    client.push_weights(local, client.statistics, pieces, 1)


STRATEGIES = ("aeasgd", "eamsgd", "downpour", "adag", "dynsgd", "async_diloco")


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_exchange_allocates_no_vector(name: str) -> None:
    """Neither worker nor server allocates one, after the first exchange."""
    with joined_client(name) as client:
        local = client.local + np.float32(1)
        push(client, local)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            push(client, local)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # Temporaries of a segment, of which there are eight in the vector.
        assert peak - before < 0.6 * VECTOR_BYTES


@pytest.mark.parametrize("wants_slot", [True, False])
def test_frames_carry_the_vectors_and_little_else(
    wants_slot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, received = list[int](), list[int]()
    send, receive = Link.send, Link.receive

    def counted_send(self: Link, head: Any, *body: Any) -> None:
        sent.append(len(str(head)) + sum(memoryview(part).nbytes for part in body))
        send(self, head, *body)

    def counted_receive(self: Link, *given: Any, **more: Any) -> Any:
        head, body = receive(self, *given, **more)
        received.append(len(str(head)) + body.nbytes)
        return head, body

    with joined_client("aeasgd", wants_slot=wants_slot) as client:
        monkeypatch.setattr(Link, "send", counted_send)
        monkeypatch.setattr(Link, "receive", counted_receive)
        push(client, client.local + np.float32(1))
    vector = 0 if wants_slot else VECTOR_BYTES
    for [frame] in (sent[:1], received[:1]):
        assert vector <= frame < vector + MOST_FRAME_BYTES
    assert len(received) == 1


@pytest.mark.process
def test_a_server_holds_one_vector() -> None:
    """Besides the strategy's state, and slots, which workers have as well."""
    private = list[int]()
    for size in (1, 1 << 23):
        with one_server(size, "aeasgd") as server_address:
            [server] = psutil.Process().children()
            client = Client(server_address, "aeasgd")
            client.exchange()
            private.append(server.memory_full_info().uss)
            client.leave()
    assert private[1] - private[0] < 1.3 * 4 * (1 << 23)


@pytest.mark.process
def test_an_exchange_costs_a_few_copies() -> None:
    """For 16 MB each way; measured were 3 to 5 times what NumPy takes to copy them."""
    size = 1 << 22
    here, there = np.ones(size, "f4"), np.ones(size, "f4")
    exchanges, copies = list[float](), list[float]()
    with one_server(size, "aeasgd") as server_address:
        client = Client(server_address, "aeasgd")
        for _ in range(25):
            began = time.perf_counter()
            client.exchange()
            middle = time.perf_counter()
            np.copyto(here, client.local)
            np.copyto(there, here)
            exchanges.append(middle - began)
            copies.append(time.perf_counter() - middle)
        client.leave()
    # A busy machine makes some of each longer, and none shorter.
    assert min(exchanges) < 15 * min(copies)
