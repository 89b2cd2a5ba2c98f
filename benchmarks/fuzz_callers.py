"""The callers of `benchmarks.fuzz`: one process, one selector, many connections.

Each connection is a small state machine: it connects, greets or does not, and sends
what a `Mutator` draws until the server hangs up. Aimed at a dummy, which answers
nothing, it sends the same without waiting for answers.
"""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from shoal.wire.frames import pack_head
from shoal.wire.handshake import ANSWER_BYTES, Caller, NoProof
from tests.support.fuzzing import Mutator

AT_ONCE = 48  # connections that send frames
SLOW_AT_ONCE = 400  # slow connections: more than a server accepts
HELD_S = 15.0  # until a slow connection is closed
PAUSE_S = 0.002  # between frames of one connection, so that the server can hang up
MOST_FRAMES = 400
KINDS = ("stranger", "peer", "worker")
SHARES = (0.38, 0.6, 0.02)  # of connections

RESET = struct.pack("ii", 1, 0)  # leaves no port waiting


@dataclass(frozen=True, kw_only=True)
class Aim:
    """The address, and what the fuzzer knows of the run."""

    address: tuple[str, int]
    key: bytes
    digest: str
    metrics: int
    up_bytes: int
    is_dummy: bool = False


class Call:
    """One connection that sends frames, until it is over."""

    def __init__(self, kind: str, aim: Aim, draw: Mutator, frames: int) -> None:
        self.kind, self._aim, self._draw, self._left = kind, aim, draw, frames
        self.socket = connect(aim.address)
        self._talk, self._heard, self._has_begun = Caller(aim.key), b"", False
        self._rest = b""
        self.sent = self.leaked = 0

    def step(self) -> bool:
        """Reads and writes what is possible; returns whether the connection goes on."""
        try:
            return self._read() and self._write()
        except BlockingIOError:
            return True
        except (OSError, NoProof):
            return False

    def _read(self) -> bool:
        while not self._aim.is_dummy:
            try:
                data = self.socket.recv(1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            if self.kind == "stranger":
                self.leaked += len(data)
            elif len(self._heard) < ANSWER_BYTES:
                self._heard += data
        return True

    def _write(self) -> bool:
        if self._rest:
            self._rest = self._rest[self.socket.send(self._rest) :]
            return True
        if self.kind == "stranger":
            if self._has_begun:
                return not self._aim.is_dummy
            self._has_begun = True
            self._send(self._draw.garbage())
            return True
        if not self._has_begun:
            self._has_begun = True
            self._rest = self._talk.hello
            return True
        if self._heard is not None and not self._prove():
            return True
        if self._left == 0:
            return False
        self._left -= 1
        self._send(self._draw.frame(is_worker=self.kind == "worker"))
        return True

    def _prove(self) -> bool:
        """Whether this end has completed its part of the handshake."""
        if self._talk is None:
            return True
        if self._aim.is_dummy:
            proof = bytes(32)
        elif len(self._heard) < ANSWER_BYTES:
            return False
        else:
            proof = self._talk.prove(self._heard[:ANSWER_BYTES])
        self._talk = None
        if self.kind == "worker":
            proof += pack_head(self._draw.join(), 0)
            proof += pack_head({"kind": "slot", "is_shared": False}, 0)
        self._rest = proof
        return False

    def _send(self, frame: bytes) -> None:
        self._rest = frame[self.socket.send(frame) :]
        self.sent += 1


def connect(address: tuple[str, int]) -> socket.socket:
    """Begins to connect, without leaving ports in TIME_WAIT."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        connection.connect(address)
    return connection


class Slow:
    """Connections that begin the handshake and stop; the server drops them."""

    def __init__(self, aim: Aim, draw: Mutator, tally: Counter[str]) -> None:
        self._aim, self._draw, self._tally = aim, draw, tally
        self._open: deque[tuple[float, socket.socket]] = deque()
        self._looked = 0.0

    def open(self) -> None:
        """Opens one more connection; replaces the oldest if there are many."""
        if len(self._open) >= SLOW_AT_ONCE:
            self._open.popleft()[1].close()
        connection = connect(self._aim.address)
        self._open.append((time.monotonic(), connection))
        self._tally["slow"] += 1

    def look(self) -> None:
        """Sends one more byte on some; closes those that the server dropped."""
        now = time.monotonic()
        if now - self._looked < 0.5:
            return
        self._looked, kept = now, deque[tuple[float, socket.socket]]()
        for began, connection in self._open:
            if self._is_over(connection) or now - began > HELD_S:
                connection.close()
            else:
                kept.append((began, connection))
        self._open = kept

    def _is_over(self, connection: socket.socket) -> bool:
        try:
            connection.send(self._draw.unfinished()[:3] or b"S")
            heard = connection.recv(100)
        except BlockingIOError:
            return False
        except OSError:
            self._tally["slow seen off"] += 1
            return True
        self._tally["leaked"] += len(heard)
        self._tally["slow seen off"] += not heard
        return not heard

    def close(self) -> None:
        """Closes all connections."""
        for _, connection in self._open:
            connection.close()


class Volley:
    """A phase of the fuzzer, against one address."""

    def __init__(self, aim: Aim, seed: int, frames_per_call: float) -> None:
        self._aim, self._mean = aim, frames_per_call
        self._random = random.Random(seed)
        self._draw = Mutator(seed, aim.key, aim.digest, aim.metrics, aim.up_bytes)
        self.tally: Counter[str] = Counter()
        self._slow = Slow(aim, self._draw, self.tally)
        self._calls: dict[int, tuple[Call, float]] = {}

    def fire(self, rate: float, slow: int, is_over: Callable[[], bool]) -> None:
        """Sends frames at a rate a second until it is over.

        Args:
            rate: Frames a second at most.
            slow: Slow connections that call at the beginning, all at once.
            is_over: Asked often.
        """
        for _ in range(slow):
            self._slow.open()
        began = time.monotonic()
        with selectors.DefaultSelector() as selector:
            while not is_over():
                due = rate * (time.monotonic() - began) - self.tally["frames"]
                while due > len(self._calls) and len(self._calls) < AT_ONCE:
                    self._begin(selector)
                self._slow.look()
                for key, _ in selector.select(PAUSE_S):
                    self._hear(selector, key.fd)
                now = time.monotonic()
                late = [fd for fd, (_, at) in self._calls.items() if at <= now]
                for fd in late:
                    self._hear(selector, fd)
            for fd in list(self._calls):
                self._end(selector, fd)
        self._slow.close()

    def _begin(self, selector: selectors.BaseSelector) -> None:
        kind = self._random.choices(KINDS, SHARES)[0]
        most = MOST_FRAMES
        if self._aim.is_dummy:
            most = max(1, round(self._random.expovariate(1 / self._mean)))
        call = Call(kind, self._aim, self._draw, most)
        self._calls[call.socket.fileno()] = call, time.monotonic() + PAUSE_S
        selector.register(call.socket, selectors.EVENT_READ)
        self.tally[f"{kind} connections"] += 1

    def _hear(self, selector: selectors.BaseSelector, fd: int) -> None:
        found = self._calls.get(fd)
        if found is None:
            return
        call, before = found[0], found[0].sent
        goes_on = call.step()
        self.tally["frames"] += call.sent - before
        self.tally[f"{call.kind} frames"] += call.sent - before
        if goes_on:
            self._calls[fd] = call, time.monotonic() + PAUSE_S
        else:
            self._end(selector, fd)

    def _end(self, selector: selectors.BaseSelector, fd: int) -> None:
        call = self._calls.pop(fd)[0]
        selector.unregister(call.socket)
        call.socket.close()
        self.tally["leaked"] += call.leaked


def serve_orders(pipe: Connection, live: Aim, dummy: Aim) -> None:
    """The fuzzer's process: sends to the given address until it is told to stop.

    Orders are (is_dummy, rate, frames_per_call, slow, seed), and None for the end of a
    phase and of the process; each phase is answered with its tally and its seconds.
    It says first that it is ready.
    """
    pipe.send(None)
    order = pipe.recv()
    while order is not None:
        is_dummy, rate, mean, slow, seed = order
        volley, began = (
            Volley(dummy if is_dummy else live, seed, mean),
            time.monotonic(),
        )
        volley.fire(rate, slow, pipe.poll)
        pipe.recv()
        pipe.send((volley.tally, time.monotonic() - began))
        order = pipe.recv()


def serve_dummy(pipe: Connection) -> None:
    """The dummy's process: accepts and reads, and sends nothing."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=512) as listener,
        selectors.DefaultSelector() as selector,
    ):
        pipe.send(listener.getsockname())
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is pipe:
                    return
                if key.fileobj is listener:
                    with contextlib.suppress(OSError):
                        connection, _ = listener.accept()
                        connection.setblocking(False)
                        selector.register(connection, selectors.EVENT_READ)
                elif isinstance(key.fileobj, socket.socket):
                    _discard(selector, key.fileobj)


def _discard(selector: selectors.BaseSelector, connection: socket.socket) -> None:
    try:
        data = connection.recv(1 << 16)
    except BlockingIOError:
        return
    except OSError:
        data = b""
    if not data:
        selector.unregister(connection)
        connection.close()
