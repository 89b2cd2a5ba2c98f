"""Heads of frames, one of each kind and shape, equal to recorded ones.

`tests/golden/heads.txt` was recorded from runs. A kind that changes there, or that has
no line, breaks what servers, workers and standbys of one run tell each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.transport import messages
from shoal.engine.transport.fields import WRONG
from shoal.engine.transport.messages import events
from shoal.engine.transport.messages.base import Message
from shoal.engine.transport.messages.controller_to_server import read_command
from shoal.engine.transport.messages.server_to_controller import read_report
from shoal.engine.transport.messages.server_to_worker import (
    Elsewhere,
    Welcome,
    WelcomeBack,
    read_answer,
)
from shoal.engine.transport.messages.shard import (
    FROM_SHARD,
    OF_SHARD,
    Attached,
    Attend,
    MessagePart,
    Ordered,
    ShardCalls,
)
from shoal.engine.transport.messages.standby import (
    FROM_STANDBY,
    TO_STANDBY,
    Logged,
    StandbyCalls,
)
from shoal.engine.transport.messages.worker_to_server import (
    Join,
    Rejoin,
    SlotSettled,
    WorkerRequest,
)
from shoal.wire.frames import HEADER, BadFrame, Head, pack_head
from tests.engine.test_messages import hostile

LINES = (Path(__file__).parents[1] / "golden/heads.txt").read_text().splitlines()
Read = Callable[[Head], Any]


def of(*kinds: Any) -> Callable[[Head], Read | None]:
    """Reads one of several classes; None for another kind."""
    found = {kind.kind: kind.parse for kind in kinds}
    return lambda head: found.get(head["kind"])


def worker_to_server(head: Head) -> Any:
    read = of(Join, Rejoin, SlotSettled)(head) or WorkerRequest.parse
    return read(head)


def server_to_worker(head: Head) -> Any:
    if "slot" in head and head["kind"] == WelcomeBack.kind:
        return WelcomeBack.parse(head)
    read = of(Welcome, Elsewhere)(head) or read_answer
    return read(head)


def mapped(*tables: Any) -> Read:
    """Reads by the first table that has the kind."""

    def read(head: Head) -> Any:
        [found, *_] = [table[head["kind"]] for table in tables if head["kind"] in table]
        return found.parse(head)

    return read


def by_name(*kinds: Any) -> dict[str, Any]:
    return {kind.kind: kind for kind in kinds}


READERS: dict[str, Read] = {
    "worker to server": worker_to_server,
    "server to worker": server_to_worker,
    "worker to shard": mapped(by_name(Attend, MessagePart)),
    "shard to worker": mapped(by_name(Attached), OF_SHARD),
    "shard to server": mapped(by_name(ShardCalls), FROM_SHARD),
    "server to shard": mapped(by_name(Ordered)),
    "standby to server": mapped(by_name(StandbyCalls), FROM_STANDBY),
    "server to standby": mapped(TO_STANDBY),
    "controller to server": read_command,
    "server to controller": read_report,
}


def parsed() -> list[tuple[str, Any]]:
    found = [line.split("\t") for line in LINES]
    return [(text, READERS[way](json.loads(text))) for way, text in found]


@pytest.mark.parametrize("line", LINES)
def test_a_head_is_packed_as_it_was(line: str) -> None:
    way, text = line.split("\t")
    message = READERS[way](json.loads(text))
    assert pack_head(message.pack(), 0)[HEADER.size :].decode() == text


def sent(base: type[Any]) -> set[type[Any]]:
    """Classes of messages that are sent, without their base classes."""
    names = [module.name for module in iter_modules(messages.__path__)]
    modules = [import_module(f"{messages.__name__}.{name}") for name in names]
    classes = {v for m in modules for v in vars(m).values() if isinstance(v, type)}
    return {k for k in classes if issubclass(k, base) and getattr(k, "__final__", 0)}


def test_every_message_has_its_line() -> None:
    found = {
        type(m.message if isinstance(m, WorkerRequest) else m) for _, m in parsed()
    }
    said = [getattr(m, "said", None) for _, m in parsed()]
    assert sent(Message) - found - set(map(type, said)) == set()


def test_every_event_has_its_line() -> None:
    logged = [m.event for _, m in parsed() if isinstance(m, Logged)]
    assert sent(events.BaseEvent) == set(map(type, logged))


@pytest.mark.parametrize("line", LINES)
@settings(max_examples=25)
@given(data=st.data())
def test_any_value_in_any_field_is_refused_or_read(line: str, data: Any) -> None:
    """What was read is packed again, and all of its fields have the declared types."""
    way, text = line.split("\t")
    head = json.loads(text)
    field = data.draw(st.sampled_from(["", *sorted(set(head) - {"kind"})]))
    if field:
        head[field] = data.draw(hostile)
    else:
        head = {"kind": head["kind"]}  # and nothing else
    try:
        message = READERS[way](head)
    except (BadFrame, *WRONG):
        return
    again = json.loads(json.dumps(message.pack()))
    assert json.dumps(READERS[way](again).pack()) == json.dumps(message.pack())
