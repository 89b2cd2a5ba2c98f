"""Data in memory on its way to other machines: one copy on each.

The engine's carrier moves it in pieces, which are deleted once they are written.
This file decides which agent holds the copy of a machine.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from shoal.errors import ClusterError
from shoal.launchers.carrier import Carrier
from shoal.launchers.node_agent import Arrival, Memory
from shoal.launchers.shared import SharedBlob

PIECE_BYTES = 16 << 20
MOST_UNDER_WAY = 2  # pieces being written while the next one is read
PIECE_S = 60.0  # limit for a piece; a slower node counts as lost
LOOK_S = 0.5


@final
@dataclass(eq=False)
class _Home:
    """The agents that hold the copy of a machine, the first one first."""

    holders: dict[Any, Memory] = field(default_factory=dict[Any, Memory])
    has_data: bool = False


@final
class DataBroadcast:
    """Copies the data once to each machine with workers.

    Args:
        blob: The data, in memory of this machine.
        carrier: Carrier of the engine. Workers on this machine open the blob itself.
    """

    def __init__(self, blob: SharedBlob, carrier: Carrier) -> None:
        self._blob, self._node_id, self._carrier = blob, carrier.node_id, carrier
        self._homes: dict[str, _Home] = {}
        self._is_loaded = False
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()
        self._error = ""

    def home(self, here: Arrival, agent: Any) -> Memory:
        """Returns the memory that an agent's processes inherit."""
        if here.node_id == self._node_id:
            return Memory.of(self._blob)
        home = self._homes.setdefault(here.node_id, _Home())
        found = next(iter(home.holders.values()), here.memory)
        if not home.holders:
            home.has_data = False
            self.opened(here.node_id, agent, found)
        return found

    def opened(self, node_id: str, agent: Any, memory: Memory) -> None:
        """Notes that an agent has opened its machine's copy as well."""
        home = self._homes.get(node_id)
        if home is not None:
            home.holders[agent] = memory

    def forget(self, agent: Any) -> None:
        """Removes a lost agent; others of its machine may still hold the copy."""
        for home in self._homes.values():
            home.holders.pop(agent, None)

    def load(self) -> None:
        """Notes that the data is complete."""
        self._is_loaded = True

    def has_arrived(self, node_id: str) -> bool:
        """Whether processes of a machine can read all of it."""
        if node_id == self._node_id or not self._size():
            return True
        home = self._homes.get(node_id)
        return home is not None and home.has_data and bool(home.holders)

    def _size(self) -> int:
        return os.fstat(self._blob.descriptor).st_size if self._is_loaded else -1

    def look(self, *, may_go: bool) -> None:
        """Starts sending it to machines that lack it.

        Args:
            may_go: Whether no more machines are expected now, so that one pass serves
                all.

        Raises:
            ClusterError: It could not be sent.
        """
        if self._error:
            raise ClusterError(
                f"the data could not be sent to other nodes: {self._error}. Expected "
                f"room for pieces of {PIECE_BYTES >> 20} MiB. "
                f"{self._carrier.advice_for_data}"
            )
        if not may_go or self._size() <= 0 or self._thread is not None:
            return
        bound = {
            next(iter(home.holders)): home
            for home in self._homes.values()
            if home.holders and not home.has_data
        }
        if bound:
            self._thread = threading.Thread(
                target=self._travel, args=(bound,), name="shoal-broadcast", daemon=True
            )
            self._thread.start()

    def _travel(self, bound: dict[Any, _Home]) -> None:
        try:
            self._send(bound)
        except Exception as error:  # the engine may raise anything; `look` reports it
            self._error = f"{type(error).__name__}: {error}"
        finally:
            self._thread = None

    def _send(self, bound: dict[Any, _Home]) -> None:
        size = self._size()
        under_way: deque[dict[Any, Any]] = deque()
        memory = mmap.mmap(self._blob.descriptor, size, access=mmap.ACCESS_READ)
        for offset in range(0, size, PIECE_BYTES):
            if self._is_over.is_set() or not bound:
                return
            count = min(PIECE_BYTES, size - offset)
            view = np.frombuffer(memory, np.uint8, count, offset)
            piece = self._carrier.put(view)
            under_way.append(
                {self._carrier.call(p, "write", offset, piece): p for p in bound}
            )
            if len(under_way) > MOST_UNDER_WAY:
                self._await(under_way.popleft(), bound)
        for calls in under_way:
            self._await(calls, bound)
        for agent, home in bound.items():
            home.has_data = agent in home.holders and not self._is_over.is_set()

    def _await(self, calls: dict[Any, Any], bound: dict[Any, _Home]) -> None:
        """Waits for a piece to be written everywhere; drops agents that fail."""
        until = time.monotonic() + PIECE_S
        left = dict(calls)
        while left and time.monotonic() < until and not self._is_over.is_set():
            for call, result in self._carrier.ready(list(left), LOOK_S).items():
                agent = left.pop(call)
                if result.error or result.lost:
                    bound.pop(agent, None)
            # A lost agent does not answer any more.
            left = {
                call: agent
                for call, agent in left.items()
                if agent in bound and agent in bound[agent].holders
            }
        for agent in left.values():
            bound.pop(agent, None)

    def close(self) -> None:
        """Ends running transfers."""
        self._is_over.set()
        thread = self._thread
        if thread is not None:
            thread.join(PIECE_S)
