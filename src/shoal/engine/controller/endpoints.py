"""The processes of one server of a run: the leader and its standby.

Their listening sockets outlive both: callers wait until a process answers.
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
        name: Name of the server, for logs.
        host: Host on which both listen.
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
        """Listening socket of the leader; it outlives every server."""
        return self._listeners[0]

    @property
    def address(self) -> tuple[str, int]:
        """Address of the leader."""
        return self.listener.getsockname()

    @property
    def other_listener(self) -> socket.socket:
        """Listening socket of the standby."""
        if len(self._listeners) < 2:
            self._listeners.append(self._listen())
        return self._listeners[1]

    @property
    def standby_name(self) -> str:
        """Name of the standby's process."""
        return self.name.replace("server", "standby")

    @property
    def other_address(self) -> tuple[str, int]:
        """Address of the standby, present or later."""
        return self.other_listener.getsockname()

    def start_server(self) -> None:
        """Starts a server process, the first or one after another was lost."""
        self.server = self._start(self.name, self.listener)

    def start_standby(self) -> None:
        """Starts the process of a standby."""
        self.standby = self._start(self.standby_name, self.other_listener)

    def promote(self) -> None:
        """Makes the standby the server; there is no standby then."""
        self.server, self.standby = self.standby, ""
        self._listeners.reverse()

    def rest(self, *, has_server: bool) -> None:
        """Ends a run; callers of a socket without a process are refused at once.

        Args:
            has_server: The server's process stays, and its socket.
        """
        for listener in self._listeners[has_server:]:
            listener.close()
        if has_server:
            del self._listeners[1:]
        else:
            self._listeners = [self._listen()]
            self.start_server()

    def give_up(self) -> None:
        """Blanks the sockets in a fork, where they would keep callers waiting."""
        blank(*(listener.fileno() for listener in self._listeners))

    def close(self) -> None:
        """Closes the sockets."""
        for listener in self._listeners:
            listener.close()
