"""A man in the middle of a connection, who sees and changes records of TLS."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, final

Way: TypeAlias = Literal["up", "down"]
"""Up is to the server, which was called."""
Harm: TypeAlias = Callable[[list[bytes], bytes], list[bytes] | None]
"""From the records held back and a record to those that go on; None cuts."""

RECORD_BYTES, DATA = 5, 23
"""Of the start of a record, and the type of those that carry data."""


def cut(held: list[bytes], record: bytes) -> list[bytes] | None:
    """Closes the connection at both ends instead."""
    del held, record
    return None


def drop(held: list[bytes], record: bytes) -> list[bytes] | None:
    """Drops the record."""
    del held, record
    return []


def replay(held: list[bytes], record: bytes) -> list[bytes] | None:
    """Sends the record twice."""
    del held
    return [record, record]


def reorder(held: list[bytes], record: bytes) -> list[bytes] | None:
    """Holds the record back until the next one was sent."""
    held.append(record)
    return []


def flip(held: list[bytes], record: bytes) -> list[bytes] | None:
    """Changes one bit of the record."""
    del held
    return [record[:-1] + bytes([record[-1] ^ 1])]


def halve(held: list[bytes], record: bytes) -> list[bytes] | None:
    """Sends the first half of the record, and then what follows it."""
    del held
    return [record[: len(record) // 2]]


HARMS: dict[str, Harm] = {
    harm.__name__: harm for harm in (cut, drop, replay, reorder, flip, halve)
}


@final
@dataclass(eq=False)
class Middleman:
    """Forwards all bytes of both ends, and changes one record.

    Args:
        target: Address of the server; set before the first call.
        harm: Change of that record.
        way: Direction of the record.
        number: Number of the record with data in that direction, from 1; 0 for
            none.
    """

    harm: Harm = cut
    way: Way = "up"
    number: int = 0
    target: tuple[str, int] = ("", 0)
    seen: list[tuple[Way, bytearray]] = field(default_factory=list)
    """What went which way, of each connection."""
    has_harmed: bool = False

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._lock, self._sockets = threading.Lock(), list[socket.socket]()
        self._count = 0
        self._threads = list[threading.Thread]()
        self._is_over = False
        self._start(self._accept)

    @property
    def address(self) -> tuple[str, int]:
        """Address where it listens in place of the server."""
        return self._listener.getsockname()

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="middleman")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            caller, _ = self._listener.accept()
            with self._lock:
                if self._is_over:
                    caller.close()
                    return
            try:
                server = socket.create_connection(self.target, timeout=20)
            except OSError:  # it is gone: so is this one, for who called
                caller.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._sockets += [caller, server]
            self._start(lambda a=caller, b=server: self._pass_on(a, b, "up"))
            self._start(lambda a=caller, b=server: self._pass_on(b, a, "down"))

    def _pass_on(self, one: socket.socket, other: socket.socket, way: Way) -> None:
        held: list[bytes] = []
        with suppress(OSError):
            for record in self._records(one, way):
                found = self._changed(way, held, record)
                if found is None:
                    break
                other.sendall(b"".join(found))
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _records(self, end: socket.socket, way: Way) -> Iterator[bytes]:
        data, seen = bytearray(), bytearray()
        self.seen.append((way, seen))
        while part := end.recv(1 << 16):
            seen += part
            data += part
            while len(data) >= RECORD_BYTES:
                size = RECORD_BYTES + int.from_bytes(data[3:5], "big")
                if len(data) < size:
                    break
                yield bytes(data[:size])
                del data[:size]

    def _changed(
        self, way: Way, held: list[bytes], record: bytes
    ) -> list[bytes] | None:
        with self._lock:
            if way != self.way or record[0] != DATA:
                return [record]
            self._count += 1
            if self._count == self.number:
                self.has_harmed = True
                return self.harm(held, record)
        late, held[:] = list(held), []
        return [record, *late]

    def close(self) -> None:
        """Closes all connections."""
        with self._lock:
            self._is_over = True
        socket.create_connection(self.address, timeout=20).close()
        self._threads[0].join(20)
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(20)
        for end in (*self._sockets, self._listener):
            end.close()


@contextmanager
def between(middleman: Middleman) -> Iterator[Middleman]:
    """Closes the connection at its end."""
    try:
        yield middleman
    finally:
        middleman.close()
