"""What the engine takes from the world around it: time, connections and threads.

Workers, servers and the controller are handed an `Environment` and use nothing else for
these, so that a simulation can hand them one whose time and network it decides itself.
Sockets that are listened on are in `transport/listener.py`, which a simulation replaces
as a whole.
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
        """Seconds of a clock that never goes back."""

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
        """Calls a server, which has proved the secret when this returns.

        Args:
            address: Of the server.
            secret: That both ends know.
            certificate: Of the server, None where it does not use TLS.
            timeout_s: For the connection and the greeting.
            meanwhile: Called now and then while the server is silent; it may raise.

        Raises:
            BadFrame: Another server listens there.
            ConnectionError: The server hung up.
            ExchangeTimeout: Nobody greets in time.
        """

    @abstractmethod
    def in_background(self, work: Callable[[], T]) -> Future[T]:
        """Starts work that waits for the network; no exit of a process waits for it."""

    @abstractmethod
    def every(
        self, seconds: float, action: Callable[[], object]
    ) -> AbstractContextManager[None]:
        """Calls `action` after each such time, until the context is left.

        Args:
            seconds: Between two calls.
            action: It runs beside the caller, and must not raise.
        """


class SystemEnvironment(Environment):
    """The machine's own."""

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

        # A daemon: what waits for a server that hangs keeps no process alive.
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
