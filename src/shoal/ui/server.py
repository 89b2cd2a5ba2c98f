"""A web server that nothing wakes while nobody asks, and that no slow request keeps.

uvicorn's own loop looks ten times a second whether it should end, and it waits without
a limit for a request that does not come.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 20.0
"""Seconds within which the head of a request comes, or its connection is closed."""
END_S = 1
"""Seconds that open answers get when the server ends."""


def config_of(
    app: ASGIApp, *, tls_cert: Path | None = None, tls_key: Path | None = None
) -> uvicorn.Config:
    """Returns the configuration of a server.

    Args:
        app: The application.
        tls_cert: File of a certificate, None for no encryption.
        tls_key: File of its key.
    """
    return uvicorn.Config(
        app,
        http=Protocol,
        lifespan="off",
        log_level="warning",
        access_log=False,  # its lines would hold the token
        server_header=False,
        date_header=False,  # it would need a clock
        timeout_graceful_shutdown=END_S,
        timeout_keep_alive=15,
        ws="none",
        proxy_headers=False,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
    )


@final
class Protocol(H11Protocol):
    """HTTP on a connection whose requests come within `REQUEST_S`."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._limit: asyncio.TimerHandle | None = None

    @property
    def _has_request(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Begins to wait for the first request."""
        super().connection_made(transport)
        self._begin()

    def data_received(self, data: bytes) -> None:
        """Takes a part of a request."""
        if not self._has_request:
            self._begin()
        super().data_received(data)
        if self._has_request:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends to wait."""
        self._end()
        super().connection_lost(exc)

    def _begin(self) -> None:
        if self._limit is None:
            self._limit = self.loop.call_later(REQUEST_S, self.transport.close)

    def _end(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None


@final
class Server(uvicorn.Server):
    """Serves an application until it is told to end.

    Args:
        config: Configuration; see `config_of`.
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
        # Events that are read are lists without circles. Looking through all objects
        # each few hundred of them took a fifth of the time in which a run is read.
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        self._wake = partial(loop.call_soon_threadsafe, ended.set)
        await self.on_tick(0)  # it sets the headers of answers
        if not self.should_exit:
            await ended.wait()
        self._wake = _nothing
        self._on_end()


def _nothing() -> None:
    """In place of a wake while the loop does not run."""
