"""How a worker that exchanges gradients obtains the mean of a step.

The server makes it, or the workers make it among themselves. The loop knows this
interface alone; each way has a file of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, final

from shoal.engine.coordination.ledger import Piece
from shoal.engine.transport.messages.worker_to_server import NanStatus
from shoal.engine.worker.client import ServerClient, Weight
from shoal.vectors import Vector


class Part(NamedTuple):
    """A worker's part of a step.

    Args:
        piece: Its samples.
        gradient: The sum over them.
        statistics: The layers' statistics after them.
        weight: What the gradient weighs in the mean.
        nan_status: What this worker found in it; see `nan_guard`.
        told: What others are told of that.
    """

    piece: Piece
    gradient: Vector
    statistics: Vector
    weight: Weight
    nan_status: NanStatus
    told: NanStatus


class Collective(ABC):
    """One way to the mean of a step."""

    @property
    def room(self) -> Vector | None:
        """Where the next gradient lies best; None for the buffer of messages."""
        return None

    @abstractmethod
    def mean(self, client: ServerClient, part: Part) -> Vector | None:
        """Exchanges one step, and commits its samples.

        Args:
            client: The connection to the server, which decides whether the step counts.
            part: This worker's part of the step.

        Returns:
            The mean of all workers, a view. None where the run is over, or the gradient
            has to be computed for other sums, which `client.progress` then has.
        """

    @abstractmethod
    def close(self) -> None:
        """Leaves the group, if there is one."""


class CollectiveSpec(ABC):
    """Which way a worker takes; travels to its process.

    Attributes:
        forms_groups: Workers average among themselves where the server lets them.
        group_s: Seconds for which members of a group wait for each other.
    """

    forms_groups: ClassVar[bool] = True
    group_s: ClassVar[float] = 0.0

    @abstractmethod
    def open(self, client: ServerClient) -> Collective:
        """Opens this worker's end, once its rank is known."""


def through_server(
    client: ServerClient, part: Part, mean: Vector | None = None
) -> Vector | None:
    """Sends a part to the server and waits for the mean.

    Args:
        client: The connection to it.
        part: What is sent.
        mean: Of the step, as this worker's group has it; the gradient then stays here.

    Returns:
        See `Collective.mean`.
    """
    return client.push_gradient(
        part.gradient, part.statistics, [part.piece], part.weight, part.told, mean
    )


@final
class ServerCollective(Collective):
    """The server makes the mean of every step."""

    def mean(self, client: ServerClient, part: Part) -> Vector | None:
        """See `Collective`."""
        return through_server(client, part)

    def close(self) -> None:
        """See `Collective`: there is nothing to leave."""


@final
class ServerCollectiveSpec(CollectiveSpec):
    """See `ServerCollective`."""

    forms_groups = False

    def open(self, client: ServerClient) -> Collective:
        """See `CollectiveSpec`."""
        return ServerCollective()
