"""The server's line to its controller, which no change of servers breaks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final

from shoal.engine.connections import Peer
from shoal.engine.wire import Head

Send = Callable[..., None]


@final
class Reporter:
    """Keeps reports until there is a controller; a standby's are kept until one heard.

    Attributes:
        controller: Whom to tell, None while nobody is there.
    """

    def __init__(self) -> None:
        self.controller: Peer | None = None
        self._kept: deque[tuple[Head, tuple[bytes, ...]]] = deque()

    def say(self, send: Send, head: Head, *body: bytes) -> None:
        """Tells the controller now, or as soon as there is one.

        Args:
            send: Takes a peer, a head and a body.
            head: Of the report.
            body: Of the report.
        """
        if self.controller is None:
            self.keep(head, *body)
        else:
            send(self.controller, head, *body)

    def keep(self, head: Head, *body: bytes) -> None:
        """Tells whichever controller comes, unless it has heard of it elsewhere."""
        self._kept.append((head, body))

    def forget(self, heard: int) -> None:
        """The controller has heard reports up to this number."""
        while self._kept and self._kept[0][0].get("number", 0) <= heard:
            self._kept.popleft()

    def attach(self, send: Send, controller: Peer, heard: int) -> None:
        """Tells a controller from now on, and first what it has not heard."""
        self.controller = controller
        self.forget(heard)
        kept, self._kept = self._kept, deque()
        for head, body in kept:
            send(controller, head, *body)
