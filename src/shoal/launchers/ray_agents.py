"""Agents that Ray has placed, and which process each of them looks after."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from shoal.launchers.base import Role
from shoal.launchers.node_agent import Arrival, NodeAgent
from shoal.launchers.versions import versions

ALONE_S = 60.0  # without the cluster an agent and its process end
ALONE_LOOK_S = 5.0
ALONE = 67  # its exit status then
MOST_EARLY = 200  # lines that a process wrote before anybody said where to
REPORTS, WORK = "reports", "work"  # of an agent's methods: each has a thread


class RayNodeAgent(NodeAgent):
    """An agent that Ray has placed."""

    def arrive(self, backend: str) -> Arrival:
        """Says where it is, and what is installed there."""
        threading.Thread(target=_stay, daemon=True).start()
        return Arrival(
            node=ray.util.get_node_ip_address(),
            node_id=ray.get_runtime_context().get_node_id(),
            versions=versions(backend),
            memory=self.memory,
        )


def _stay() -> None:
    """Ends an agent, and its process with it, whose cluster is out of its reach.

    Ray would leave them on a node whose cable is out for as long as that lasts.
    """
    seen = [time.monotonic()]

    def look() -> None:
        while True:
            with suppress(Exception):  # whatever Ray raises: it is not seen
                ray.util.list_named_actors()
                seen[0] = time.monotonic()
            time.sleep(ALONE_LOOK_S)

    threading.Thread(target=look, daemon=True).start()
    while time.monotonic() - seen[0] < ALONE_S:
        time.sleep(ALONE_LOOK_S)
    os._exit(ALONE)


@dataclass(kw_only=True, eq=False)
class AgentSlot:
    """An agent, and the one process that it looks after.

    Args:
        agent: The actor.
        arrival: Its first words, to come.
        bundle: Of the placement group, None outside of it.
        since: Monotonic seconds when it was asked for.
    """

    agent: Any
    arrival: Any
    bundle: int | None
    since: float
    here: Arrival | None = None
    token: str = ""
    report: Any = None
    asked: float = 0.0
    idle_since: float = 0.0
    calls: list[Any] = field(default_factory=list[Any])

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls the agent, which does one such thing after the other."""
        bound = getattr(self.agent, method).options(concurrency_group=WORK)
        found = bound.remote(*arguments)
        self.calls.append(found)
        return found

    def ask(self, now: float) -> None:
        """Asks for the next report."""
        self.asked = now
        bound = self.agent.report.options(concurrency_group=REPORTS)
        self.report = bound.remote()

    def waited_for(self) -> list[Any]:
        """What it will answer."""
        first = [self.arrival] if self.here is None else []
        return [*first, *self.calls, *([] if self.report is None else [self.report])]


@dataclass(kw_only=True, eq=False)
class Hand:
    """A worker's process, as the driver knows it.

    Args:
        role: That it plays.
        slots: Where it will be, or is; several as long as none has room.
        parts: That it was given, and that have not been sent.
        log: Where its lines go, None for nowhere.
        early: Lines that it wrote before it was given a part.
    """

    role: Role
    slots: list[AgentSlot]
    parts: deque[bytes] = field(default_factory=deque[bytes])
    log: Path | None = None
    has_part: bool = False
    early: deque[str] = field(default_factory=lambda: deque[str](maxlen=MOST_EARLY))
    since: float = 0.0
    is_stopped: bool = False

    @property
    def slot(self) -> AgentSlot | None:
        """Where it is; None as long as it waits for room."""
        return self.slots[0] if self.slots and self.slots[0].here else None


def why_gone(error: Exception) -> tuple[str, bool]:
    """What Ray says of a loss, in a line, and whether all of the node is lost."""
    text = str(error)
    if "its node has died" in text:
        return "died, as Ray says", True
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = lines[-1].partition(". ")[0] if lines else type(error).__name__
    return f"lost its agent: {said}", False
