"""A worker's conversation with its server, whichever of two leads.

Blocking: every question waits for its answer. This file decides how a worker comes to
its server and back to it; what is said lies in `member.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from shoal.data.read_ahead import BEAT_S
from shoal.engine.bulk import Bulk, Sizes
from shoal.engine.parcels import parcels_of
from shoal.engine.slots import Slot
from shoal.engine.wire import Head, Link
from shoal.errors import ExchangeTimeout, ShoalError
from shoal.strategies.base import Strategy

CALL_S = 60.0  # until somebody greets
TURN_S = 5.0  # the same at one of two addresses
CALL_PAUSE_S = 0.02

Answered: TypeAlias = tuple[Head, memoryview]


def in_background(work: Callable[[], Answered]) -> Future[Answered]:
    """Starts what waits for the network, in a thread that no exit waits for."""
    found: Future[Answered] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name="shoal-exchange", daemon=True).start()
    return found


class Fenced(ShoalError):
    """The server refused this process: another one has its place, or its past."""


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


class Conversation:
    """A worker's connection.

    Args:
        seat: Where and as whom to join.
        strategy: Of the run.

    Attributes:
        bulk: Where vectors lie, once it is settled.
        rank: Of this worker, once it has joined; so is `incarnation`.
    """

    bulk: Bulk
    rank: int
    incarnation: int

    def __init__(self, seat: Seat, strategy: Strategy) -> None:
        self.strategy, self.sizes = strategy, seat.sizes
        self._seat, self._question = seat, 0
        self._early: Future[Answered] | None = None
        self._addresses = [seat.address] if seat.other is None else [
            seat.address, seat.other
        ]  # fmt: skip

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

    # ---------------------------------------------------------------- telling

    @property
    def has_early(self) -> bool:
        """Whether there is, or will be, an answer that was not waited for."""
        return self._early is not None

    def _ask_early(self, head: Head) -> None:
        """Says something with vectors, and does not wait; `_arrive` does."""
        self._early = in_background(lambda: self._ask(head, has_vectors=True))

    def _arrive(self) -> Answered:
        """Waits for the answer that was not waited for.

        Raises:
            RuntimeError: There is none.
        """
        early, self._early = self._early, None
        if early is None:
            raise RuntimeError("nothing was asked early")
        return early.result()

    def _let_arrive(self) -> None:
        """One question at a time: waits, and leaves the answer where it is."""
        early = self._early
        if early is not None:
            early.exception()

    def tell(self, kind: str, **fields: Any) -> None:
        """Tells the controller of something that is no failure yet."""
        self._let_arrive()
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
        self._let_arrive()
        self._ask({"kind": "failed", **report})

    def leave(self) -> None:
        """Closes the connection and gives the slot back."""
        self._link.close()
        self.bulk.close()
