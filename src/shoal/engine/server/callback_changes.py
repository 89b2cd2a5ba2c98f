"""Changes of callbacks at a server: what they change there, and which worker has them.

The server has the statistics of the center itself; workers are told everything else
with their answers.
"""

from __future__ import annotations

from typing import final

from shoal.engine.server.center import Center
from shoal.engine.server.session import WorkerSession
from shoal.engine.transport.changes import STATISTICS, Change, Changes, Key


@final
class CallbackChanges:
    """Changes that callbacks made in the model.

    Args:
        newest: The newest change of each variable; changed in place.
        center: Center of the run, whose statistics they change.
        is_told_here: Workers are told by this server: number 0 sends all that is no
            part of a vector (decision 21).
    """

    def __init__(self, newest: Changes, center: Center, *, is_told_here: bool) -> None:
        self.newest, self._center = newest, center
        self._is_told_here = is_told_here

    def absorb(self, blob: bytes | memoryview) -> Changes:
        """Records changes, and writes them into the statistics.

        Args:
            blob: Changes as bytes; shards only learn that there is one.

        Returns:
            Those that are new.
        """
        fresh = self.newest.absorb(Changes.read(blob))
        if self._center.statistics.size:
            fresh.write_statistics(self._center.statistics)
        return fresh

    def correct(self, session: WorkerSession) -> None:
        """Keeps changes that came after the sender of a message began to compute."""
        values = self._center.statistics
        if not values.size:
            return
        lacking = self.newest.after(session.told, session.adopted)
        for key, value in lacking.of(STATISTICS):
            part = slice(key.number, key.number + value.size)
            session.buffers.message_statistics[part] = values[part]

    def untold(self, session: WorkerSession) -> bytes:
        """Returns the changes that a worker lacks; it counts as told then."""
        serial = self.newest.serial
        if not self._is_told_here or session.told == serial:
            return b""
        found = self.newest.after(session.told, session.adopted)
        session.told = session.adopted = serial
        return found.pack()

    def replace(self, newest: dict[Key, Change]) -> None:
        """Continues with the changes of another server."""
        self.newest.found.clear()  # in place: pending requests have the same object
        self.newest.found.update(newest)
