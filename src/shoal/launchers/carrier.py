"""What a remote launcher needs of an engine: agents on nodes, and calls to them.

A kind of cluster is a carrier of these few calls. Who replaces a lost worker, which
output belongs to whom and when a node counts as gone is decided once, in `remote.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final


@final
@dataclass(frozen=True, kw_only=True)
class RequestedAgent:
    """An agent that was asked for.

    Args:
        agent: What the carrier knows it by; hashable.
        arrival: The call that an `Arrival` answers when the agent is there.
        limit_s: Seconds that it may take to be there.
    """

    agent: Any
    arrival: Any
    limit_s: float


@final
@dataclass(frozen=True, kw_only=True)
class CallResult:
    """What came of a call.

    Args:
        value: What the method returned.
        error: What it raised, in a line; "" for nothing.
        lost: Why the agent is gone, with its process: "it" is left out, such as
            "hung up"; "" where it is there.
        is_node: The whole node is lost with it.
    """

    value: Any = None
    error: str = ""
    lost: str = ""
    is_node: bool = False


class Carrier(ABC):
    """Starts agents on nodes and carries calls to them.

    `call` and `ready` are called by two threads. No call waits for another machine, but
    `ready` as long as it is told to.
    """

    engine: ClassVar[str] = ""
    """A package that nodes need as well, in the version of this process."""

    advice: ClassVar[str] = "Install them there."
    """What to do where a node has other versions."""

    advice_for_data: ClassVar[str] = "Pass files."
    """What to do where data in memory cannot be sent."""

    @property
    @abstractmethod
    def node_id(self) -> str:
        """This machine, as the `Arrival` of an agent on it would name it."""

    @property
    @abstractmethod
    def room(self) -> str:
        """What each agent takes of a node, in words."""

    @abstractmethod
    def request_agents(
        self, avoided: Collection[str], *, is_patient: bool
    ) -> Sequence[RequestedAgent]:
        """Asks for room for one process.

        Args:
            avoided: Ids of nodes that are lost, though the engine may not know it yet.
            is_patient: Nobody waits for it: it comes when there is room.

        Returns:
            One agent, or several of which the first to arrive is taken.
        """

    @abstractmethod
    def call(self, agent: Any, method: str, *arguments: Any) -> Any:
        """Has an agent do something; returns what stands for the call; hashable.

        An agent does one thing after the other, in this order; "report" is apart, and
        is answered meanwhile.

        Args:
            agent: Of a `RequestedAgent`.
            method: Of `NodeAgent`.
            arguments: For it. Those that were `put` are given as what stands for them.
        """

    @abstractmethod
    def ready(self, calls: Sequence[Any], timeout_s: float) -> dict[Any, CallResult]:
        """Returns the calls that are over, and what came of them.

        Args:
            calls: To wait for. What came of one is told once.
            timeout_s: Until all are over, or so long.
        """

    @abstractmethod
    def put(self, piece: Any) -> Any:
        """Puts a buffer where agents can read it; returns what stands for it."""

    @abstractmethod
    def release(self, agent: Any) -> None:
        """Ends an agent, or the request for one, and with it the process it has."""

    def close(self) -> None:  # noqa: B027 - a carrier may own nothing
        """Ends whatever the carrier itself has started."""
