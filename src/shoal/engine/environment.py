"""The engine's environment: time, connections and threads.

Workers, servers and the controller get an `Environment` and use nothing else for these,
so that a simulation can give them one with its own time and network. Listening sockets
are in `transport/listener.py`, which a simulation replaces as a whole.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from shoal.wire.frames import Link

T = TypeVar("T")


class Environment(ABC):
    """Time, connections and threads."""

    @abstractmethod
    def clock(self) -> float:
        """Seconds of a monotonic clock."""

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Waits."""

    @abstractmethod
    def connect(
        self,
        address: tuple[str, int],
        secret: bytes,
        *,
        certificate: bytes | None = None,
        timeout_s: float = 60.0,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Link:
        """Connects to a server, which has proved the secret when this returns.

        Args:
            address: Address of the server.
            secret: The secret that both ends know.
            certificate: Certificate of the server, None without TLS.
            timeout_s: Limit for the connection and the handshake.
            meanwhile: Called regularly while the server is silent; it may raise.

        Raises:
            BadFrame: Another server listens there.
            ConnectionError: The server closed the connection.
            ExchangeTimeout: The handshake was not answered in time.
        """

    @abstractmethod
    def in_background(self, work: Callable[[], T]) -> Future[T]:
        """Starts work that waits for the network; a process may exit before it ends."""

    @abstractmethod
    def every(
        self, seconds: float, action: Callable[[], object]
    ) -> AbstractContextManager[None]:
        """Calls `action` at regular intervals, until the context is left.

        Args:
            seconds: Between two calls.
            action: It runs beside the caller, and must not raise.
        """


class SystemEnvironment(Environment):
    """The machine's clock, network and threads."""

    def clock(self) -> float:
        """See `Environment`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """See `Environment`."""
        time.sleep(seconds)

    def connect(
        self,
        address: tuple[str, int],
        secret: bytes,
        *,
        certificate: bytes | None = None,
        timeout_s: float = 60.0,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Link:
        """See `Environment`."""
        return Link(
            address,
            secret,
            certificate=certificate,
            timeout_s=timeout_s,
            meanwhile=meanwhile,
        )

    def in_background(self, work: Callable[[], T]) -> Future[T]:
        """See `Environment`."""
        found: Future[T] = Future()

        def run() -> None:
            try:
                found.set_result(work())
            except BaseException as error:
                found.set_exception(error)

        # A daemon thread: waiting for a hung server keeps no process alive.
        threading.Thread(target=run, name="shoal-exchange", daemon=True).start()
        return found

    @contextmanager
    def every(self, seconds: float, action: Callable[[], object]) -> Generator[None]:
        """See `Environment`."""
        is_over = threading.Event()

        def repeat() -> None:
            while not is_over.wait(seconds):
                action()

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


SYSTEM = SystemEnvironment()
