"""Messages of the server, in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar, final

from shoal.engine.controller.servers import Message
from shoal.engine.controller.shared_servers import SharedServers
from shoal.engine.transport.messages.base import Report
from shoal.engine.transport.messages.server_to_controller import WorkerTold
from shoal.engine.transport.messages.worker_reports import Failed
from shoal.interruption import Deadline, check

POLL_S = 0.1
R = TypeVar("R", bound=Report)


@final
class Inbox:
    """Messages of the server; those that came while an answer was awaited are first.

    Args:
        servers: Servers of the run.
        watch: Looks after the processes; called while there is no message.
    """

    def __init__(self, servers: SharedServers, watch: Callable[[], None]) -> None:
        self._servers, self._watch = servers, watch
        self._put_aside: deque[Message] = deque()

    def next(self, timeout_s: float = POLL_S) -> Message | None:
        """Returns the next message, None if none comes in time.

        Args:
            timeout_s: Limit of the wait.

        Raises:
            ServerGone: A server is lost.
        """
        if self._put_aside:
            return self._put_aside.popleft()
        return self._servers.receive(timeout_s)

    def wait_for(self, kind: type[R], timeout_s: float) -> tuple[R, memoryview] | None:
        """Waits for a report of one kind; other messages are handled later.

        Args:
            kind: Class of the report.
            timeout_s: Limit of the wait.

        Returns:
            The report and its body. None if it does not come in time, or if a worker
            has failed: the run ends with that.

        Raises:
            ServerGone: A server is lost.
        """
        deadline = Deadline(timeout_s)
        while deadline.left_s > 0:
            check()
            message = self._servers.receive(min(POLL_S, deadline.left_s))
            if message is None:
                self._watch()
                continue
            report, body = message
            if isinstance(report, kind):
                return report, body
            self._put_aside.append(message)
            if isinstance(report, WorkerTold) and isinstance(report.said, Failed):
                break
        return None

    def drop(self) -> None:
        """Drops all messages that were put aside."""
        self._put_aside.clear()

    def last(self, timeout_s: float) -> list[Message]:
        """Returns all messages until the server ends.

        Args:
            timeout_s: Limit of the wait for its end.
        """
        # The server reports its last exchanges when it stops.
        found = [*self._put_aside, *self._servers.last_words(timeout_s)]
        self._put_aside.clear()
        return found
