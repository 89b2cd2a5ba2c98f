"""The processes of one server of a run: the leader and its standby.

Their listening sockets outlive both: callers wait until a process answers. A socket of
this machine is held here and lives as long as the run. One of another node is held by
an agent there, and is lost with the node.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import TypeAlias, final

from shoal.forks import blank, gives_up
from shoal.host.limits import within_limits
from shoal.host.ports import listen
from shoal.launchers.base import BACKLOG, NodeSocket

Address: TypeAlias = tuple[str, int]


@final
class OwnSocket:
    """A socket of this machine, which the processes of servers inherit.

    Args:
        name: Name of the server, for errors.
        address: Host and port at which it listens, or the next free port; 0 is any.
        is_reserve: Its first process comes later, or never: callers are refused until
            `open`, and try another address of the server at once.
    """

    lost = ""
    node = ""

    def __init__(
        self, name: str, address: Address, *, is_reserve: bool = False
    ) -> None:
        with within_limits(f"open a socket for the {name} of the run"):
            if is_reserve:
                self._socket = socket.socket()
                self._socket.bind((address[0], 0))
            else:
                self._socket = listen(*address, BACKLOG)

    @property
    def address(self) -> Address:
        """Its address."""
        return self._socket.getsockname()

    @property
    def descriptor(self) -> int:
        """Its descriptor, here and in processes that inherit it."""
        return self._socket.fileno()

    def open(self) -> None:
        """Listens from now on; safe to repeat."""
        self._socket.listen(BACKLOG)

    def close(self) -> None:
        """Closes it; callers are refused."""
        self._socket.close()


ServerSocket: TypeAlias = OwnSocket | NodeSocket


@final
class ServerEndpoints:
    """A server and its standby, as processes.

    Args:
        name: Name of the server, for logs.
        address: Host and port at which both listen, each at the next free port; port 0
            is any.
        start: Starts a process that inherits a socket: name, socket -> token.
        is_here: Both listen on this machine; else `place` says where they do.

    Attributes:
        server: Token of the process that leads, empty for none.
        standby: Token of the process that follows, empty for none.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        start: Callable[[str, ServerSocket], str],
        *,
        is_here: bool = True,
    ) -> None:
        self.name, self._address, self._start = name, address, start
        self._sockets: list[ServerSocket] = []
        if is_here:
            self._sockets = [OwnSocket(name, address)]
        self._standby_socket: ServerSocket | None = None
        self.server = self.standby = ""
        gives_up(self)

    # ---------------------------------------------------------------- sockets

    @property
    def has_place(self) -> bool:
        """Whether a server can be started: it has sockets, and none of them is lost."""
        return bool(self._sockets) and not any(one.lost for one in self._sockets)

    def place(self, sockets: Sequence[NodeSocket], *, has_standby: bool) -> None:
        """Has the next server and standby listen on nodes.

        Workers are told all addresses once. So a pair has two sockets on this machine
        as well, which are not lost: there it goes on when its nodes are gone.

        Args:
            sockets: Socket of the server, and perhaps one of its standby; none for a
                pair on this machine.
            has_standby: A standby follows the server.
        """
        self._close_own()
        self._sockets, self._standby_socket = [*sockets], None
        count = 2 if has_standby else int(not sockets)
        for _ in range(count):
            own = OwnSocket(self.name, self._address, is_reserve=bool(sockets))
            self._sockets.append(own)

    @property
    def leader(self) -> ServerSocket:
        """Socket of the server; it outlives its processes, but not its node."""
        return self._sockets[0]

    @property
    def follower(self) -> ServerSocket:
        """Socket of the standby, present or later."""
        if self._standby_socket is not None:
            return self._standby_socket
        if len(self._sockets) < 2:
            self._sockets.append(OwnSocket(self.name, self._address))
        return next(one for one in self._sockets[1:] if not one.lost)

    @property
    def address(self) -> Address:
        """Address of the leader."""
        return self.leader.address

    @property
    def other_address(self) -> Address:
        """Address of the standby, present or later."""
        return self.follower.address

    def addresses(self, *, has_standby: bool) -> tuple[Address, ...]:
        """Returns all addresses that the server may have during the run.

        Args:
            has_standby: A standby follows the server.
        """
        if not has_standby:
            return (self.address,)
        _ = self.follower  # which opens its socket
        return tuple(one.address for one in self._sockets)

    # -------------------------------------------------------------- processes

    @property
    def standby_name(self) -> str:
        """Name of the standby's process."""
        return self.name.replace("server", "standby")

    def start_server(self) -> None:
        """Starts a server process, the first or one after another was lost."""
        self.server = self._begin(self.name, self.leader)

    def start_standby(self) -> None:
        """Starts the process of a standby."""
        self._standby_socket = None
        self._standby_socket = self.follower
        self.standby = self._begin(self.standby_name, self._standby_socket)

    def _begin(self, name: str, at: ServerSocket) -> str:
        if isinstance(at, OwnSocket):
            at.open()
        return self._start(name, at)

    def promote(self) -> None:
        """Makes the standby the server; there is no standby then."""
        leads, self._standby_socket = self.follower, None
        self._sockets.remove(leads)
        self._sockets.insert(0, leads)
        self.server, self.standby = self.standby, ""

    def rest(self, *, has_server: bool) -> None:
        """Ends a run; callers of a socket without a process are refused at once.

        Args:
            has_server: The server's process stays, and its socket.
        """
        kept = self._sockets[:has_server]
        self._close_own(has_server)
        self._sockets, self._standby_socket = kept, None
        if not has_server:
            self._sockets = [OwnSocket(self.name, self._address)]
            self.start_server()

    # ----------------------------------------------------------------- ending

    def _close_own(self, first: int = 0) -> None:
        for one in self._sockets[first:]:
            if isinstance(one, OwnSocket):
                one.close()

    def give_up(self) -> None:
        """Blanks the sockets in a fork, where they would keep callers waiting."""
        own = [one for one in self._sockets if isinstance(one, OwnSocket)]
        blank(*(one.descriptor for one in own))

    def close(self) -> None:
        """Closes the sockets of this machine; agents close their own."""
        self._close_own()
