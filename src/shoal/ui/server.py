"""A web server that nothing wakes while nobody asks.

uvicorn's own loop looks ten times a second whether it should end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import final

import uvicorn


@final
class Server(uvicorn.Server):
    """Serves an application until it is told to end.

    Args:
        config: Configuration; without a header of the date, which would need a clock.
        on_end: Called when it begins to end, so that streams do, too.
    """

    def __init__(self, config: uvicorn.Config, on_end: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_end = on_end
        self._wake: Callable[[], object] = _nothing

    def end(self) -> None:
        """Ends it, from any thread."""
        self.should_exit = True
        self._wake()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles a signal that ends it."""
        super().handle_exit(sig, frame)
        self._wake()

    async def main_loop(self) -> None:
        """Waits for the end."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        self._wake = partial(loop.call_soon_threadsafe, ended.set)
        await self.on_tick(0)  # it sets the headers of answers
        if not self.should_exit:
            await ended.wait()
        self._wake = _nothing
        self._on_end()


def _nothing() -> None:
    """In place of a wake while the loop does not run."""
