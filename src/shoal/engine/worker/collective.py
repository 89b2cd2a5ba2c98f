"""The interface of collectives: ways to the mean of a step under gradient exchange.

The server makes the mean, or the workers make it among themselves. The loop knows only
this interface; each way has its own file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, final

from shoal.engine.coordination.ledger import Piece
from shoal.engine.transport.messages.worker_to_server import NanStatus
from shoal.engine.worker.client import ServerClient, Weight
from shoal.vectors import Vector


class StepPart(NamedTuple):
    """A worker's part of a step.

    Args:
        piece: The samples.
        gradient: Sum of the gradients over them.
        statistics: The layers' statistics afterwards.
        weight: Weight of the gradient in the mean.
        nan_status: This worker's result; see `nan_guard`.
        told: Status that other workers are told.
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
        """Best memory for the next gradient; None for the buffer of messages."""
        return None

    @abstractmethod
    def mean(self, client: ServerClient, part: StepPart) -> Vector | None:
        """Exchanges one step, and commits its samples.

        Args:
            client: The connection to the server, which decides whether the step counts.
            part: This worker's part of the step.

        Returns:
            The mean of all workers, a view. None if the run is over, or if the gradient
            has to be computed again for the sums in `client.progress`.
        """

    @abstractmethod
    def close(self) -> None:
        """Leaves the group, if there is one."""


class CollectiveSpec(ABC):
    """The choice of a collective; it is sent to the worker's process.

    Attributes:
        group_s: Seconds for which members of a group wait for each other.
    """

    group_s: ClassVar[float] = 0.0

    @abstractmethod
    def open(self, client: ServerClient) -> Collective:
        """Opens this worker's end, once its rank is known."""


def through_server(
    client: ServerClient, part: StepPart, mean: Vector | None = None
) -> Vector | None:
    """Sends a part to the server and waits for the mean.

    Args:
        client: The connection to the server.
        part: This worker's part of the step.
        mean: Mean of the step from this worker's group; the gradient is not sent then.

    Returns:
        See `Collective.mean`.
    """
    return client.push_gradient(
        part.gradient, part.statistics, [part.piece], part.weight, part.told, mean
    )


@final
class ServerCollective(Collective):
    """The server averages every step."""

    def mean(self, client: ServerClient, part: StepPart) -> Vector | None:
        """See `Collective`."""
        return through_server(client, part)

    def close(self) -> None:
        """See `Collective`; there is no group to leave."""


@final
class ServerCollectiveSpec(CollectiveSpec):
    """See `ServerCollective`."""

    def open(self, client: ServerClient) -> Collective:
        """See `CollectiveSpec`."""
        return ServerCollective()
