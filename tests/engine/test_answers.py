"""Messages of a server to workers and standbys, with any JSON and any body."""

from __future__ import annotations

import json
import math
import pickle
import socket
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.environment import SYSTEM
from shoal.engine.server.standby import Standby, StandbySpec
from shoal.engine.transport.buffers import Buffers, Sizes
from shoal.engine.transport.changes import FIXED, Changes, Key
from shoal.engine.transport.client_connection import ServerAddress
from shoal.engine.transport.fields import WRONG
from shoal.engine.transport.messages.server_to_worker import Done, Grant, Welcome
from shoal.engine.transport.messages.shard import Attend
from shoal.engine.worker.client import ServerClient
from shoal.engine.worker.shard_client import ShardClients
from shoal.strategies import get
from shoal.wire.frames import HEADER, MAGIC, BadFrame, memory_for
from tests.engine.cases import runs_well, setup
from tests.engine.false_peers import SECRET, frame, saying
from tests.engine.test_messages import hostile, numbers_in
from tests.support.inline import Cluster

SIZES = Sizes(vector=48, statistics=2, metrics=2, digest="d")
STATE: dict[str, Any] = {
    "version": 3, "lineage": 0, "clock": 4, "workers": 2, "lr": 0.5, "changed": 0,
}  # fmt: skip
GRANT: dict[str, Any] = {
    "kind": "grant", "body": "none", "pieces": [[0, 0, 8, 0]], "doubt": 0,
    "group": [1, [0, 1]], "sums": [1.0], "publish": False, **STATE,
}  # fmt: skip
WELCOME: dict[str, Any] = {
    "kind": "welcome",
    "rank": 0,
    "incarnation": 1,
    "slot": None,
    **STATE,
}
START = bytes(4 * (SIZES.vector + SIZES.statistics))


def test_answers_of_the_server_are_read() -> None:
    assert Grant.parse(GRANT).pieces == ((0, 0, 8, 0),)
    assert Done.parse({"kind": "done", **STATE}).pieces == ()
    welcome = Welcome.parse(WELCOME)
    assert (welcome.rank, welcome.incarnation, welcome.slot) == (0, 1, None)


@settings(max_examples=300)
@given(st.sampled_from(sorted(set(GRANT) - {"kind"})), hostile)
def test_any_value_in_any_field_is_refused_or_finite(field: str, value: Any) -> None:
    try:
        told = Grant.parse({**GRANT, field: value})
    except WRONG:
        return
    state = told.state
    rate = state.learning_rate
    assert rate is None or isinstance(float(rate), float)  # it may be infinite
    numbers = numbers_in([state.version, state.lineage, state.clock, state.workers,
                          told.nan_status, list(told.sums), list(told.pieces),
                          told.group or []])  # fmt: skip
    assert all(math.isfinite(n) for n in numbers)
    assert all(0 <= n < 1 << 62 or isinstance(n, float) for n in numbers)


@settings(max_examples=100)
@given(st.sampled_from(["rank", "incarnation", "slot"]), hostile)
def test_any_value_of_a_welcome_is_refused_or_read(field: str, value: Any) -> None:
    try:
        found = Welcome.parse({**WELCOME, field: value})
    except WRONG:
        return
    assert min(found.rank, found.incarnation) >= 0
    assert found.slot is None or all(isinstance(text, str) for text in found.slot)


@settings(max_examples=300)
@given(st.binary(max_size=64) | st.builds(lambda rows: table(rows), hostile))
def test_any_bytes_are_read_as_changes_or_refused(data: bytes) -> None:
    try:
        found = Changes.read(data)
    except ValueError:
        return
    assert isinstance(found, Changes)


def table(rows: Any) -> bytes:
    """A table of changes with anything in it."""
    head = json.dumps(rows).encode()
    return len(head).to_bytes(8, "little") + head + bytes(16)


def test_changes_of_the_wrong_length_are_refused() -> None:
    changes = Changes()
    changes.add({Key(FIXED, "2"): np.float32(0.5)})
    data = changes.pack()
    for wrong in (data[:-1], data + b"\0", data[:9], data[:3]):
        with pytest.raises(ValueError, match="changes"):
            Changes.read(wrong)


# ------------------------------------------------------------- server to worker

JOINING: dict[str, bytes] = {
    "no rank": frame({"kind": "welcome", "slot": None, **STATE}, START),
    "an infinite rank": frame({**WELCOME, "rank": float("inf")}, START),
    "a rank of 400 digits": frame({**WELCOME, "rank": 10**400}, START),
    "less than no rank": frame({**WELCOME, "rank": -1}, START),
    "a slot of numbers": frame({**WELCOME, "slot": {"path": 1, "mark": 2}}, START),
    "a slot that is a list": frame({**WELCOME, "slot": [1]}, START),
    "half a center": frame(WELCOME, START[:-4]),
    "part of a float": frame(WELCOME, START[:-1]),
    "no center": frame(WELCOME),
    "no version": frame({k: v for k, v in WELCOME.items() if k != "version"}, START),
    "a version that is no number": frame({**WELCOME, "version": float("nan")}, START),
    "5,000 digits": frame('{"kind": "welcome", "rank": ' + "9" * 5000 + "}"),
    "deep": frame('{"kind": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    "no object": frame([1]),
    "a kind that is a list": frame({"kind": ["welcome"]}),
    "no JSON": frame("\0"),
    "no UTF-8": HEADER.pack(MAGIC, 2, 0) + b"\xff\xff",
    "a head without an end": HEADER.pack(MAGIC, 1 << 31, 0),
    "a body without an end": frame(WELCOME, size=1 << 63),
    "another magic": b"HTTP/1.1 200 OK\r\n",
}


def server_address(address: tuple[str, int], **fields: Any) -> ServerAddress:
    return ServerAddress(
        address=address, secret=SECRET, sizes=SIZES, hint=0, token="t",
        wants_slot=False, **fields,
    )  # fmt: skip


@pytest.mark.parametrize("what", JOINING)
def test_a_worker_names_what_it_cannot_read_in_a_welcome(what: str) -> None:
    with saying(JOINING[what]) as address, pytest.raises(BadFrame):
        ServerClient(server_address(address), get("aeasgd"))


VECTORS = bytes(SIZES.down_bytes)
ANSWERS: dict[str, tuple[bytes, str]] = {
    "no clock": (frame({k: v for k, v in GRANT.items() if k != "clock"}), "clock"),
    "an infinite clock": (frame({**GRANT, "clock": float("inf")}), "infinity"),
    "pieces of words": (frame({**GRANT, "pieces": "all"}), "no list"),
    "half a piece": (frame({**GRANT, "pieces": [[1, 2]]}), "argument"),
    "a piece that is no number": (
        frame({**GRANT, "pieces": [[0, 0, float("nan"), 0]]}), "NaN"),
    "a piece that ends before it begins": (
        frame({**GRANT, "pieces": [[0, 8, 0, 0]]}), "end before"),
    "a piece of 400 digits": (frame({**GRANT, "pieces": [[0, 0, 10**400, 0]]}),
                              "no number"),
    "half a group": (frame({**GRANT, "group": [1]}), "unpack"),
    "a group of words": (frame({**GRANT, "group": [1, "all"]}), "no list"),
    "a rate that is text": (frame({**GRANT, "lr": "fast"}), "learning rate"),
    "infinite sums": (frame({**GRANT, "sums": [float("inf")]}), "sums of"),
    "less than no changes": (frame({**GRANT, "changes": -1}), "no number"),
    "more changes than bytes": (frame({**GRANT, "changes": 9}, bytes(8)), "no number"),
    "changes that are none": (frame({**GRANT, "changes": 9}, bytes(9)), "no changes"),
    "half of the vectors": (
        frame({**GRANT, "body": "center"}, VECTORS[:-8]), "bytes of vectors"),
    "no vectors": (frame({**GRANT, "body": "center"}), "bytes of vectors"),
    "5,000 digits": (frame('{"kind": "grant", "clock": ' + "9" * 5000 + "}"), "JSON"),
    "a body without an end": (frame(GRANT, size=1 << 63), "too large"),
}  # fmt: skip


@pytest.mark.parametrize("what", ANSWERS)
def test_a_worker_names_what_it_cannot_read_in_an_answer(what: str) -> None:
    content, why = ANSWERS[what]
    with saying(frame(WELCOME, START), content) as address:
        client = ServerClient(server_address(address), get("aeasgd"))
        with pytest.raises(BadFrame, match=why):
            client.need()
        client.leave()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_in_vectors_arrive_unchanged(value: float) -> None:
    """`on_nan` decides what they do to a run; reading them does not fail."""
    body = np.full(SIZES.down_bytes // 4, value, np.float32).tobytes()
    with saying(
        frame(WELCOME, START), frame({**GRANT, "body": "center"}, body)
    ) as address:
        client = ServerClient(server_address(address), get("aeasgd"))
        client.need()
        np.testing.assert_array_equal(client.local, np.float32(value))
        client.leave()


def test_missing_memory_for_a_frame_is_reported() -> None:
    with pytest.raises(BadFrame, match="no memory for the 4,611,686,018,427,387,904"):
        memory_for(1 << 62)
    assert len(memory_for(1 << 20)) == 1 << 20


# -------------------------------------------------------------- shard to worker

SHARD_SIZES = Sizes(vector=48, statistics=0, metrics=0, digest="d")
ME = Attend(rank=0, incarnation=1, question=0, wants_center=True, token="t")
SEATED = frame({"kind": "seated"}, bytes(4 * 16))
KEPT = frame({"kind": "kept", "question": 1})
PART: dict[str, Any] = {"kind": "part", "question": 1, "body": "reply"}
PARTS: dict[str, tuple[tuple[bytes, ...], str]] = {
    "half a center": ((frame({"kind": "seated"}, bytes(60)),), "bytes of a center"),
    "no center": ((frame({"kind": "seated"}),), "bytes of a center"),
    "no question": ((SEATED, frame({"kind": "kept"})), "question"),
    "an infinite question": (
        (SEATED, frame({"kind": "kept", "question": float("inf")})), "infinity"),
    "something else": ((SEATED, frame({**GRANT, "question": 1})), "something else"),
    "half a part": ((SEATED, KEPT, frame(PART, bytes(60))), "bytes of a part"),
    "no part": ((SEATED, KEPT, frame(PART)), "bytes of a part"),
    "two parts": ((SEATED, KEPT, frame(PART, bytes(128))), "bytes of a part"),
}  # fmt: skip


@pytest.mark.parametrize("what", PARTS)
def test_a_worker_names_what_it_cannot_read_from_a_shard(what: str) -> None:
    frames, why = PARTS[what]
    with saying(*frames) as address:
        given = server_address(("127.0.0.1", 1), shards=((address,),))
        shard_clients = ShardClients(
            given, Buffers(SHARD_SIZES, None), get("aeasgd"), ME, SYSTEM
        )
        with pytest.raises(BadFrame, match=why):
            exchange(shard_clients)
        shard_clients.leave()


def exchange(shard_clients: ShardClients) -> None:
    shard_clients.attend()
    shard_clients.stage(1, is_push=True).result()
    shard_clients.take(1)


# ------------------------------------------------------------ leader to standby

EVENT: dict[str, Any] = {"event": "flush", "at": 0.5}
LED: dict[str, Any] = {
    "another kind": {"kind": "what"},
    "no event": {"kind": "event", "vectors": 0},
    "an event without its time": {
        "kind": "event", "vectors": 0, "event": {"event": "flush"}},
    "an infinite time": {
        "kind": "event", "vectors": 0, "event": {**EVENT, "at": float("inf")}},
    "an event that is a list": {"kind": "event", "vectors": 0, "event": [1]},
    "an event of nobody": {
        "kind": "event", "vectors": 0, "event": {"event": "leave", "at": 0.5}},
    "vectors of nobody": {"kind": "event", "vectors": 8, "event": EVENT},
    "less than no vectors": {"kind": "event", "vectors": -1, "event": EVENT},
    "infinite vectors": {"kind": "event", "vectors": float("inf"), "event": EVENT},
    "a stage without a number": {
        "kind": "event", "vectors": 0,
        "event": {"event": "stage", "rank": 0, "incarnation": 1}},
    "a slot that nobody named": {
        "kind": "event", "vectors": 8, "is_mapped": True,
        "event": {**EVENT, "rank": 0, "incarnation": 1}},
    "a slot of numbers": {
        "kind": "slot", "rank": 0, "incarnation": 1, "path": 7, "mark": 7},
    "what was heard as a list": {"kind": "heard", "number": []},
    "what was ordered as text": {"kind": "ordered"},
}  # fmt: skip


def follow(*frames: bytes) -> str:
    """Sends a standby these messages of a leader; returns why it stopped following."""
    with Cluster(setup()) as cluster:
        frozen = pickle.dumps(cluster.server.replica.freeze())
        with saying(
            frame({"kind": "frozen"}, frozen), *frames, secret=cluster.secret
        ) as address:
            spec = StandbySpec(server=cluster._own_spec, leader=address)
            standby = Standby.open(spec, socket.create_server(("127.0.0.1", 0)))
            said: list[dict[str, Any]] = []
            send = standby._link.send

            def told(head: dict[str, Any], *body: bytes) -> None:
                said.append(head)
                send(head, *body)

            standby._link.send = told  # type: ignore[method-assign]
            while standby.is_following:
                standby.turn()
            assert standby.succeed() is None
        runs_well(cluster)
    assert [word["kind"] for word in said] == ["took", "refused"]
    return said[1]["reason"]


@pytest.mark.parametrize("what", LED)
def test_a_standby_reports_an_event_that_it_cannot_read(what: str) -> None:
    assert "of the leader" in follow(frame(LED[what]))


def test_a_standby_reports_a_state_that_it_cannot_read() -> None:
    with Cluster(setup()) as cluster:
        for first in (frame({"kind": "frozen"}, b"no pickle"), frame(LED["no event"])):
            with saying(first, secret=cluster.secret) as address:
                spec = StandbySpec(server=cluster._own_spec, leader=address)
                standby = Standby.open(spec, socket.create_server(("127.0.0.1", 0)))
                while standby.is_following:
                    standby.turn()
                assert standby.succeed() is None
        runs_well(cluster)


def test_a_standby_that_cannot_follow_is_given_up_with_its_reason() -> None:
    with Cluster(setup(has_standby=True)) as cluster:
        standby = cluster._standby
        assert standby is not None
        standby._refuse("it is of another version")
        while not (gone := cluster_said(cluster, "standby_left")):
            cluster._hear(is_over=False)
        assert "it cannot follow: it is of another version" in gone[0]["reason"]


def cluster_said(cluster: Cluster, kind: str) -> list[dict[str, Any]]:
    return [event for event in cluster._events if event["kind"] == kind]
