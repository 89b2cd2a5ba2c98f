"""The processes of one server of a run: the one that leads, and the one that follows.

Where they listen outlives both: whoever calls there waits until somebody answers.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import final

from shoal.forks import blank, gives_up
from shoal.host.limits import within_limits

BACKLOG = 512  # connections that wait until the server accepts them


@final
class ServerEndpoints:
    """A server and its standby, as processes.

    Args:
        name: Of the server, for logs.
        host: Where both listen.
        start: Starts a process that inherits a socket: name, socket -> token.

    Attributes:
        server: Token of the process that leads, empty for none.
        standby: Token of the process that follows, empty for none.
    """

    def __init__(
        self, name: str, host: str, start: Callable[[str, socket.socket], str]
    ) -> None:
        self.name, self._host, self._start = name, host, start
        self._listeners = [self._listen()]
        self.server = self.standby = ""
        gives_up(self)

    def _listen(self) -> socket.socket:
        with within_limits(f"open a socket for the {self.name} of the run"):
            return socket.create_server((self._host, 0), backlog=BACKLOG)

    @property
    def listener(self) -> socket.socket:
        """Where whoever leads listens; it outlives every server."""
        return self._listeners[0]

    @property
    def address(self) -> tuple[str, int]:
        """Of the server that leads."""
        return self.listener.getsockname()

    @property
    def other_listener(self) -> socket.socket:
        """Where whoever follows listens."""
        if len(self._listeners) < 2:
            self._listeners.append(self._listen())
        return self._listeners[1]

    @property
    def standby_name(self) -> str:
        """Of the process that follows."""
        return self.name.replace("server", "standby")

    @property
    def other_address(self) -> tuple[str, int]:
        """Of the server that follows, whether there is one now or not."""
        return self.other_listener.getsockname()

    def start_server(self) -> None:
        """Starts a server process, the first or one after another was lost."""
        self.server = self._start(self.name, self.listener)

    def start_standby(self) -> None:
        """Starts the process of a standby."""
        self.standby = self._start(self.standby_name, self.other_listener)

    def promote(self) -> None:
        """The standby is the server from now on; there is no standby then."""
        self.server, self.standby = self.standby, ""
        self._listeners.reverse()

    def rest(self, *, has_server: bool) -> None:
        """A run is over; whoever still calls where nobody stays is told at once.

        Args:
            has_server: Its process stays, and where it listens.
        """
        for listener in self._listeners[has_server:]:
            listener.close()
        if has_server:
            del self._listeners[1:]
        else:
            self._listeners = [self._listen()]
            self.start_server()

    def give_up(self) -> None:
        """A fork would keep callers waiting when all servers have ended."""
        blank(*(listener.fileno() for listener in self._listeners))

    def close(self) -> None:
        """Nobody listens any more."""
        for listener in self._listeners:
            listener.close()
