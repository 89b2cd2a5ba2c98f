"""What each of several servers is given, and what they tell, as one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from shoal.engine.machine import ServerSpec
from shoal.engine.restart import STATE, Restart
from shoal.engine.shards import cuts, sizes_of
from shoal.engine.wire import Head

Message: TypeAlias = tuple[Head, memoryview]


def cut(
    spec: ServerSpec, number: int, order: tuple[str, int] | None = None
) -> ServerSpec:
    """A server's part of what all of them together are given."""
    if spec.shards == 1:
        return spec
    part = cuts(spec.sizes.vector, spec.shards)[number]
    nothing = np.zeros(0, np.float32)
    return replace(
        spec,
        shard=number,
        order=order,
        sizes=sizes_of(spec.sizes, number, spec.shards),
        vector=spec.vector[part],
        statistics=nothing if number else spec.statistics,
        restart=None if spec.restart is None else _cut(spec.restart, part, number),
    )


def _cut(restart: Restart, part: slice, number: int) -> Restart:
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, array in restart.arrays.items():
        if _is_vector(name):
            arrays[name] = array[part]
        elif number == 0:
            arrays[name] = array
    arrays.setdefault("statistics", np.zeros(0, np.float32))
    # Of the optimizer's state others need not know more than whether there is one.
    blob = restart.blob[:1] if number else restart.blob
    return replace(restart, arrays=arrays, blob=blob)


def _is_vector(name: str) -> bool:
    return name == "vector" or name.startswith(STATE)


def join(message: Message, others: Sequence[Message]) -> Message:
    """One report of what all servers told of their parts.

    Args:
        message: Of server 0.
        others: Of the others, in order.
    """
    if message[0]["kind"] == "restart":
        return _join_restart(message, others)
    head, body = message
    at = 4 * int(head["size"])
    parts = [body[:at], *(part for _, part in others), body[at:]]
    size = int(head["size"]) + sum(int(other["size"]) for other, _ in others)
    return {**head, "size": size}, memoryview(b"".join(parts))


def _join_restart(message: Message, others: Sequence[Message]) -> Message:
    head, body = message
    table: list[list[Any]] = []
    parts: list[memoryview] = []
    found = [_arrays(*other) for other in others]
    own = _arrays(head, body)
    for name, dtype, size in head["arrays"]:
        parts.append(own[name])
        if _is_vector(name):
            parts += [other[name] for other in found]
            size = sum(len(other[name]) for other in (own, *found)) // 4
        table.append([name, dtype, size])
    used = sum(len(data) for data in own.values())
    parts.append(body[used:])
    return {**head, "arrays": table}, memoryview(b"".join(parts))


def _arrays(head: Head, body: memoryview) -> dict[str, memoryview]:
    found: dict[str, memoryview] = {}
    at = 0
    for name, dtype, size in head["arrays"]:
        end = at + np.dtype(dtype).itemsize * int(size)
        found[name] = body[at:end]
        at = end
    return found
