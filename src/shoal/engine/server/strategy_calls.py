"""Calls of the strategy at a server, whose code may be the user's own.

Messages of workers are in the buffers of their sessions, and replies are written there.
`replica.py` decides when a message is applied or a round merged, `center.py` computes
segment by segment.
"""

from __future__ import annotations

import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import final

from shoal.engine.server.callback_changes import CallbackChanges
from shoal.engine.server.center import Center
from shoal.engine.server.session import WorkerSession
from shoal.strategies.base import Facts
from shoal.vectors import Vector


class StrategyFailed(Exception):
    """The strategy's own code raised; its text is for the user."""


@final
class StrategyCalls:
    """Changes the center by the messages of workers.

    Args:
        center: Center of the run.
        changes: Changes of callbacks, which statistics of older messages lack.
    """

    def __init__(self, center: Center, changes: CallbackChanges) -> None:
        self._center, self._changes = center, changes

    def apply(self, session: WorkerSession, facts: Facts) -> None:
        """Applies a worker's message, and writes the reply.

        Raises:
            StrategyFailed: The strategy's own code raised.
        """
        buffers = session.buffers
        self._changes.correct(session)
        with self._errors_of_strategy():
            self._center.apply(
                session.rank,
                buffers.message,
                buffers.message_statistics,
                facts,
                buffers.reply,
            )

    def merge(
        self,
        sessions: Mapping[int, WorkerSession],
        facts: dict[int, Facts],
        replied_to: Sequence[int],
        *,
        is_grouped: bool,
    ) -> None:
        """Merges the messages of a round, and writes the replies.

        Args:
            sessions: Sessions by rank.
            facts: Facts of each message, by the rank of its worker, in rank order.
            replied_to: Ranks that get the merged reply. Under gradient exchange workers
                without rows in the round get its mean too.
            is_grouped: The workers have averaged their vectors.

        Raises:
            StrategyFailed: The strategy's own code raised.
        """
        buffers = {rank: sessions[rank].buffers for rank in facts}
        for rank in facts:
            self._changes.correct(sessions[rank])
        targets = [sessions[rank].buffers for rank in replied_to]

        def write(rank: int, part: slice, values: Vector) -> None:
            for target in targets if rank < 0 else [buffers[rank]]:
                target.reply[part] = values

        statistics = {rank: one.message_statistics for rank, one in buffers.items()}
        if is_grouped:
            self._center.merge_statistics(statistics, facts)
            return
        with self._errors_of_strategy():
            messages = {rank: one.message for rank, one in buffers.items()}
            self._center.merge(messages, statistics, facts, write)

    @contextmanager
    def _errors_of_strategy(self) -> Generator[None]:
        """Ends the run at a strategy's error: the samples are committed already."""
        try:
            yield
        except Exception as error:
            name = self._center.strategy.name
            raise StrategyFailed(
                f"strategy {name!r} raised {type(error).__name__}: {error} on the "
                "server. Its arithmetic must take every message of its own workers. "
                "Correct the strategy, with the laws of shoal.testing perhaps; its "
                f"traceback:\n{traceback.format_exc()}"
            ) from error
