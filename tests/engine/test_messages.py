"""Messages of a peer with the run's key: any JSON in any field."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.transport.client_connection import ServerAddress
from shoal.engine.transport.messages.worker_reports import Failed
from shoal.engine.transport.messages.worker_to_server import Join, Push
from shoal.engine.worker.client import ServerClient
from shoal.strategies import get
from shoal.testing.problems import LeastSquares
from shoal.wire.frames import BadFrame, Link, unpack_head
from shoal.wire.handshake import worker_secret
from tests.engine.cases import runs_well, setup, shut_out
from tests.engine.false_peers import frame
from tests.support.inline import Cluster, Setup

pytestmark = pytest.mark.usefixtures("unhurried")

# What the server turns into a bad frame, which closes the connection.
REFUSED = (ArithmeticError, LookupError, TypeError, ValueError)

PUSH: dict[str, Any] = {
    "kind": "push", "lineage": 0, "sequence": 3, "pieces": [[0, 0, 8, 8]], "steps": 2,
    "samples": 8.0, "group": 0, "rows": None, "own": [], "assumed": [], "doubt": 0,
    "times": [0.1, 0.1, 0.0, 0.1],
}  # fmt: skip
FAILURE = {"kind": "failed", "error": "e", "traceback": "t", "step": 1}
JOIN: dict[str, Any] = {
    "kind": "join", "digest": "d", "metrics": 2, "hint": 0, "node": "here", "pid": 7,
    "token": "a", "wants_slot": False,
}  # fmt: skip
READERS = [(Push, PUSH), (Failed, FAILURE), (Join, JOIN)]

hostile = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.sampled_from([10**400, -1, 1 << 63, "\x00", "nan", "Infinity", "9" * 300])
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def numbers_in(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [n for v in value.values() for n in numbers_in(v)]
    if isinstance(value, (list, tuple)):
        return [n for v in value for n in numbers_in(v)]
    return [value] if isinstance(value, (int, float)) else []


@pytest.mark.parametrize(("read", "head"), READERS)
def test_messages_of_a_worker_are_read(read: Any, head: Any) -> None:
    assert read.parse(head)


@pytest.mark.parametrize(("read", "head"), READERS)
@settings(max_examples=200)
@given(data=st.data())
def test_any_value_in_any_field_is_refused_or_finite(
    read: Any, head: Any, data: Any
) -> None:
    field = data.draw(st.sampled_from(sorted(set(head) - {"kind"})))
    value = data.draw(hostile)
    try:
        found = read.parse({**head, field: value}).to_json()
    except REFUSED:
        return
    assert all(math.isfinite(float(n)) for n in numbers_in(found))
    assert all(abs(n) < 1 << 62 or isinstance(n, float) for n in numbers_in(found))
    json.dumps(found, allow_nan=False)  # what reaches the records of a run


@pytest.mark.parametrize(
    "text",
    [
        '{"kind": "push", "samples": ' + "9" * 5000 + "}",
        '{"kind": "push", "pieces": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"kind": ["push"]}',
        '["push"]',
        '{"kind": "push"',
        "\x00",
    ],
    ids=["5,000 digits", "deep", "kind is a list", "no object", "cut", "no JSON"],
)
def test_heads_that_no_peer_sends_are_refused(text: str) -> None:
    with pytest.raises(BadFrame):
        unpack_head(text.encode())


# ------------------------------------------------- to servers, shards and standbys

INFINITE, DIGITS, DEEP = float("inf"), "9" * 5000, "[" * 100_000
ATTEND: dict[str, Any] = {
    "kind": "attend", "rank": 0, "incarnation": 1, "token": "a", "question": 0,
    "wants_center": True,
}  # fmt: skip
NOBODY: dict[str, bytes] = {
    "an infinite rank": frame({**ATTEND, "rank": INFINITE}),
    "a rank that is no number": frame({**ATTEND, "rank": float("nan")}),
    "less than no rank": frame({**ATTEND, "rank": -1}),
    "a rank of 400 digits": frame({**ATTEND, "rank": 10**400}),
    "a rank that is a list": frame({**ATTEND, "rank": [0]}),
    "an infinite incarnation": frame({**ATTEND, "incarnation": INFINITE}),
    "no question": frame({k: v for k, v in ATTEND.items() if k != "question"}),
    "5,000 digits": frame('{"kind": "attend", "rank": ' + DIGITS + "}"),
    "deep": frame('{"kind": "attend", "rank": ' + DEEP + "}"),
    "a body": frame(ATTEND, bytes(8)),
    "a body without an end": frame(ATTEND, size=1 << 63),
    "a word of another server": frame({"kind": "shard", "number": 1, "have": 0}),
    "a word of a standby": frame({"kind": "standby", "generation": INFINITE}),
    "a word of the controller": frame({"kind": "control"}),
}


def worker_of(cluster: Cluster, **fields: Any) -> ServerClient:
    """A worker beside those of the run, with the same secret."""
    return ServerClient(
        ServerAddress(
            address=cluster.address, secret=worker_secret(cluster.secret),
            sizes=cluster.sizes, hint=9, token="t", shards=cluster.shards.addresses,
            **fields,
        ),
        cluster._setup.strategy,
    )  # fmt: skip


def shared(**fields: Any) -> Setup:
    """Two servers, each with a part of the vector."""
    problem = LeastSquares.seeded(rows=64, size=150)
    fields = {"workers": 2, "epochs": 2, "servers": 2, **fields}
    return Setup.linear(problem, get("aeasgd", period=3), 0.005, **fields)


@contextmanager
def calling(cluster: Cluster, address: tuple[str, int]) -> Iterator[Link]:
    with closing(Link(address, worker_secret(cluster.secret))) as link:
        yield link


@pytest.mark.parametrize("what", NOBODY)
def test_a_shard_drops_a_malformed_peer_and_the_run_goes_on(what: str) -> None:
    with Cluster(shared()) as cluster:
        with calling(cluster, cluster.shards.addresses[0][0]) as link:
            link.socket.sendall(NOBODY[what])
            shut_out(link.socket)
        runs_well(cluster)


STAGE: dict[str, Any] = {"kind": "stage", "question": 7, "is_coded": False}
STAGES: dict[str, tuple[Any, int]] = {
    "half a part": (STAGE, -4),
    "no part": (STAGE, -(1 << 20)),
    "more than a part": (STAGE, 4),
    "no question": ({"kind": "stage"}, 0),
    "an infinite question": ({**STAGE, "question": INFINITE}, 0),
    "less than no question": ({**STAGE, "question": -1}, 0),
    "a question of 400 digits": ({**STAGE, "question": 10**400}, 0),
    "a vector that was not to be encoded": ({**STAGE, "is_coded": True}, 0),
    "a push": ({**PUSH, "question": 7}, 0),
    "a join": ({**JOIN, "wants_slot": False}, 0),
    "5,000 digits": ('{"kind": "stage", "question": ' + DIGITS + "}", 0),
    "deep": ('{"kind": "stage", "question": ' + DEEP + "}", 0),
}


@pytest.mark.parametrize("what", STAGES)
def test_a_shard_drops_a_worker_with_malformed_messages(what: str) -> None:
    head, more = STAGES[what]
    with Cluster(shared()) as cluster:
        worker = worker_of(cluster)
        assert worker._shard_clients is not None
        shard_client = worker._shard_clients._shard_clients[0]
        size = max(0, len(shard_client._buffers.up) + more)
        link = shard_client._connection.link
        link.socket.sendall(frame(head, bytes(size)))
        shut_out(link.socket)
        worker.leave()
        runs_well(cluster)


@pytest.mark.parametrize("codec", ["bfloat16", "int8"])
def test_an_encoded_part_must_have_its_length(codec: str) -> None:
    for more in (-1, 1):
        with Cluster(shared(codec=codec, wants_slot=False)) as cluster:
            worker = worker_of(cluster, wants_slot=False)
            assert worker._shard_clients is not None
            shard_client = worker._shard_clients._shard_clients[0]
            assert shard_client._vector_codec is not None
            size = shard_client._vector_codec._decoder.size + len(
                shard_client._buffers.rest_up
            )
            link = shard_client._connection.link
            link.send({**STAGE, "is_coded": True}, bytes(size + more))
            shut_out(link.socket)
            worker.leave()
            runs_well(cluster)


BODIES: dict[str, tuple[dict[str, Any], int]] = {
    "half of the vectors": (PUSH, -8),
    "no vectors": (PUSH, -(1 << 20)),
    "more than the vectors": (PUSH, 8),
    "vectors that belong to no word": ({"kind": "need"}, 0),
    "vectors of a failure": (FAILURE, 0),
}


@pytest.mark.parametrize("what", BODIES)
@pytest.mark.parametrize("name", ["aeasgd", "local_sgd", "all_reduce"])
def test_a_body_of_another_length_than_its_head_says_is_refused(
    name: str, what: str
) -> None:
    """Before, it covered a part of the message, and was taken for the whole."""
    head, more = BODIES[what]
    with Cluster(setup(name)) as cluster:
        worker = worker_of(cluster, wants_slot=False)
        size = max(0, len(worker._own.up) + more)
        worker._link.send({**head, "question": 1}, bytes(size))
        shut_out(worker._link.socket)
        worker.leave()
        lost = [e for e in runs_well(cluster) if e["kind"] == "left"]
    [left] = [event for event in lost if event["rank"] == worker.rank]
    assert "where" in left["reason"]
    assert "belong" in left["reason"]


def test_a_body_beside_a_slot_is_refused() -> None:
    with Cluster(setup()) as cluster:
        worker = worker_of(cluster)
        assert worker._own.slot is not None
        worker._link.send({**PUSH, "question": 1}, bytes(len(worker._own.up)))
        shut_out(worker._link.socket)
        worker.leave()
        runs_well(cluster)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -3e38])
@pytest.mark.parametrize("name", ["aeasgd", "downpour", "dynsgd"])
@pytest.mark.parametrize("codec", ["float32", "int8"])
def test_nan_and_infinity_in_vectors_break_no_server(
    name: str, value: float, codec: str
) -> None:
    """A worker may send them, and `on_nan` decides what follows."""
    with Cluster(setup(name, codec=codec, wants_slot=False)) as cluster:
        worker = worker_of(cluster, wants_slot=False)
        cluster.command("proceed", epoch=0)
        worker.ready()
        for number in (1, 2):
            if not worker.progress.pieces:
                worker.need()
            pieces = [worker.progress.pieces.popleft()]
            worker.metrics[:] = value
            away = np.full_like(worker.local, value)
            worker.push_weights(away, worker.statistics, pieces, 1)
            assert worker.progress.version == number
        worker.leave()


@pytest.mark.parametrize("what", NOBODY)
def test_a_standby_drops_malformed_peers_and_still_takes_over(what: str) -> None:
    with Cluster(setup(has_standby=True)) as cluster:
        with calling(cluster, cluster._listeners[1].getsockname()) as link:
            link.socket.sendall(NOBODY[what])
            if what in WAITS:
                link.socket.sendall(NOBODY[what])  # it speaks while it waits
            shut_out(link.socket)
        runs_well(cluster)


# A standby believes nothing of what a caller says before it leads.
WAITS = [what for what, sent in NOBODY.items() if b'"kind":"attend"' in sent]


def test_a_peer_that_waits_at_a_standby_waits_once() -> None:
    """Before, each message was kept, so that one worker could fill the memory."""
    with Cluster(setup(has_standby=True)) as cluster:
        standby = cluster._standby
        assert standby is not None
        with calling(cluster, cluster._listeners[1].getsockname()) as link:
            with suppress(ConnectionError):  # it may be shut out before the last one
                for _ in range(9):
                    link.send(ATTEND)
            shut_out(link.socket)
        runs_well(cluster)
        assert not standby._callers


def test_a_peer_that_waits_at_a_shard_waits_once() -> None:
    with Cluster(shared()) as cluster:
        shard: Any = cluster.shards.shards[0].server
        with calling(cluster, cluster.shards.addresses[0][0]) as link:
            with suppress(ConnectionError):
                for _ in range(9):
                    link.send({**ATTEND, "rank": 77})
                link.send({"kind": "attend"})
            shut_out(link.socket)
            assert len(shard._attending) == 1
        runs_well(cluster)
