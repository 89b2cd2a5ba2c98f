"""Calls of storages that are waited for a limited time: none holds up another one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, final

T = TypeVar("T")

LIMIT_S = 3.0
"""Seconds that a page waits for a storage where it has other roots to show."""


class LateError(Exception):
    """A storage has not answered within the limit."""


@final
@dataclass(frozen=True)
class Call(Generic[T]):
    """A call that runs in a thread of its own.

    Args:
        call: What is called.
        began: Monotonic seconds when it began.
        future: What it returns.
    """

    call: Callable[[], T]
    began: float = field(default_factory=time.monotonic)
    future: Future[T] = field(default_factory=lambda: Future[Any]())

    def start(self) -> None:
        """Starts the thread: a daemon, so that it does not keep the server alive."""
        threading.Thread(target=self._run, daemon=True).start()

    def result(self, limit_s: float | None) -> T:
        """Returns what it returned, or raises what it raised.

        Args:
            limit_s: Seconds from its beginning that it may take, None for no limit.

        Raises:
            LateError: It takes longer.
        """
        left_s = None if limit_s is None else self.began + limit_s - time.monotonic()
        try:
            return self.future.result(None if left_s is None else max(0.0, left_s))
        except TimeoutError:
            if self.future.done():  # the call itself has raised it
                raise
            raise LateError from None

    @property
    def age_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    @property
    def is_late(self) -> bool:
        """Whether it has taken longer than a page waits, and still runs."""
        return not self.future.done() and self.age_s >= LIMIT_S

    def _run(self) -> None:
        try:
            self.future.set_result(self.call())
        except BaseException as error:  # `result` raises it in the thread that asks
            self.future.set_exception(error)


@final
class Calls:
    """Calls of storages, by what they are for.

    One that is late goes on: until it ends, no other of its kind begins, so that a
    storage that does not answer has one thread, and keeps a page waiting once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[object, Call[Any]] = {}

    def begin(
        self, key: object, call: Callable[[], T], fresh_s: float = 0.0
    ) -> Call[T]:
        """Begins a call, or returns the one of the same key that is late, or new.

        Args:
            key: What it is for.
            call: What is called.
            fresh_s: Seconds since its beginning for which one is new.
        """
        with self._lock:
            last = self._last.get(key)
            if last is not None and (last.is_late or last.age_s < fresh_s):
                return last
            made = self._last[key] = Call(call)
        made.start()
        return made
