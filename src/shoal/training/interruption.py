"""Ctrl-C: what must not be cut short by a second one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import final


@final
class CtrlC:
    """Remembers that Ctrl-C was pressed, where the exception itself gets lost.

    Python drops an exception that is raised within a callback of the garbage
    collector, and JAX has one: one press of seven during start-up had no effect.
    """

    def __init__(self) -> None:
        self._is_pressed = False

    @contextmanager
    def noticed(self) -> Generator[None]:
        """Within this, `heed` knows; programs with a handler of their own keep it."""
        before = signal.getsignal(signal.SIGINT)
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or before is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._press)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _press(self, _number: int, _frame: object) -> None:
        self._is_pressed = True
        raise KeyboardInterrupt

    def heed(self) -> None:
        """Raises what was lost.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed since.
        """
        if self._is_pressed:
            self._is_pressed = False
            raise KeyboardInterrupt


@contextmanager
def undisturbed() -> Generator[None]:
    """Puts Ctrl-C off until the block is done; for short blocks that clean up.

    A notebook goes on after Ctrl-C, so whatever is left then stays for good.

    Example:
        >>> try:
        ...     with undisturbed():
        ...         signal.raise_signal(signal.SIGINT)
        ...         print("cleaned up")
        ... except KeyboardInterrupt:
        ...     print("interrupted")
        cleaned up
        interrupted
    """
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before is None or before is signal.SIG_IGN:
        yield
        return
    pressed: list[int] = []

    def remember(number: int, _frame: object) -> None:
        pressed.append(number)

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            signal.raise_signal(signal.SIGINT)
