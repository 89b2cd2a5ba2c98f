"""Groups of JAX: the runtime of jax.distributed and jaxlib's gloo, anew each time.

`jax.distributed.initialize` gives a process one group for its life, and ends it when
another member is lost. What it is made of does better: a client of its own for each
group, coordinated only until its members are connected. From then on there is nothing
but gloo's connections, and a lost member is an error that can be caught.
(Within the tenth of a second before, the loss of the first member ends the others as
well: jaxlib cannot tell them in another way. They are replaced like any lost worker.)
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shoal.backends.group import LIMIT_S, Group, GroupBroken
from shoal.vectors import Vector

T = TypeVar("T")

_HOST = "127.0.0.1"  # all workers are on this machine
_AXIS = "members"
_POLL_S = 0.002
_NO_HEARTBEATS_S = 1_000_000  # gloo's connections tell sooner who is gone

# XLA knows connections by the address of what made them; it must never be used again.
_KEPT: list[Any] = []


def open_group(path: Path, place: int, size: int, library: str) -> Group:
    """Forms a group; returns when all members are there.

    Args:
        path: Of a file that they find each other by; of this group alone.
        place: Of this member, from 0.
        size: How many they are.
        library: "gloo".

    Raises:
        GroupBroken: Not all came in time, or this jaxlib has no such groups.
    """
    return _within(lambda: _form(path, place, size))


def _within(call: Callable[[], T]) -> T:
    """Runs a call in a thread: what hangs for a member that hangs is left behind.

    Raises:
        GroupBroken: It failed, or took too long.
    """
    done: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put((True, call()))
        except Exception as error:  # whatever it is, the server makes the mean
            done.put((False, error))

    threading.Thread(target=run, name="shoal-group", daemon=True).start()
    try:
        is_well, found = done.get(timeout=LIMIT_S)
    except queue.Empty:
        raise GroupBroken(f"a member did not answer in {LIMIT_S:g} s") from None
    if not is_well:
        text = str(found).partition("\n")[0]
        raise GroupBroken(f"{type(found).__name__}: {text}") from found
    return found


def _form(path: Path, place: int, size: int) -> JaxGroup:
    """Connects all members, and adds once, so that nobody is asked for help later."""
    library: Any = import_module("jax._src.lib")  # not public; see `open_group`
    runtime = library._jax
    limit_s = int(LIMIT_S)
    service: Any = None
    if place == 0:
        address = f"{_HOST}:{_free_port()}"
        service = runtime.get_distributed_runtime_service(
            address, size, heartbeat_timeout=_NO_HEARTBEATS_S,
            cluster_register_timeout=limit_s, shutdown_timeout=limit_s,
        )  # fmt: skip
        _announce(path, address)
    else:
        address = _await(path)
    client = runtime.get_distributed_runtime_client(
        address, place, init_timeout=limit_s, shutdown_timeout=limit_s,
        heartbeat_timeout=_NO_HEARTBEATS_S, shutdown_on_destruction=False,
        missed_heartbeat_callback=_ignore,
    )  # fmt: skip
    client.connect()
    collectives = runtime.make_gloo_tcp_collectives(client, hostname=_HOST)
    _KEPT.append(collectives)
    devices = library.xla_client.make_cpu_client(
        distributed_client=client, node_id=place, num_nodes=size, num_devices=1,
        collectives=collectives,
    )  # fmt: skip
    group = JaxGroup(devices, place, size)
    group.add(np.zeros(1, np.float32), 1.0)  # gloo connects when it first adds
    client.shutdown()
    if service is not None:
        service.shutdown()
    return group


def _ignore(*_: object) -> None:
    """Instead of what jaxlib does when a member does not come: it ends the process."""


def _free_port() -> int:
    """A port that was free a moment ago; who loses it forms no group this time."""
    with socket.create_server((_HOST, 0)) as server:
        return server.getsockname()[1]


def _announce(path: Path, address: str) -> None:
    """Writes where the first member waits; the file is whole when it is there."""
    draft = path.with_suffix(".draft")
    draft.write_text(address)
    draft.replace(path)


def _await(path: Path) -> str:
    """Reads where the first member waits, once it is there."""
    until = time.monotonic() + LIMIT_S
    while not path.exists():
        if time.monotonic() > until:
            raise GroupBroken(f"its first member did not come in {LIMIT_S:g} s")
        time.sleep(_POLL_S)
    return path.read_text()


@final
class JaxGroup(Group):
    """See `Group`.

    Args:
        devices: A client of JAX whose devices are those of all members.
        place: Of this member.
        size: How many they are.
    """

    def __init__(self, devices: Any, place: int, size: int) -> None:
        self._size, self._place = size, place
        self._here: Any = devices.local_devices()[0]
        mesh = Mesh(np.array(devices.devices()), (_AXIS,))
        self._rows: Any = NamedSharding(mesh, PartitionSpec(_AXIS))

        def total(vectors: Any, masses: Any) -> Any:
            return jax.lax.psum((vectors, masses), _AXIS)

        spec = PartitionSpec(_AXIS)
        added: Any = jax.shard_map(total, mesh=mesh, in_specs=spec, out_specs=spec)
        self._total: Any = jax.jit(added)

    def add(self, vector: Vector, mass: float) -> float:
        """Adds; what takes too long is left behind, and so is the group."""
        # Of all members apart, and in two parts each: float32 counts to 16 million.
        masses = np.zeros((self._size, 2), np.float32)
        masses[self._place, 0] = mass
        masses[self._place, 1] = mass - float(masses[self._place, 0])
        found, parts = _within(lambda: self._added(vector, masses))
        vector[:] = found
        return float(parts.astype(np.float64).sum())

    def _added(self, *mine: Any) -> list[Any]:
        given = [
            jax.make_array_from_single_device_arrays(
                (self._size, *part.shape), self._rows,
                [jax.device_put(part[None], self._here)],
            )
            for part in mine
        ]  # fmt: skip
        return [
            np.asarray(part.addressable_shards[0].data)[0]
            for part in self._total(*given)
        ]

    def close(self) -> None:
        """Lets go of it. XLA keeps its connections as long as this process lives."""
        self._total = self._rows = self._here = None
