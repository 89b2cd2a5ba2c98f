"""A man in the middle can end connections, and nothing else."""

from __future__ import annotations

import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.engine.server.standby import Standby, StandbySpec
from shoal.engine.transport.client_connection import ServerAddress
from shoal.engine.worker.spec import WorkerSpec
from shoal.errors import ExchangeTimeout
from shoal.strategies import get
from shoal.testing.problems import LeastSquares
from shoal.training import start_run
from shoal.wire import tls
from shoal.wire.frames import BadFrame, Link
from shoal.wire.handshake import HELLO, HELLO_BYTES, Callee, NoProof
from tests.engine.middleman import HARMS, RECORD_BYTES, Middleman, Way, between
from tests.engine.test_faults import BATCH, ROWS, data, kinds, model, summary
from tests.support.inline import Cluster, Outcome, Setup

PROBLEM = LeastSquares.seeded(rows=64, size=150)
WORDS = (b"SHG1", b"SHL1", b'"kind"', b"join", b"token")
"""What is on a wire that does not encrypt."""
TYPES, VERSIONS = (20, 21, 22, 23), (b"\x03\x01", b"\x03\x03")
"""Of records of TLS 1.3."""


def setup(name: str = "aeasgd", **fields: Any) -> Setup:
    fields = {"workers": 2, "epochs": 2, "has_tls": True, "wants_slot": False, **fields}
    strategy = get(name) if name == "all_reduce" else get(name, period=3)
    return Setup.linear(PROBLEM, strategy, 0.005, **fields)


def is_exact(outcome: Outcome) -> None:
    """Every sample of every epoch was committed once."""
    assert [end.rows for end in outcome.epochs] == [64, 64]
    assert [end.metrics[1] for end in outcome.epochs] == [64, 64]


def is_dark(middleman: Middleman, cluster: Cluster) -> None:
    """He has seen records of TLS, and no plain text."""
    assert {way for way, seen in middleman.seen if seen} == {"up", "down"}
    for _, seen in middleman.seen:
        if seen.startswith(HELLO):  # other programs may call a port that was theirs
            with pytest.raises(NoProof):
                Callee(cluster.secret).answer(bytes(seen[:HELLO_BYTES]))
            continue
        while len(seen) >= RECORD_BYTES:
            assert seen[0] in TYPES
            assert seen[1:3] in VERSIONS
            del seen[: RECORD_BYTES + int.from_bytes(seen[3:5], "big")]


def through(cluster: Cluster, change: Callable[[Any], Any]) -> None:
    """Workers call other addresses than those of the servers."""
    real = cluster.worker_spec

    def worker_spec(hint: int = -1) -> WorkerSpec:
        spec = real(hint)
        return replace(spec, server_address=change(spec.server_address))

    cluster.worker_spec = worker_spec  # type: ignore[method-assign]


SILENT = ("drop", "reorder", "halve")
"""Of which the other end hears nothing, if nothing follows: its patience has to end."""
NAMES = ["aeasgd", "local_sgd", "all_reduce"]
WAYS: list[Way] = ["up", "down"]
HARMED = [
    pytest.param(harm, way, marks=[pytest.mark.slow] if harm in SILENT else [])
    for harm in HARMS
    for way in WAYS
]


def draw(way: Way, *words: object) -> int:
    """Number of a record: two workers have joined by then, and exchange much.

    The process of a worker that cannot join ends, and nobody looks at it here.
    """
    first = 13 if way == "up" else 24
    return first + random.Random(repr((way, words))).randint(0, 9)


@pytest.mark.parametrize(("harm", "way"), HARMED)
@pytest.mark.parametrize("name", NAMES)
def test_one_record_to_or_from_a_worker_is_harmed(
    name: str, harm: str, way: Way
) -> None:
    """Its connection is lost, a new worker takes its place, each sample counts once."""
    number = draw(way, name, harm)
    with (
        Cluster(setup(name)) as cluster,
        between(Middleman(HARMS[harm], way, number)) as middleman,
    ):
        middleman.target = cluster.address
        through(
            cluster,
            lambda server_address: replace(server_address, address=middleman.address),
        )
        outcome = cluster.run()
    assert middleman.has_harmed
    is_exact(outcome)
    is_dark(middleman, cluster)


@pytest.mark.parametrize(("harm", "way"), HARMED)
@pytest.mark.parametrize("has_standby", [False, True])
def test_one_record_to_or_from_a_shard_is_harmed(
    harm: str, way: Way, has_standby: bool
) -> None:
    number = draw(way, harm, has_standby)
    with (
        Cluster(setup(servers=2, has_standby=has_standby)) as cluster,
        between(Middleman(HARMS[harm], way, number)) as middleman,
    ):
        middleman.target = cluster.shards.addresses[0][0]

        def change(server_address: Any) -> Any:
            others = server_address.shards[0][1:]
            return replace(server_address, shards=((middleman.address, *others),))

        through(cluster, change)
        outcome = cluster.run()
    assert middleman.has_harmed
    is_exact(outcome)
    is_dark(middleman, cluster)


@pytest.mark.parametrize(("harm", "way"), HARMED)
def test_one_record_to_or_from_a_worker_that_has_a_standby_is_harmed(
    harm: str, way: Way
) -> None:
    """It calls the standby, which sends it back to the server that leads."""
    number = draw(way, harm)
    with (
        Cluster(setup(has_standby=True)) as cluster,
        between(Middleman(HARMS[harm], way, number)) as middleman,
    ):
        middleman.target = cluster.address
        through(
            cluster,
            lambda server_address: replace(server_address, address=middleman.address),
        )
        outcome = cluster.run()
    assert middleman.has_harmed
    is_exact(outcome)
    is_dark(middleman, cluster)


@pytest.mark.parametrize(("harm", "way"), HARMED)
def test_one_record_between_a_server_and_its_standby_is_harmed(
    harm: str, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes on alone, as the controller tells it."""
    number = draw(way, harm)
    with ExitStack() as stack:
        middleman = stack.enter_context(between(Middleman(HARMS[harm], way, number)))

        def start(self: Cluster) -> None:
            middleman.target = self.address
            spec = StandbySpec(server=self._own_spec, leader=middleman.address)
            self._standby = Standby.open(spec, self._listeners[1].dup())
            self._run("shoal-standby", self._standby.run)

        monkeypatch.setattr(Cluster, "_start_standby", start)
        cluster = stack.enter_context(Cluster(setup(has_standby=True)))
        keep, gone = cluster._keep, list[str]()

        def kept(head: dict[str, Any], body: memoryview, *, is_over: bool) -> None:
            if head["kind"] == "standby_left":
                gone.append(head["reason"])
                cluster.command("alone", generation=head["generation"])
            keep(head, body, is_over=is_over)

        cluster._keep = kept  # type: ignore[method-assign]
        outcome = cluster.run()
    assert middleman.has_harmed
    assert gone or harm in SILENT  # the run may have ended before
    is_exact(outcome)
    is_dark(middleman, cluster)


# ------------------------------------------------------------ stripped, downgraded


@contextmanager
def pretending(answer: Callable[[socket.socket], None]) -> Iterator[Any]:
    """A false server at the server's address; gives it and what it received."""
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            connection, _ = listener.accept()
            connection.settimeout(20)
            with connection, suppress(OSError):
                answer(connection)
                while part := connection.recv(1 << 16):
                    heard.extend(part)

        thread = threading.Thread(target=pretend)
        thread.start()
        yield listener.getsockname(), heard
        thread.join(20)
    assert not thread.is_alive()


def speak_plainly(connection: socket.socket) -> None:
    """Acts like a server without TLS: it waits for a hello, then answers."""
    connection.recv(1 << 16, socket.MSG_PEEK)
    connection.sendall(b"SHG1" + bytes(60))


def refuse_tls(connection: socket.socket) -> None:
    """Sends a TLS alert, handshake_failure, to provoke a plain connection."""
    connection.recv(1 << 16, socket.MSG_PEEK)
    connection.sendall(b"\x15\x03\x03\x00\x02\x02\x28")


def with_another_certificate(connection: socket.socket) -> None:
    with tls.server_context(OTHER).wrap_socket(connection, server_side=True) as other:
        while other.recv(1 << 16):
            pass


def with_an_older_version(connection: socket.socket) -> None:
    context = tls.server_context(OTHER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with context.wrap_socket(connection, server_side=True) as other:
        other.recv(1)


OTHER = tls.make_identity()


@pytest.mark.parametrize(
    "answer",
    [speak_plainly, refuse_tls, with_another_certificate, with_an_older_version],
)  # fmt: skip
def test_a_false_server_gets_no_message(
    answer: Callable[[socket.socket], None],
) -> None:
    certificate = tls.make_identity().certificate
    refused = (BadFrame, ConnectionResetError, ExchangeTimeout)
    with pretending(answer) as (address, heard), pytest.raises(refused):
        Link(address, b"s" * 32, certificate=certificate, timeout_s=20)
    assert not [word for word in WORDS if word in heard]


def test_a_replayed_connection_is_refused() -> None:
    """All that a worker has sent is sent once more: none of it counts."""
    with (
        Cluster(setup()) as cluster,
        between(Middleman()) as middleman,
    ):
        middleman.target = cluster.address
        through(
            cluster,
            lambda server_address: replace(server_address, address=middleman.address),
        )
        for hint in range(2):
            cluster.start_worker(hint)
        cluster._ask("proceed", epoch=0)
        while not cluster._records:
            cluster._hear(is_over=False)
        for again in [bytes(seen) for way, seen in middleman.seen if way == "up"]:
            with (
                socket.create_connection(cluster.address, timeout=20) as connection,
                suppress(ConnectionError),
            ):
                connection.sendall(again)
                while connection.recv(1 << 16):
                    pass
        while len(cluster._epochs) < 2:
            cluster._hear(is_over=False)
        epochs = list(cluster._epochs.values())
    assert [end.rows for end in epochs] == [64, 64]
    assert [end.metrics[1] for end in epochs] == [64, 64]
    is_dark(middleman, cluster)


# --------------------------------------------------------------- whole processes


@pytest.mark.process
def test_processes_harmed_before_they_have_joined_are_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of one the hello is changed, the other loses its connection in the handshake."""
    monkeypatch.setenv("SHOAL_RUNS", str(tmp_path))
    monkeypatch.setattr(start_run, "identity_for", lambda _: tls.make_identity())
    real = start_run.ServerAddress
    with (
        between(Middleman(HARMS["flip"], "up", 2)) as one,
        between(Middleman(HARMS["cut"], "down", 2)) as other,
    ):

        def through_them(**fields: Any) -> ServerAddress:
            middleman = (one, other)[fields["hint"]]
            middleman.target = fields["address"]
            return real(**{**fields, "address": middleman.address})

        monkeypatch.setattr(start_run, "ServerAddress", through_them)
        history = shoal.fit(
            model(), *data(), strategy="aeasgd", workers=2, epochs=2, threads=1,
            batch_size=BATCH, verbose=0,
        )  # fmt: skip
    assert one.has_harmed
    assert other.has_harmed
    found = summary(history)
    assert found.samples_committed == found.samples_expected == 2 * ROWS
    assert found.workers_lost == 2
    # Only their replacements have joined.
    assert kinds(history).count("worker_started") == 2
    for _, seen in (*one.seen, *other.seen):
        assert not [word for word in WORDS if word in seen]
