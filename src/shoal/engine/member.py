"""A worker's seat at the server: joins, pushes, asks for data, keeps its place.

This file decides what a worker says and what it keeps of the answers. It knows
the wire and the vectors' memory, but no model.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.data.read_ahead import BEAT_S
from shoal.engine.bulk import Bulk, Sizes, aligned_bytes
from shoal.engine.center import pull_into, push_into
from shoal.engine.instructions import Group
from shoal.engine.ledger import Piece
from shoal.engine.parcels import parcels_of
from shoal.engine.slots import Slot
from shoal.engine.wire import Head, Link
from shoal.errors import ExchangeTimeout, ShoalError
from shoal.strategies.base import Strategy
from shoal.vectors import Vector

CALL_S = 60.0  # until somebody greets
TURN_S = 5.0  # the same at one of two addresses
CALL_PAUSE_S = 0.02


class Fenced(ShoalError):
    """The server refused this process: another one has its place, or its past."""


@dataclass
class Times:
    """Seconds of a window: computing, reading, waiting for work, exchanging."""

    compute_s: float = 0.0
    data_s: float = 0.0
    wait_s: float = 0.0
    exchange_s: float = 0.0

    def take(self) -> list[float]:
        """Returns what was measured and starts again."""
        spent = self.compute_s, self.data_s, self.wait_s, self.exchange_s
        self.compute_s = self.data_s = self.wait_s = self.exchange_s = 0.0
        return [round(seconds, 6) for seconds in spent]


def _vector(size: int) -> Vector:
    return aligned_bytes(4 * size).view(np.float32)


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Who a worker says it is when it joins.

    Args:
        address: Of the server.
        other: Where a standby listens, or will; None where there is none.
        secret: What `worker_secret` made of the run's.
        sizes: Of the vectors.
        hint: The rank it wishes for.
        token: Names its process to the controller.
        node: Its machine.
        wants_slot: Vectors through shared memory, where both are at one address.
        certificate: Of the server, None where it does not use TLS.
    """

    address: tuple[str, int]
    secret: bytes = field(repr=False)
    sizes: Sizes
    hint: int
    token: str
    other: tuple[str, int] | None = None
    node: str = "localhost"
    wants_slot: bool = True
    certificate: bytes | None = None


@dataclass
class Progress:
    """What the last answer told."""

    version: int = 0
    lineage: int = 0
    clock: int = 0
    workers: int = 1
    learning_rate: float | None = None
    is_done: bool = False
    wants_snapshot: bool = False
    doubt: int = 0
    group: Group | None = None
    pieces: deque[Piece] = field(default_factory=deque[Piece])


class Member:
    """A worker's connection. Blocking: every question waits for its answer.

    Args:
        seat: Where and as whom to join.
        strategy: Whose `push` and `pull` run here.

    Raises:
        Fenced: The server has another model, or gave the place to another.
    """

    def __init__(self, seat: Seat, strategy: Strategy) -> None:
        self.strategy, self.sizes = strategy, seat.sizes
        self.progress, self.times = Progress(), Times()
        self._seat, self._sequence, self._question = seat, 0, 0
        self._addresses = [seat.address] if seat.other is None else [
            seat.address, seat.other
        ]  # fmt: skip
        head, body = self._call(
            {"kind": "join", "digest": seat.sizes.digest, "metrics": seat.sizes.metrics,
             "hint": seat.hint, "node": seat.node, "pid": os.getpid()}
        )  # fmt: skip
        self._heed(head)
        self.rank: int = head["rank"]
        self.incarnation: int = head["incarnation"]
        size, count = seat.sizes.vector, seat.sizes.statistics
        start = np.frombuffer(body, np.float32, size + count)
        self.optimizer = bytes(body[start.nbytes :])
        """Another worker's optimizer state, empty where there was none."""
        self.local = _vector(size)
        self._anchor = _vector(size) if strategy.needs_anchor else None
        self._spare: Vector | None = None
        self.statistics = start[size:].copy()
        self._adopt(start[:size])
        self.bulk = self._settle(head["slot"])

    def _call(self, head: Head) -> tuple[Head, memoryview]:
        """Calls whoever leads, and says who this is.

        With two addresses it tries them in turn: a standby tells to call elsewhere, and
        where a server was lost nobody greets until another one has started.

        Raises:
            ConnectionError: The server hung up.
            ExchangeTimeout: Nobody greets at any address.
            Fenced: This worker is not wanted.
        """
        seat = self._seat
        head |= {"token": seat.token}
        has_other, refused = len(self._addresses) > 1, 0
        until = time.monotonic() + CALL_S
        while True:
            try:
                answer, body = self._call_once(head, TURN_S if has_other else CALL_S)
                if answer["kind"] != "elsewhere":
                    break
                self._link.close()
            except (ConnectionError, ExchangeTimeout) as error:
                is_refused = isinstance(error.__context__, ConnectionRefusedError)
                refused = refused + 1 if is_refused else 0
                is_over = time.monotonic() > until or refused == len(self._addresses)
                if is_over or not has_other:  # refused everywhere: the run is over
                    raise
            self._addresses.reverse()
            time.sleep(CALL_PAUSE_S)
        if answer["kind"] == "refused":
            self._link.close()
            raise Fenced(f"the server refused this worker: {answer['reason']}")
        return answer, body

    def _call_once(self, head: Head, limit_s: float) -> tuple[Head, memoryview]:
        seat = self._seat
        self._link = Link(
            self._addresses[0],
            seat.secret,
            certificate=seat.certificate,
            timeout_s=limit_s,
        )
        try:
            wants_slot = seat.wants_slot and self._link.is_local
            self._link.send({**head, "wants_slot": wants_slot})
            return self._link.receive()
        except BaseException:
            self._link.close()
            raise

    def _settle(self, offer: dict[str, str] | None) -> Bulk:
        slot = None
        if offer is not None:
            size = self.sizes.slot_bytes
            slot = Slot.attach(offer["path"], size, offer["mark"])
        self._link.send({"kind": "slot", "is_shared": slot is not None})
        bulk = Bulk(self.sizes, slot)
        self._parcels = parcels_of(bulk, self.strategy, is_server=False)
        return bulk

    def _ask(
        self, head: Head, *, has_vectors: bool = False, blob: bytes = b""
    ) -> tuple[Head, memoryview]:
        """Asks the server, or the one that took its place, until one answers."""
        self._question += 1
        head["question"] = self._question
        parts = self._parts(head["kind"]) if has_vectors else ()
        if len(parts) > 1:
            head["is_coded"] = True
        while True:
            try:
                self._link.send(head, *parts, blob)
                return self._receive()
            except ConnectionError as error:
                self._go_back(error)
                # As it is: that server may not know what the other one had.
                head.pop("is_coded", None)
                parts = (self.bulk.inline_up,) if has_vectors else ()

    def _parts(self, kind: str) -> tuple[memoryview, ...]:
        """What a message adds to its frame: a vector that is encoded has two parts."""
        parcels = self._parcels
        if parcels is not None and kind == "push":
            found = parcels.pack()
            if found is not None:
                return found
        elif parcels is not None:
            parcels.sent()
        return (self.bulk.inline_up,)

    def _receive(self) -> tuple[Head, memoryview]:
        """Waits for an answer; its vectors are then in `self.bulk`."""
        parcels = self._parcels
        if parcels is None:
            return self._link.receive(self.bulk.inline_down or None)
        head, body = self._link.receive(parcels.landing)
        if head.get("is_coded"):
            body = body[parcels.unpack(body) :]
        elif head.get("body", "none") != "none" and len(body) == len(self.bulk.down):
            self.bulk.down[:] = body
        return head, body

    def _go_back(self, error: ConnectionError) -> None:
        """The server is gone: waits for its standby to lead, and takes its place there.

        The standby knows which question was answered and how.

        Raises:
            ConnectionError: There is no standby, or it is gone as well.
        """
        self._link.close()
        if len(self._addresses) < 2:
            raise error
        self._addresses.reverse()
        who = {"rank": self.rank, "incarnation": self.incarnation}
        try:
            head, _ = self._call({"kind": "rejoin", **who})
        except ExchangeTimeout:
            raise error from None
        before, self.bulk = self.bulk, self._settle(head["slot"])
        self.bulk.up[:] = before.up
        before.close()

    # ---------------------------------------------------------------- answers

    def _heed(self, head: Head) -> None:
        """Keeps what every answer tells."""
        kind = head["kind"]
        if kind == "refused":
            raise Fenced(f"the server refused this worker: {head['reason']}")
        progress = self.progress
        progress.version, progress.lineage = head["version"], head["lineage"]
        progress.clock, progress.workers = head["clock"], head["workers"]
        progress.learning_rate = head["lr"]
        progress.is_done = kind == "done"
        progress.doubt = int(head.get("doubt", 0))
        progress.wants_snapshot = bool(head.get("publish"))
        group = head.get("group")
        progress.group = None if group is None else Group(group[0], tuple(group[1]))
        if kind == "repeat":
            progress.pieces.clear()  # it tells of all there are
        progress.pieces.extend(Piece(*piece) for piece in head.get("pieces", ()))

    def _answer(
        self, question: Head, *, has_vectors: bool = False, blob: bytes = b""
    ) -> tuple[Head, bytes]:
        """Asks and waits for an answer; bulk data is then in `self.bulk`."""
        head, body = self._ask(question, has_vectors=has_vectors, blob=blob)
        self._heed(head)
        found = b""
        if head.get("body") == "snapshot":
            inline = len(self.bulk.inline_down)
            found = bytes(body[inline:])
            if inline:
                self.bulk.inline_down[:] = body[:inline]
        if head.get("body", "none") != "none":
            self.statistics[:] = self.bulk.reply_statistics
        return head, found

    @property
    def _from(self) -> Vector:
        """The anchor, or where the steps began if that is the same."""
        return self.local if self._anchor is None else self._anchor

    def _adopt(self, center: Vector) -> None:
        self.local[:] = self.strategy.adopt(center)
        if self._anchor is not None:
            self._anchor[:] = center

    def _room(self, local: Vector) -> Vector:
        """Memory for what follows from `local`: that of where its steps began.

        Unless it is the same, as no step was taken, or as the backend works in place.
        """
        if not np.may_share_memory(local, self.local):
            return self.local
        if self._spare is None:
            self._spare = _vector(local.size)
        free, self._spare = self._spare, self.local
        return free

    # --------------------------------------------------------------- questions

    def ready(self) -> bytes:
        """Says that the model is compiled; waits for the first data."""
        return self._after_wait("ready")[1]

    def need(self) -> tuple[Head, bytes]:
        """Says that there is no data left; waits for more, or for the end."""
        return self._after_wait("need")

    def _after_wait(self, kind: str) -> tuple[Head, bytes]:
        head, blob = self._answer({"kind": kind})
        if head.get("body") in ("center", "snapshot"):
            self._adopt(self.bulk.reply)
        return head, blob

    def push_weights(
        self,
        local: Vector,
        statistics: Vector,
        pieces: list[Piece],
        steps: int,
        learnt: int | None = None,
    ) -> None:
        """Sends what was learnt from `pieces`; `self.local` is then the next start.

        Args:
            local: Weights, as they were read from a program that has ended.
            statistics: Their statistics.
            pieces: Whose samples are done.
            steps: That were taken.
            learnt: Samples of `pieces` that something was learnt from, None for all.
        """
        began = time.perf_counter()
        push_into(self.strategy, self.bulk.message, local, self._from, steps)
        samples = sum(p.rows for p in pieces) if learnt is None else learnt
        head = self._send(statistics, pieces, steps, float(samples))
        before, self.local = self._from, self._room(local)
        if head["body"] == "reply":
            pull_into(self.strategy, self.local, local, before, self.bulk.reply)
        elif head["body"] == "center":
            self._adopt(self.bulk.reply)
        else:  # an elastic repeat skips one displacement, or the run is done
            self.local[:] = local
        self.times.exchange_s += time.perf_counter() - began

    def push_gradient(
        self,
        statistics: Vector,
        pieces: list[Piece],
        mass: float,
        doubt: int = 0,
        mean: Vector | None = None,
    ) -> Vector:
        """Sends the sum of gradients that lies in `bulk.message`.

        Args:
            statistics: Beside it.
            pieces: Whose samples it is of.
            mass: What it weighs.
            doubt: See `guard`; the answer has the highest of all workers.
            mean: Of the step, as this worker's group has it; None without one.

        Returns:
            The mean of all workers, a view.
        """
        began, group = time.perf_counter(), self.progress.group
        generation = 0 if group is None or mean is None else group.generation
        head = self._send(statistics, pieces, 1, mass, doubt, generation)
        if head["kind"] == "again":  # not all of the round have that mean
            mean = None
            self._send(statistics, pieces, 1, mass, doubt)
        self.times.exchange_s += time.perf_counter() - began
        return self.bulk.reply if mean is None else mean

    def _send(
        self,
        statistics: Vector,
        pieces: list[Piece],
        steps: int,
        samples: float,
        doubt: int = 0,
        group: int = 0,
    ) -> Head:
        self.bulk.message_statistics[:] = statistics
        self._sequence += 1
        return self._answer(
            {"kind": "push", "lineage": self.progress.lineage,
             "sequence": self._sequence, "pieces": pieces, "steps": steps,
             "samples": samples, "doubt": doubt, "group": group,
             "times": self.times.take()},
            has_vectors=True,
        )[0]  # fmt: skip

    def publish(self, vector: Vector, statistics: Vector, blob: bytes) -> None:
        """Sends the whole state of a gang member, for joiners and the controller."""
        self.bulk.message[:] = vector
        self.bulk.message_statistics[:] = statistics
        self._answer({"kind": "snapshot"}, has_vectors=True, blob=blob)

    def tell(self, kind: str, **fields: Any) -> None:
        """Tells the controller of something that is no failure yet."""
        self._ask({"kind": kind, **fields})

    @contextmanager
    def busy(self) -> Generator[None]:
        """Says every second that it works. Nothing else may be said meanwhile."""
        is_over = threading.Event()

        def say() -> None:
            while not is_over.wait(BEAT_S):
                with suppress(OSError, ShoalError):  # whatever is said next meets it
                    self.tell("busy")

        thread = threading.Thread(target=say, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def fail(self, **report: Any) -> None:
        """Tells the controller that user code raised, whichever server leads."""
        self._ask({"kind": "failed", **report})

    def leave(self) -> None:
        """Closes the connection and gives the slot back."""
        self._link.close()
        self.bulk.close()
