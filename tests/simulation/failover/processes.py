"""The processes of a simulated run: two servers and workers, and how they end.

This file decides what a process is here: a server is an object that is given turns, a
worker a thread that is; one that ends leaves its connections as a killed process does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast, final

import numpy as np

from shoal.backends.base import Backend, ComputeSpec
from shoal.engine.server.base import BaseServer
from shoal.engine.server.primary import Primary
from shoal.engine.server.spec import ServerSpec
from shoal.engine.server.standby import Standby
from shoal.engine.transport.buffers import Sizes
from shoal.engine.transport.client_connection import ServerAddress
from shoal.engine.transport.listener import Connections
from shoal.engine.worker.main import work
from shoal.engine.worker.spec import WorkerSpec
from shoal.errors import ExchangeTimeout
from shoal.strategies import get
from shoal.testing.problems import LeastSquares
from shoal.wire.frames import Link
from tests.simulation.failover.controller import SimController
from tests.simulation.failover.counting import CountingBackend, EmbeddingBackend
from tests.simulation.failover.network import (
    Address,
    Network,
    SimConnections,
    SimLink,
    Wire,
)
from tests.simulation.failover.scenario import Scenario
from tests.simulation.failover.strand import Strand
from tests.support.inline_setup import Setup
from tests.support.linear import LinearBackend

FEATURES = 2
SECRET = bytes(32)


@final
@dataclass(eq=False)
class Process:
    """A server's process.

    Args:
        address: Address on which it listens.
        connections: Its connections.
        body: Function that it runs.
        link: Connection of a standby to its leader.
    """

    address: Address
    connections: SimConnections
    body: BaseServer | Standby
    link: SimLink | None = None


@final
class SimProcesses:
    """All processes of one run.

    Args:
        scenario: Parameters of the run.
        network: Between them.
        chance: Decides how much of what was sent still arrives.

    Attributes:
        exits: Processes that ended, and the controller does not know: what they were,
            and which.
    """

    def __init__(
        self, scenario: Scenario, network: Network, chance: random.Random
    ) -> None:
        self.network, self._random = network, chance
        self.setup = setup_of(scenario)
        self.spec = server_spec(self.setup)
        self._addresses: list[Address] = [("simulated", 0), ("simulated", 1)]
        self.strands: dict[str, Strand] = {}
        self.exits: list[tuple[str, object]] = []
        self._hired = 0
        self.follower: Process | None = None
        self.leader: Process | None = self._listen(self._start_server())
        self.controller = SimController(self, scenario.epochs)
        for hint in range(scenario.workers):
            self.start_worker(hint)

    @property
    def servers(self) -> list[Process]:
        """The servers that live."""
        return [p for p in (self.leader, self.follower) if p is not None]

    # --------------------------------------------------------------- servers

    def _start_server(self) -> Process:
        connections = SimConnections()
        body = Primary(
            self.spec, cast("Connections", connections), environment=self.network
        )
        return Process(self._addresses[0], connections, body)

    def _listen(self, process: Process) -> Process:
        self.network.servers[process.address] = process.connections
        return process

    def start_standby(self) -> None:
        """Starts the standby that the controller wants."""
        controller = self.controller
        controller.wants_standby = False
        controller.generation += 1
        controller.is_called = False
        try:
            wire = self.call(is_leader=True)
        except ExchangeTimeout:
            controller.lose_standby()
            return
        link, connections = SimLink(wire), SimConnections()
        link.send({"kind": "standby", "generation": controller.generation})
        body = Standby(
            self.spec,
            cast("Connections", connections),
            cast("Link", link),
            self.network,
        )
        process = Process(self._addresses[1], connections, body, link)
        self.follower = self._listen(process)

    def call(self, *, is_leader: bool) -> Wire:
        """Connects the controller."""
        address = self._addresses[0 if is_leader else 1]
        return self.network.call(address, is_commander=True)

    def promote(self) -> None:
        """Makes the standby's process the leader's."""
        self._addresses.reverse()
        self.leader, self.follower = self.follower, None

    def end_leader(self) -> None:
        """Ends the leading server's process."""
        if self.leader is not None:
            self.kill_server(self.leader)
            self.leader = None

    def end_standby(self) -> None:
        """Ends the standby's process."""
        if self.follower is not None:
            self.kill_server(self.follower)
            self.follower = None

    def kill_server(self, process: Process) -> None:
        """Ends a server's process at any point of its work."""
        if self.network.servers.get(process.address) is not process.connections:
            return
        for wire in list(process.connections.peers):
            wire.close(self._part(len(wire.down)))
        if process.link is not None:
            process.link.close(self._part(len(process.link.socket.up)))
        process.connections.is_stopped = True
        del self.network.servers[process.address]

    def ended(self, process: Process) -> None:
        """Removes a server's process; the controller will notice."""
        self.kill_server(process)
        what = "leader" if process is self.leader else "standby"
        self.exits.append((what, process))

    # --------------------------------------------------------------- workers

    @property
    def living(self) -> Sequence[str]:
        """Tokens of workers whose process lives."""
        return list(self.strands)

    def start_worker(self, hint: int) -> None:
        """Starts a worker."""
        self._hired += 1
        token = f"{self._hired}"
        self.strands[token] = Strand(
            partial(work, self._worker_spec(hint, token), self.network)
        )
        self.controller.hired(token, hint)

    def link_of(self, token: str) -> SimLink | None:
        """The connection of a worker, if it has called."""
        return self.network.links.get(self.strands[token])

    def end_worker(self, token: str) -> None:
        """Ends a worker's process."""
        if token in self.strands:
            link = self.link_of(token)
            if link is not None:
                link.close(self._part(len(link.socket.up)))
            self.strands[token].kill()

    def bury(self) -> None:
        """Removes workers that have ended; the controller will notice.

        Raises:
            BaseException: The error that ended a worker, unless it is `SystemExit`.
        """
        for token, strand in list(self.strands.items()):
            if strand.is_over:
                del self.strands[token]
                self.exits.append(("worker", token))
                if strand.error is not None:
                    raise strand.error

    def _worker_spec(self, hint: int, token: str) -> WorkerSpec:
        setup = self.setup
        return WorkerSpec(
            server_address=ServerAddress(
                address=self._addresses[0],
                other=self._addresses[1],
                secret=SECRET,
                sizes=self.spec.sizes,
                hint=hint,
                token=token,
                wants_slot=False,
            ),
            strategy=setup.strategy,
            compute=ComputeSpec(
                window=max(setup.strategy.period, setup.alone_steps),
                batch_size=setup.batch_size,
                local_momentum=setup.strategy.local_momentum,
                loss_at=(0,),
                **setup.compute,
            ),
            order=setup.order,
            open_backend=setup.open_backend,
            open_source=lambda _: setup.source,
            exchanges_gradients=setup.exchanges_gradients,
            has_overlap=setup.has_overlap,
            alone_steps=setup.alone_steps,
        )

    # --------------------------------------------------------------- endings

    def cut(self, link: SimLink) -> bool:
        """Breaks a connection in the network; each end finds it closed by the other."""
        wire = link.socket
        if wire.is_closed:
            return False
        wire.lose(self._part(len(wire.up)), self._part(len(wire.down)))
        return True

    def close(self) -> None:
        """Ends all servers for the controller; workers find no server."""
        self.end_leader()
        self.end_standby()
        self.network.is_closed = True

    def _part(self, whole: int) -> int:
        return self._random.randint(0, whole)


def one_hot(rows: int) -> LeastSquares:
    """A problem with a weight for each row; see `EmbeddingBackend`."""
    return LeastSquares(features=np.eye(rows), optimum=np.zeros(rows, np.float32))


def setup_of(scenario: Scenario) -> Setup:
    """The set-up of a scenario."""
    problem = LeastSquares.seeded(rows=scenario.rows, size=FEATURES)
    backend: type[LinearBackend] = LinearBackend
    if scenario.is_counting:
        backend = CountingBackend
    elif scenario.is_summed:
        problem, backend = one_hot(scenario.rows), EmbeddingBackend

    def open_backend(spec: ComputeSpec, _: Any) -> Backend:
        return backend(problem.size, spec)

    setup = Setup.linear(
        problem,
        replace(get(scenario.kind), period=scenario.period),
        workers=scenario.workers,
        epochs=scenario.epochs,
        batch_size=scenario.batch_size,
        has_barrier=scenario.has_barrier,
        quorum=scenario.quorum,
        codec=scenario.codec,
        has_overlap=scenario.has_overlap,
        compute={"is_summed": scenario.is_summed},
        alone_steps=scenario.alone_steps,
    )
    return replace(setup, open_backend=open_backend)


def server_spec(setup: Setup) -> ServerSpec:
    """Returns the spec of a server of this set-up."""
    sizes = Sizes(
        vector=setup.vector.size,
        statistics=setup.statistics.size,
        metrics=setup.metrics,
        digest="simulated",
        codec=setup.codec,
    )
    return ServerSpec(
        secret=SECRET,
        strategy=setup.strategy,
        rules=setup.rules(),
        sizes=sizes,
        vector=setup.vector,
        statistics=setup.statistics,
    )
