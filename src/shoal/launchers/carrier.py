"""The interface of a carrier: agents on the nodes of an engine, and calls to them.

A kind of cluster is a carrier of these few calls. `remote.py` decides how lost workers
are replaced, whose output a line is, and when a node counts as lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final


@final
@dataclass(frozen=True, kw_only=True)
class RequestedAgent:
    """An agent that was requested.

    Args:
        agent: The carrier's handle of it; hashable.
        arrival: The call that is answered by an `Arrival` once the agent has started.
        limit_s: Limit for its start in seconds.
        has_room: Whether its resources are reserved on a node that is not lost.
    """

    agent: Any
    arrival: Any
    limit_s: float
    has_room: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class CallResult:
    """The result of a call.

    Args:
        value: Return value of the method.
        error: Error that it raised, in a line; "" for none.
        lost: Reason why the agent and its process are lost, without a subject, such as
            "hung up"; "" if it is not lost.
        is_node: Whether the whole node is lost with it.
    """

    value: Any = None
    error: str = ""
    lost: str = ""
    is_node: bool = False


class Carrier(ABC):
    """Starts agents on nodes and carries calls to them.

    Two threads call `call` and `ready`. No call waits for another machine, except
    `ready`, up to its limit.
    """

    engine: ClassVar[str] = ""
    """A package that nodes need as well, in the version of this process."""

    advice: ClassVar[str] = "Install them there."
    """Remedy for a node with other versions."""

    advice_for_data: ClassVar[str] = "Pass files."
    """Remedy if data in memory cannot be sent."""

    advice_for_start: ClassVar[str] = "look at the load of its nodes"
    """Remedy if an agent does not start though it has room."""

    @property
    @abstractmethod
    def node_id(self) -> str:
        """Returns the id of this machine, as in the `Arrival` of an agent on it."""

    @property
    @abstractmethod
    def room(self) -> str:
        """Returns the resources of an agent, in words."""

    @abstractmethod
    def request_agents(
        self, avoided: Collection[str], *, is_patient: bool
    ) -> Sequence[RequestedAgent]:
        """Requests room for one process.

        Args:
            avoided: Ids of lost nodes, which the engine may still list.
            is_patient: Whether no process waits for it: it comes when there is room.

        Returns:
            One agent, or several of which the first to arrive is used.
        """

    @abstractmethod
    def call(self, agent: Any, method: str, *arguments: Any) -> Any:
        """Calls a method of an agent; returns a hashable handle of the call.

        An agent runs its calls one after the other, in this order; "report" is apart,
        and is answered meanwhile.

        Args:
            agent: Agent of a `RequestedAgent`.
            method: Name of a method of `NodeAgent`.
            arguments: Its arguments. Values that were `put` are given as their handles.
        """

    @abstractmethod
    def ready(self, calls: Sequence[Any], timeout_s: float) -> dict[Any, CallResult]:
        """Returns the calls that are done, with their results.

        Args:
            calls: Calls to wait for. Each result is returned once.
            timeout_s: Limit of the wait for all of them.
        """

    @abstractmethod
    def put(self, piece: Any) -> Any:
        """Puts a buffer where agents can read it; returns its handle."""

    @abstractmethod
    def release(self, agent: Any) -> None:
        """Ends an agent with its process, or cancels the request for one."""

    def close(self) -> None:  # noqa: B027 - a carrier may own nothing
        """Ends everything that the carrier itself has started."""
