"""A cluster in one process: a real server and real workers, each in a thread.

Sockets, slots, frames, leases and strategies are those of a run; processes, Keras
and the run folder are not there. A worker that ends early is replaced, as in a run.
This file decides what a test of the engine can set up in a line.

    outcome = train(Setup.linear(LeastSquares.seeded(), AEASGD(), workers=3))
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, final

from shoal.backends.base import ComputeSpec
from shoal.data.order import steps
from shoal.engine.controller.shared_servers import cut
from shoal.engine.server.base import BaseServer, open_connections
from shoal.engine.server.primary import JOINED_AGAIN, Primary
from shoal.engine.server.records import EpochEnd, Record
from shoal.engine.server.reports import read_epoch, read_records
from shoal.engine.server.spec import ServerSpec
from shoal.engine.server.standby import Standby, StandbySpec
from shoal.engine.transport.buffers import Sizes
from shoal.engine.transport.client_connection import ServerAddress
from shoal.engine.transport.messages.server_to_controller import Exchanges
from shoal.engine.transport.messages.state_reports import EpochEnded
from shoal.engine.transport.messages.worker_reports import NanReport
from shoal.engine.worker.main import work
from shoal.engine.worker.nan_policy import error_of
from shoal.engine.worker.spec import WorkerSpec
from shoal.errors import ClusterError, WorkerFailed
from shoal.wire.frames import Head, Link
from shoal.wire.handshake import worker_secret
from shoal.wire.tls import identity_for, make_identity
from tests.support.inline_setup import Outcome, Setup
from tests.support.inline_shards import InlineShards, Means

__all__ = ["Cluster", "Outcome", "Setup", "train"]

PATIENCE_S = 30.0  # for a message; a run without one for longer is stuck


def train(setup: Setup) -> Outcome:
    """Trains to the end.

    Raises:
        WorkerFailed: Code on a worker raised; its traceback is in the message.
        NotFinite: Numbers on a worker are not finite, and `reaction` is to stop.
        ExchangeTimeout: Nothing happened for a long time: the run is stuck.
    """
    period = setup.strategy.period
    if period == 0:
        share = setup.batch_size * setup.workers
        period = steps(setup.order.rows_of(0), share)
    setup = replace(setup, strategy=replace(setup.strategy, period=period))
    with Cluster(setup) as cluster:
        return cluster.run()


def _quietly(target: Callable[[], object]) -> None:
    """Runs code in a thread that ends where its process would."""
    with contextlib.suppress(SystemExit):
        target()


def _listen(host: str) -> socket.socket:
    return socket.create_server((host, 0), backlog=64)


@final
class Cluster:
    """Owns the threads of one run; use it as a context, so that they all end.

    Args:
        setup: Input of the run.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup, self.secret = setup, secrets.token_bytes(32)
        self.sizes = Sizes(
            vector=setup.vector.size,
            statistics=setup.statistics.size,
            metrics=setup.metrics,
            digest="inline",
            codec=setup.codec,
            state=setup.state,
        )
        identity = make_identity() if setup.has_tls else identity_for(setup.host)
        self.certificate = None if identity is None else identity.certificate
        self._listeners = [_listen(setup.host), _listen(setup.host)]
        self._spec = ServerSpec(
            secret=self.secret,
            strategy=setup.strategy,
            rules=setup.rules(),
            sizes=self.sizes,
            vector=setup.vector,
            statistics=setup.statistics,
            identity=identity,
            shards=setup.servers,
        )
        self._own_spec = cut(self._spec, 0)
        connections = open_connections(self._own_spec, self._listeners[0].dup())
        self.server: BaseServer = Primary(self._own_spec, connections)
        self._threads: list[threading.Thread] = []
        self._run("shoal-server", self.server.run)
        means = Means(
            order=lambda: self.address,
            call=self._call,
            run=self._run,
            has_standby=setup.has_standby,
        )
        self.shards = InlineShards(self._spec, means)
        self._hands: list[tuple[str, threading.Thread]] = []
        self._standby_peer: Link | None = None
        self._standby: Standby | None = None
        self._heard = 0
        self._link = self._call(self.address)
        self.command("control")
        self._events: list[Head] = []
        self._records: list[Record] = []
        self._epochs: dict[int, EpochEnd] = {}
        self._late = sorted(setup.late, reverse=True)
        self._state: bytes | None = None
        self._asked: list[tuple[str, dict[str, Any]]] = []
        if setup.has_standby:
            self._start_standby()
            while self._standby_peer is None:
                self._hear(is_over=False)

    @property
    def address(self) -> tuple[str, int]:
        """Address of the server."""
        return self._listeners[0].getsockname()

    def _run(self, name: str, target: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=_quietly, args=(target,), name=name)
        self._threads.append(thread)
        thread.start()
        return thread

    def _call(self, address: tuple[str, int]) -> Link:
        return Link(address, self.secret, certificate=self.certificate)

    # ---------------------------------------------------------------- standby

    def _start_standby(self) -> None:
        """Starts a standby of the leading server."""
        spec = StandbySpec(server=self._own_spec, leader=self.address)
        self._standby = Standby.open(spec, self._listeners[1].dup())
        self._run("shoal-standby", self._standby.run)

    def _greet_standby(self) -> None:
        self._standby_peer = self._call(self._listeners[1].getsockname())
        self._standby_peer.send({"kind": "control"})

    def _take_over(self) -> None:
        """Promotes the standby of a lost server; it gets a standby of its own."""
        if self._standby_peer is None or self._standby is None:
            raise ConnectionResetError("the server is gone, and there is no standby")
        living = [token for token, thread in self._hands if thread.is_alive()]
        self._link.close()
        self._link, self._standby_peer = self._standby_peer, None
        self._listeners.reverse()
        self.command("lead", heard=self._heard, living=living)
        for kind, fields in list(self._asked):
            self.command(kind, **fields)
        self.server = self._standby.successor()
        self.shards.follow(self.address)
        self._start_standby()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self) -> Outcome:
        """Trains to the end; see `train`."""
        for hint in range(self._setup.workers):
            self.start_worker(hint)
        self._ask("proceed", epoch=0)
        while len(self._epochs) < self._setup.epochs:
            self._hear(is_over=False)
        self._ask("state")
        while self._state is None:
            self._hear(is_over=True)
        return Outcome(
            epochs=[self._epochs[epoch] for epoch in sorted(self._epochs)],
            records=self._records,
            events=self._events,
            optimizer_state=self._state,
        )

    def command(self, kind: str, **fields: Any) -> None:
        """Sends a command to the server, as the controller would."""
        try:
            self._link.send({"kind": kind, **fields})
        except OSError:
            if not self._setup.has_standby:
                raise

    def _ask(self, kind: str, **fields: Any) -> None:
        """Sends a command to the server, and again to a server that takes over."""
        self._asked = [asked for asked in self._asked if asked[0] != kind]
        self._asked.append((kind, fields))
        self.command(kind, heard=self._heard, **fields)

    def start_worker(self, hint: int = -1) -> None:
        """Starts one more worker."""
        spec = self.worker_spec(hint)
        thread = self._run(
            f"shoal-worker-{hint}", partial(work, spec, self._setup.environment)
        )
        self._hands.append((spec.server_address.token, thread))

    def worker_spec(self, hint: int = -1) -> WorkerSpec:
        """Returns the spec of one more worker."""
        setup = self._setup
        server_address = ServerAddress(
            address=self.address,
            other=self._listeners[1].getsockname() if setup.has_standby else None,
            secret=worker_secret(self.secret),
            sizes=self.sizes,
            hint=hint,
            token=secrets.token_hex(8),
            wants_slot=setup.wants_slot,
            certificate=self.certificate,
            shards=self.shards.addresses,
        )
        return WorkerSpec(
            server_address=server_address,
            strategy=setup.strategy,
            compute=ComputeSpec(
                window=max(setup.strategy.period, setup.alone_steps),
                batch_size=setup.worker_batch_size or setup.batch_size,
                local_momentum=setup.strategy.local_momentum,
                loss_at=(0,),
                **setup.compute,
            ),
            order=setup.order,
            open_backend=setup.open_backend,
            open_source=lambda _: setup.source,
            exchanges_gradients=setup.exchanges_gradients,
            watch=setup.watch,
            reaction=setup.reaction,
            retry=setup.retry,
            collective=setup.collective,
            has_overlap=setup.has_overlap,
            alone_steps=setup.alone_steps,
        )

    def _hear(self, *, is_over: bool) -> None:
        """Takes one message of the server."""
        self.shards.attend(self._link)
        try:
            head, body = self._link.receive(timeout_s=PATIENCE_S)
        except ConnectionError:
            self._take_over()
            return
        number = head.get("number", self._heard)
        if number not in (self._heard, self._heard + 1):
            raise AssertionError(f"report {number} after {self._heard}: {head}")
        self._heard = number
        if head["kind"] == "standby_ready":
            self._greet_standby()
        else:
            self._keep(head, body, is_over=is_over)

    def _keep(self, head: Head, body: memoryview, *, is_over: bool) -> None:
        kind = head["kind"]
        if kind == "records":
            self._records += read_records(Exchanges.parse(head), body)[0]
            done = sum(record.samples for record in self._records)
            while self._late and self._late[-1] <= done:
                self._late.pop()
                self.start_worker()
        elif kind == "epoch":
            self._end_epoch(EpochEnded.parse(head), body)
        elif kind == "optimizer":
            self._state = bytes(body)
        elif kind == "broken":
            raise ClusterError(head["reason"])
        elif kind == "failed":
            raise WorkerFailed(head["error"], traceback=head["traceback"])
        elif kind == "not_finite" and head["reaction"] == "stop":
            raise error_of(head["rank"], NanReport.parse(head))
        else:
            self._events.append({k: v for k, v in head.items() if k != "number"})
            is_new = kind == "left" and head["reason"] != JOINED_AGAIN
            if is_new and not is_over:
                self.start_worker(head["rank"])

    def _end_epoch(self, report: EpochEnded, body: memoryview) -> None:
        whole, body = self.shards.whole(report, body)
        assert isinstance(whole, EpochEnded)
        self._epochs[report.epoch] = read_epoch(whole, body)
        upcoming = report.epoch + 1
        if upcoming < self._setup.epochs:
            self._ask("proceed", epoch=upcoming)

    def close(self) -> None:
        """Ends every thread; safe to repeat."""
        self._link.close()  # a server without a controller ends, and workers with it
        self.shards.close()
        if self._standby_peer is not None:
            self._standby_peer.close()
        if self._standby is not None:
            self._standby.stop()
        for listener in self._listeners:  # else workers would call there for a standby
            listener.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self._threads.clear()
