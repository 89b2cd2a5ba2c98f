"""Ctrl-C: what must not be cut short by a second one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undisturbed() -> Iterator[None]:
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
