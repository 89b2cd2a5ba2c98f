"""Thousands of wrong frames and callers at a server that trains meanwhile."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

import pytest

from shoal.strategies import get
from shoal.testing.problems import LeastSquares
from shoal.wire.frames import pack_head
from shoal.wire.handshake import ANSWER_BYTES, Caller, worker_secret
from tests.support.fuzzing import Mutator
from tests.support.inline import Cluster, Setup

PROBLEM = LeastSquares.seeded(rows=256)
FRAMES, EPOCHS = 3000, 20
MOST = 12  # frames of one connection


def mutator(cluster: Cluster, seed: int) -> Mutator:
    sizes = cluster.sizes
    key = worker_secret(cluster.secret)
    return Mutator(seed, key, sizes.digest, sizes.metrics, sizes.up_bytes)


def drain(connection: socket.socket) -> bytes:
    """Reads until the server closes the connection."""
    heard = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            heard += part
    return heard


def call(cluster: Cluster) -> socket.socket:
    return socket.create_connection(cluster.address, timeout=20)


def stranger(cluster: Cluster, draw: Mutator) -> None:
    """A caller without the key gets no frame."""
    with call(cluster) as connection:
        with suppress(OSError):
            connection.sendall(draw.garbage())
            connection.shutdown(socket.SHUT_WR)
        assert drain(connection) == b""


def peer(cluster: Cluster, draw: Mutator, *, is_worker: bool) -> int:
    """A caller with the key sends frames until the server closes the connection."""
    talk, sent = Caller(worker_secret(cluster.secret)), 0
    with call(cluster) as connection, suppress(OSError):
        connection.sendall(talk.hello)
        answer = b""
        while len(answer) < ANSWER_BYTES:
            answer += connection.recv(ANSWER_BYTES - len(answer))
        connection.sendall(talk.prove(answer))
        if is_worker:
            slot = {"kind": "slot", "is_shared": False}
            join = {**draw.join(), "wants_slot": False}
            connection.sendall(pack_head(join, 0) + pack_head(slot, 0))
        for _ in range(MOST):
            connection.sendall(draw.frame(is_worker=is_worker))
            sent += 1
        connection.shutdown(socket.SHUT_WR)
        drain(connection)
    return sent


@pytest.mark.parametrize(("name", "seed"), [("aeasgd", 0), ("local_sgd", 1)])
def test_a_run_with_faults_trains_every_sample_once(name: str, seed: int) -> None:
    setup = Setup.linear(PROBLEM, get(name), workers=2, epochs=EPOCHS)
    failures: list[BaseException] = []
    with Cluster(setup) as cluster:
        draw = mutator(cluster, seed)

        def fire() -> None:
            sent = 0
            try:
                while sent < FRAMES:
                    stranger(cluster, draw)
                    sent += 1 + peer(cluster, draw, is_worker=False)
                    sent += peer(cluster, draw, is_worker=True)
            except BaseException as error:
                failures.append(error)

        half = threading.Thread(target=fire)
        half.start()
        outcome = run_beside(cluster)
        half.join(60)
        assert not half.is_alive()
        assert failures == []
    assert [end.rows for end in outcome.epochs] == [256] * EPOCHS
    assert [end.metrics[1] for end in outcome.epochs] == [256] * EPOCHS
    assert PROBLEM.loss(outcome.vector) < PROBLEM.loss(outcome.vector * 0)


def run_beside(cluster: Cluster) -> Any:
    """Trains; workers that the fuzzer pretended to be are not replaced."""
    cluster.start_worker = real_only(cluster.start_worker)  # type: ignore[method-assign]
    return cluster.run()


def real_only(start: Any) -> Any:
    started: list[int] = []

    def begin(hint: int = -1) -> None:
        if len(started) < 2:
            started.append(hint)
            start(hint)

    return begin


def test_the_same_seed_gives_the_same_faults() -> None:
    one, two = (Mutator(7, b"k" * 32, "d", 2, 64) for _ in range(2))
    for is_worker in (True, False) * 500:
        assert one.frame(is_worker=is_worker) == two.frame(is_worker=is_worker)
