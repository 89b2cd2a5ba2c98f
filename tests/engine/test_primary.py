"""A real server on a real port: unverified and malformed peers harm no other."""

from __future__ import annotations

import secrets
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from shoal.engine.server import primary
from shoal.engine.server.primary import Primary
from shoal.engine.transport import listener
from shoal.engine.transport.client_connection import Fenced, ServerAddress
from shoal.engine.transport.messages.worker_to_server import Push
from shoal.engine.transport.server_connection import ServerConnection
from shoal.engine.transport.shared_memory import Slot
from shoal.engine.worker.client import ServerClient
from shoal.errors import ClusterError
from shoal.strategies import get
from shoal.wire.frames import HEADER, MAGIC, Link, pack_head
from tests.engine.cases import runs_well, setup, shut_out
from tests.support.inline import Cluster

pytestmark = pytest.mark.usefixtures("unhurried")

UNVERIFIED: dict[str, bytes] = {
    "a browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(64),
    "garbage": secrets.token_bytes(4096),
    "zeros": bytes(128),
    "frames without a proof": pack_head({"kind": "control"}, 0) * 4,
}


@pytest.mark.parametrize("who", UNVERIFIED)
def test_a_caller_without_the_secret_is_refused_before_anything_is_parsed(
    who: str,
) -> None:
    with Cluster(setup()) as cluster:
        with socket.create_connection(cluster.address) as connection:
            connection.sendall(UNVERIFIED[who])
            shut_out(connection)
        events = runs_well(cluster)
    assert [event["kind"] for event in events].count("stranger") == 1


def test_a_wrong_secret_is_refused() -> None:
    with Cluster(setup()) as cluster:
        with pytest.raises(ConnectionResetError):
            Link(cluster.address, b"x" * 32)
        events = runs_well(cluster)
    assert "stranger" in {event["kind"] for event in events}


def test_a_caller_that_says_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(setup()) as cluster:
        monkeypatch.setattr(listener, "GREETING_TIMEOUT_S", 0.0)
        with socket.create_connection(cluster.address) as connection:
            shut_out(connection)
        monkeypatch.undo()
        runs_well(cluster)


def test_a_caller_that_hangs_up_in_the_greeting() -> None:
    with Cluster(setup()) as cluster:
        for _ in range(3):
            connection = socket.create_connection(cluster.address)
            connection.sendall(b"half")
            reset = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            connection.close()
        runs_well(cluster)


BAD: dict[str, Callable[[Any], Any]] = {
    "an unknown first frame": lambda link: link.send({"kind": "hello"}),
    "a join without fields": lambda link: link.send({"kind": "join"}),
    "a bad magic": lambda link: link.socket.sendall(b"SHL2" + bytes(12)),
    "an endless head": lambda link: link.socket.sendall(HEADER.pack(MAGIC, 1 << 30, 0)),
    "an endless body": lambda link: link.socket.sendall(HEADER.pack(MAGIC, 2, 1 << 60)),
    "half a frame": lambda link: (
        link.socket.sendall(pack_head({"kind": "join"}, 0)[:-1]),
        link.socket.shutdown(socket.SHUT_WR),
    ),
    "no JSON": lambda link: link.socket.sendall(HEADER.pack(MAGIC, 4, 0) + b"\xff" * 4),
    "deep JSON": lambda link: link.socket.sendall(
        HEADER.pack(MAGIC, 1 << 16, 0) + b"[" * (1 << 16)
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_peer_that_breaks_the_protocol_is_dropped(what: str) -> None:
    with Cluster(setup()) as cluster:
        with closing(Link(cluster.address, cluster.secret)) as link:
            BAD[what](link)
            shut_out(link.socket)
        runs_well(cluster)


def server_address(cluster: Cluster, **fields: Any) -> ServerAddress:
    defaults: dict[str, Any] = {
        "address": cluster.address,
        "secret": cluster.secret,
        "sizes": cluster.sizes,
        "hint": 9,
        "token": "",
    }
    return ServerAddress(**{**defaults, **fields})


PUSH: dict[str, Any] = {
    "kind": "push", "lineage": 0, "sequence": 1, "pieces": [[0, 0, 8, 0]],
    "steps": 1, "samples": 8.0, "times": [0.0, 0.0, 0.0, 0.0],
}  # fmt: skip

MESSAGES: dict[str, dict[str, Any]] = {
    "an unknown one": {"kind": "what"},
    "a slot again": {"kind": "slot", "is_shared": True},
    "a snapshot nobody wants": {"kind": "snapshot"},
    "pieces that are none": {**PUSH, "pieces": [[1, 2, 3, 4, 5]]},
    "pieces of words": {**PUSH, "pieces": "all"},
    "times that are none": {**PUSH, "times": [1.0]},
    "no sequence": {key: value for key, value in PUSH.items() if key != "sequence"},
    "no number": {**PUSH, "samples": "many"},
    "infinite samples": {**PUSH, "samples": float("inf")},
    "samples that are not a number": {**PUSH, "samples": float("nan")},
    "less than no samples": {**PUSH, "samples": -1.0},
    "less than no rows": {**PUSH, "rows": -1.0},
    "sums of nothing": {**PUSH, "own": [1.0], "assumed": []},
    "infinite sums": {**PUSH, "own": [1.0], "assumed": [float("inf")]},
    "too many sums": {**PUSH, "own": [1.0] * 65, "assumed": [1.0] * 65},
    "sums that are no numbers": {**PUSH, "own": ["x"], "assumed": [1.0]},
    "infinite steps": {**PUSH, "steps": float("inf")},
    "no steps": {**PUSH, "steps": 0},
}


@pytest.mark.parametrize("what", MESSAGES)
def test_only_the_worker_with_malformed_messages_is_dropped(what: str) -> None:
    with Cluster(setup("all_reduce")) as cluster:
        client = ServerClient(server_address(cluster), get("all_reduce"))
        client._link.send(MESSAGES[what])
        with pytest.raises(ConnectionResetError):
            client._link.receive(timeout_s=20)
        client.leave()
        events = runs_well(cluster)
    left = [event for event in events if event["kind"] == "left"]
    assert [event["rank"] for event in left] == [9]
    assert "bad frame" in left[0]["reason"]


def test_a_vector_before_the_slot_is_settled_is_a_bad_frame() -> None:
    with Cluster(setup()) as cluster:
        link = Link(cluster.address, cluster.secret)
        sizes = cluster.sizes
        link.send(
            {"kind": "join", "digest": sizes.digest, "metrics": sizes.metrics,
             "hint": 7, "token": "", "node": "", "pid": 1, "wants_slot": True}
        )  # fmt: skip
        assert link.receive()[0]["kind"] == "welcome"
        link.send(PUSH)
        shut_out(link.socket)
        link.close()
        runs_well(cluster)


@pytest.mark.parametrize("pieces", [[], [[0, 0, 8, 0]], [[77, 0, 8, 0]]])
def test_samples_that_were_not_leased_are_refused(pieces: list[list[int]]) -> None:
    with Cluster(setup()) as cluster:
        client = ServerClient(server_address(cluster), get("aeasgd"))
        push = Push.parse({**PUSH, "pieces": pieces})
        with pytest.raises(Fenced, match="samples it does not hold"):
            client._take(client._answer(push, has_vectors=True))
        client.leave()
        runs_well(cluster)


def test_another_model_is_refused() -> None:
    with Cluster(setup()) as cluster:
        wrong = replace(cluster.sizes, digest="another")
        with pytest.raises(Fenced, match="another model layout"):
            ServerClient(server_address(cluster, sizes=wrong), get("aeasgd"))
        events = runs_well(cluster)
    assert "mismatch" in {event["kind"] for event in events}


@pytest.mark.parametrize("name", ["aeasgd", "local_sgd", "all_reduce"])
@pytest.mark.parametrize("wants_slot", [True, False])
def test_a_peer_that_is_lost_while_another_is_served(
    name: str, wants_slot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The error of sending to one peer was taken for an error of the one that had
    # spoken: it was dropped in its place, and answers to the others were lost.
    broken: list[str] = []
    real = ServerConnection.send

    def send(self: ServerConnection, head: dict[str, Any], *body: Any) -> None:
        is_round = head["kind"] in ("reply", "grant", "merged")
        if is_round and not broken and head["version"] >= 2:
            broken.append(head["kind"])
            self.socket.shutdown(socket.SHUT_RDWR)
            raise BrokenPipeError("it is gone")
        real(self, head, *body)

    monkeypatch.setattr(ServerConnection, "send", send)
    with Cluster(setup(name, workers=3, wants_slot=wants_slot)) as cluster:
        events = runs_well(cluster)
    assert broken
    assert len([event for event in events if event["kind"] == "left"]) == 1


def test_a_server_ends_with_its_controller() -> None:
    cluster = Cluster(setup())
    cluster.start_worker(0)
    cluster.close()
    cluster.close()


def test_a_server_frees_the_slots_of_connected_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One that stays for the next run kept a descriptor for each of them.
    made: list[Slot] = []
    real = Slot.make

    def make(size: int, tag: str = "") -> tuple[Slot, str] | None:
        found = real(size, tag)
        assert found is not None
        made.append(found[0])
        return found

    monkeypatch.setattr(Slot, "make", make)
    with Cluster(setup()) as cluster:
        client = ServerClient(server_address(cluster), get("aeasgd"))
        assert [slot._memory is None for slot in made] == [False]
    client.leave()
    assert [slot._memory is None for slot in made] == [True]


@pytest.mark.parametrize("command", [{"kind": "dance"}, {"kind": "proceed"}])
def test_a_malformed_message_of_the_controller_ends_the_run(
    command: dict[str, Any],
) -> None:
    with Cluster(setup()) as cluster:
        link = Link(cluster.address, cluster.secret)
        link.send({"kind": "control"})
        link.send(command)
        shut_out(link.socket)
        link.close()


def test_too_many_callers_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(setup()) as cluster:
        monkeypatch.setattr(listener, "MAX_CONNECTIONS", 1)
        with socket.create_connection(cluster.address) as connection:
            shut_out(connection)
        monkeypatch.undo()
        runs_well(cluster)


@pytest.mark.parametrize("name", ["aeasgd", "local_sgd"])
def test_a_strategy_that_raises_ends_the_run_and_drops_nobody(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("bad arithmetic")

    given = setup(name)
    method = "merge" if name == "local_sgd" else "apply_into"
    monkeypatch.setattr(type(given.strategy), method, fail)
    with Cluster(given) as cluster, pytest.raises(ClusterError) as raised:
        cluster.run()
    assert name in str(raised.value)
    assert "bad arithmetic" in str(raised.value)


def test_workers_that_compute_hear_of_the_end_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It was cut off, and a worker of a session ended though the next run needs it.
    monkeypatch.setattr(primary, "SEE_OFF_S", 60.0)
    is_stopped, see_off = threading.Event(), Primary._see_off

    def stopped(server: Primary) -> None:
        is_stopped.set()
        see_off(server)

    monkeypatch.setattr(Primary, "_see_off", stopped)
    with Cluster(setup("aeasgd", workers=1)) as cluster:
        cluster.command("proceed", epoch=0)
        client = ServerClient(server_address(cluster), get("aeasgd"))
        client.ready()
        assert client.progress.pieces
        cluster.command("finish")
        cluster.command("stop")
        assert is_stopped.wait(60)
        client.need()
        assert client.progress.is_done
        client.leave()


def test_closing_frees_the_port() -> None:
    with Cluster(setup()) as cluster:
        assert isinstance(cluster.server, Primary)
        address = cluster.address
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
