"""TLS with the certificate of one run: no other is accepted, and no peer is delayed."""

from __future__ import annotations

import gc
import pickle
import secrets
import socket
import ssl
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, final

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from shoal.engine.transport import listener as listener_module
from shoal.engine.transport.client_connection import ServerAddress
from shoal.engine.transport.listener import Connections, Listener, Peer
from shoal.engine.transport.server_connection import ServerConnection
from shoal.engine.worker.client import ServerClient
from shoal.errors import ConfigError, ExchangeTimeout
from shoal.strategies import get
from shoal.wire import tls
from shoal.wire.frames import BadFrame, Link, pack_head
from shoal.wire.handshake import worker_secret
from tests.engine import cases
from tests.engine.cases import runs_well, shut_out
from tests.engine.false_peers import Raw
from tests.support.inline import Cluster

SECRET = b"s" * 32

setup = partial(cases.setup, has_tls=True)


@pytest.mark.parametrize("wants_slot", [True, False])
@pytest.mark.parametrize("name", ["aeasgd", "local_sgd", "all_reduce"])
def test_a_whole_run_is_encrypted_and_counts_exactly(
    name: str, wants_slot: bool
) -> None:
    with Cluster(setup(name, wants_slot=wants_slot)) as cluster:
        assert isinstance(cluster._link.socket, ssl.SSLSocket)
        assert cluster._link.socket.version() == "TLSv1.3"
        runs_well(cluster)


@final
class Echo(Listener):
    """Sends every frame back."""

    def __init__(self) -> None:
        self.connections: Connections | None = None
        self.is_over = False

    def on_frame(self, peer: Peer, head: dict[str, Any], body: memoryview) -> None:
        peer.role = "worker"
        assert self.connections is not None
        self.connections.send(peer, Raw(head=head), bytes(body))

    def on_gone(self, peer: Peer, reason: str) -> None:
        self.is_over = True


@contextmanager
def echoing() -> Iterator[Link]:
    """A caller of an echo server, over TLS."""
    identity, echo = tls.make_identity(), Echo()
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    context = tls.server_context(identity)
    echo.connections = Connections(listener, SECRET, 1 << 26, context)
    echo.connections.deliver_to(echo)

    def serve() -> None:
        assert echo.connections is not None
        while not echo.is_over:
            echo.connections.serve(20)
        echo.connections.close()

    thread = threading.Thread(target=serve)
    thread.start()
    link = Link(address, SECRET, certificate=identity.certificate)
    try:
        link.send({"kind": "first"})
        assert link.receive(timeout_s=20)[0] == {"kind": "first"}
        yield link
    finally:
        link.close()
        thread.join(20)


def test_frames_larger_than_a_record_a_buffer_and_a_turn_arrive_whole() -> None:
    body = secrets.token_bytes(20 << 20)
    with echoing() as link:
        link.send({"kind": "push"}, body)
        head, found = link.receive(timeout_s=20)
        assert head == {"kind": "push"}
        assert bytes(found) == body


def test_all_frames_in_one_record_are_handled() -> None:
    """They are in OpenSSL's buffer then, which no selector watches."""
    frames = b"".join(pack_head({"kind": f"{i:03}"}, 0) for i in range(300))
    assert len(frames) < 1 << 14
    with echoing() as link:
        link.socket.sendall(frames)
        for number in range(300):
            assert link.receive(timeout_s=20)[0] == {"kind": f"{number:03}"}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems need a file")
def test_a_server_starts_where_nothing_can_be_made_in_the_temporary_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as a full one, when a server is replaced; here one that takes no file."""
    monkeypatch.setattr(tempfile, "tempdir", "/proc/self")
    context = tls.server_context(tls.make_identity())
    assert context.cert_store_stats()["x509"] == 0  # it trusts nobody, and has a key


def test_a_different_certificate_is_refused() -> None:
    other = tls.make_identity().certificate
    with Cluster(setup()) as cluster:
        with pytest.raises(BadFrame, match="shows another certificate"):
            Link(cluster.address, cluster.secret, certificate=other)
        runs_well(cluster)


def test_a_certificate_that_verifies_but_is_not_the_same_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Should OpenSSL ever accept one that the pinned key has signed, for example."""
    with Cluster(setup()) as cluster:
        shown = cluster.certificate
        assert shown is not None
        other = tls.make_identity().certificate
        context = tls.client_context(shown)
        monkeypatch.setattr(tls, "client_context", lambda _: context)
        with pytest.raises(BadFrame, match="shows another certificate"):
            Link(cluster.address, cluster.secret, certificate=other)
        runs_well(cluster)


def test_the_secret_is_proved_inside() -> None:
    with Cluster(setup()) as cluster:
        with pytest.raises(ConnectionResetError, match="connection in the handshake"):
            Link(cluster.address, b"x" * 32, certificate=cluster.certificate)
        events = runs_well(cluster)
    assert "stranger" in {event["kind"] for event in events}


def test_a_plain_caller_is_refused_at_once() -> None:
    with Cluster(setup()) as cluster:
        with pytest.raises(ConnectionResetError, match="to use TLS if this end does"):
            Link(cluster.address, cluster.secret, timeout_s=60)
        runs_well(cluster)


def test_a_caller_with_tls_is_refused_at_once_by_a_plain_server() -> None:
    certificate = tls.make_identity().certificate
    with Cluster(setup(has_tls=False)) as cluster:
        with pytest.raises(ConnectionResetError, match="in the TLS handshake"):
            Link(cluster.address, cluster.secret, certificate=certificate)
        runs_well(cluster)


def test_an_older_tls_is_refused() -> None:
    with Cluster(setup()) as cluster:
        context = tls.client_context(cluster.certificate or b"")
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            socket.create_connection(cluster.address, timeout=20) as connection,
            pytest.raises((ssl.SSLError, ConnectionResetError)),
        ):
            context.wrap_socket(connection)
        runs_well(cluster)


def test_unfinished_handshakes_delay_no_peer() -> None:
    with Cluster(setup()) as cluster:
        context = tls.client_context(cluster.certificate or b"")
        slow = []
        for length in (0, 1, 3, 5, 100, 200):
            begun, wire = ssl.MemoryBIO(), ssl.MemoryBIO()
            with suppress(ssl.SSLWantReadError):
                context.wrap_bio(begun, wire).do_handshake()
            connection = socket.create_connection(cluster.address, timeout=20)
            connection.sendall(wire.read()[:length])
            slow.append(connection)
        runs_well(cluster)
        for connection in slow:
            connection.close()


def test_a_handshake_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(setup()) as cluster:
        monkeypatch.setattr(listener_module, "GREETING_TIMEOUT_S", 0.0)
        with socket.create_connection(cluster.address) as connection:
            connection.sendall(b"\x16\x03\x01")
            assert shut_out(connection) == b""
        monkeypatch.undo()
        runs_well(cluster)


RESET = struct.pack("ii", 1, 0)  # of SO_LINGER: to close is to reset


@contextmanager
def reset() -> Iterator[socket.socket]:
    """A socket whose other end has reset the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = socket.create_connection(listener.getsockname(), timeout=20)
        accepted, _ = listener.accept()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    accepted.close()
    with caller:
        yield caller


def test_a_reset_before_tls_leaves_no_socket_open() -> None:
    """Python would leave it to the garbage collector, which warns."""
    certificate = tls.make_identity().certificate
    wraps = (
        partial(tls.wrap_caller, certificate=certificate),
        partial(tls.wrap_callee, context=CONTEXT),
    )
    for wrap in wraps:
        with reset() as connection, pytest.raises(ConnectionResetError):
            wrap(connection)
    gc.collect()


def test_a_reset_before_tls_is_a_lost_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python reports that it is not connected, which is no `ConnectionError`."""
    certificate = tls.make_identity().certificate
    for takes_word in (False, True):
        with reset() as connection:
            if takes_word:
                with pytest.raises(ConnectionResetError):
                    connection.recv(1)
            monkeypatch.setattr(
                socket, "create_connection", lambda *_, c=connection, **__: c
            )
            with pytest.raises(ConnectionResetError, match="closed the connection"):
                Link(("127.0.0.1", 1), SECRET, certificate=certificate)
            monkeypatch.undo()


def test_a_server_without_a_handshake_is_left_after_the_limit() -> None:
    certificate = tls.make_identity().certificate
    with socket.create_server(("127.0.0.1", 0)) as listener:
        seen = []
        with pytest.raises(ExchangeTimeout, match="does not answer the handshake"):
            Link(
                listener.getsockname(),
                SECRET,
                certificate=certificate,
                timeout_s=0.3,
                meanwhile=lambda: seen.append(1),
            )
        assert seen


ALERT = 0x15


def read_to_the_end(channel: ServerConnection) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        assert channel.read() == []


@settings(max_examples=50)
@given(st.binary(max_size=600))
def test_any_first_bytes_get_no_frame(data: bytes) -> None:
    """OpenSSL may send the reason: a record of type alert, and nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = socket.create_connection(listener.getsockname(), timeout=20)
        accepted, _ = listener.accept()
    channel = ServerConnection(accepted, SECRET, max_body_bytes=9, context=CONTEXT)
    with caller:
        caller.sendall(data)
        caller.shutdown(socket.SHUT_WR)
        with pytest.raises((BadFrame, ConnectionResetError)):
            read_to_the_end(channel)
        assert not channel.is_proven
        channel.close()
        heard = shut_out(caller)
    assert not heard or heard[0] == ALERT


def test_keys_are_of_one_run_and_leave_no_file(tmp_path: Path) -> None:
    before = tempfile.tempdir
    tempfile.tempdir = str(tmp_path)
    try:
        one, two = tls.make_identity(), tls.make_identity()
        tls.server_context(one)
    finally:
        tempfile.tempdir = before
    assert one.certificate != two.certificate
    assert one.key != two.key
    assert list(tmp_path.iterdir()) == []
    assert b"ENCRYPTED" in one.key


def test_no_text_contains_keys_or_secrets() -> None:
    identity = tls.make_identity()
    server_address = ServerAddress(
        address=("127.0.0.1", 1), secret=SECRET, sizes=None, hint=0, token=""  # type: ignore[arg-type]
    )  # fmt: skip
    shown = repr(identity) + repr(server_address)
    assert repr(identity.key) not in shown
    assert repr(identity.password) not in shown
    assert repr(SECRET) not in shown


def test_workers_get_the_certificate_and_not_the_key() -> None:
    with Cluster(setup()) as cluster:
        identity = cluster.server.spec.identity
        assert identity is not None
        server_address = ServerAddress(
            address=cluster.address,
            secret=worker_secret(cluster.secret),
            sizes=cluster.sizes,
            hint=0,
            token="",
            certificate=cluster.certificate,
        )
        sent = pickle.dumps(server_address)
        assert identity.certificate in sent
        for private in (cluster.secret, identity.key, identity.password):
            assert private not in sent
        ServerClient(server_address, get("aeasgd")).leave()
        runs_well(cluster)


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.7", False), ("fe80::1%eth0", False),
     ("node-7.cluster", False)],
)  # fmt: skip
def test_tls_is_the_rule_where_others_can_listen(host: str, is_local: bool) -> None:
    assert (tls.identity_for(host) is None) == is_local


def test_without_the_package_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r"pip install 'shoal\[cluster\]'"):
        tls.make_identity()


CONTEXT = tls.server_context(tls.make_identity())


def test_a_cut_in_the_middle_of_tls_is_a_lost_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers call again then; any other error would count as one of user code."""

    def cut(*_: Any) -> None:
        raise ssl.SSLEOFError("EOF occurred in violation of protocol")

    with Cluster(setup()) as cluster:
        link = Link(cluster.address, cluster.secret, certificate=cluster.certificate)
        for name in ("sendall", "recv_into"):
            monkeypatch.setattr(ssl.SSLSocket, name, cut)
        with pytest.raises(ConnectionResetError):
            link.send({"kind": "control"})
        with pytest.raises(ConnectionResetError):
            link.receive()
        monkeypatch.undo()
        link.close()
