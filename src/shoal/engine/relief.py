"""The standby of a server, as a peer: when it is taken, counts as hung, is given up.

What it is told, and what waits until it knows, lies in `mirror.py`; this file decides
who it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import final

from shoal.engine.connections import Connections, Peer
from shoal.engine.fields import whole
from shoal.engine.mirror import Mirror
from shoal.engine.patience import PAUSE_S
from shoal.engine.post import Post
from shoal.engine.wire import BadFrame, Head

ENDED = "its process ended"


@final
class Relief:
    """Who follows a server.

    Args:
        connections: Of the server.
        mirror: Of the server.
        mention: Tells the controller of something that is no part of the run's state.
    """

    def __init__(
        self, connections: Connections, mirror: Mirror, mention: Callable[[Head], None]
    ) -> None:
        self._connections, self._mirror, self._mention = connections, mirror, mention
        self._caller: Peer | None = None

    @property
    def has_caller(self) -> bool:
        """Whether a standby waits to be taken."""
        return self._caller is not None

    def called(self, peer: Peer, head: Head) -> None:
        """A standby is there, and is taken when it can be.

        Raises:
            BadFrame: A later one is there: the controller has given this one up.
        """
        peer.role, peer.incarnation = "standby", whole(head["generation"])
        if self._caller is not None and peer.incarnation < self._caller.incarnation:
            raise BadFrame("a standby that another one has followed")
        self._caller = peer
        self._mention({"kind": "standby_called", "generation": peer.incarnation})

    def take(self, pack: Callable[[], bytes], posts: Iterable[Post]) -> None:
        """Takes who has called. No message may be half-way.

        Reports from before it joined are known to nobody else. So there must be a
        controller: then they are on the way to it, and it hears them before it hears of
        the standby.

        Args:
            pack: Gives what it does not know yet.
            posts: Of all workers.
        """
        peer = self._caller
        if peer is None:
            return
        if self._mirror.is_given_up(peer.incarnation):
            self._connections.drop(peer, ENDED)
        elif self._mirror.can_begin:
            self._caller = None
            self._mirror.begin(peer, pack())
            for post in posts:
                self._mirror.seated(post)

    def heed(self, peer: Peer, head: Head, _body: memoryview) -> None:
        """It says which events it has.

        Raises:
            BadFrame: It was told of none, or cannot read what it was told.
        """
        if peer is not self._mirror.peer:
            raise BadFrame("a word of a standby that was told nothing")
        if head["kind"] == "refused":
            raise BadFrame(f"it cannot follow: {head['reason']!s:.300}")
        if head["kind"] == "mapped":
            self._mirror.mapped(whole(head["rank"]), whole(head["incarnation"]))
            return
        number = whole(head["number"])
        self._mirror.acknowledge(number)
        if number == 1:
            self._mention({"kind": "standby_ready", "generation": peer.incarnation})

    def look(self, pause_s: float) -> None:
        """Drops one that is silent for too long.

        Args:
            pause_s: The server itself did not run for so long.
        """
        peer = self._mirror.peer
        if pause_s > PAUSE_S:
            self._mirror.forgive(pause_s)
        elif peer is not None and (reason := self._mirror.overdue()):
            self._connections.drop(peer, reason)

    def gone(self, peer: Peer, reason: str) -> None:
        """Its connection is closed, perhaps before it was taken."""
        if peer is self._mirror.peer:
            self._mirror.lost()
        elif peer is self._caller:
            self._caller = None
        else:
            return
        generation = peer.incarnation
        self._mention(
            {"kind": "standby_left", "generation": generation, "reason": reason}
        )

    def give_up(self, generation: int) -> None:
        """The controller has given up standbys up to this generation."""
        peer = self._mirror.peer
        if peer is not None and peer.incarnation <= generation:
            self._connections.drop(peer, ENDED)  # its end was not heard here yet
        self._mirror.go_alone(generation)
