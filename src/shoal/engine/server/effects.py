"""What a server is to do after an event: plain values, in the order that counts.

A replica calls nobody. A server sends what is said here, a standby keeps the reports,
and each of them raises what was raised, at the place where it was.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from shoal.engine.server.session import WorkerSession
from shoal.engine.transport.messages.server_to_controller import Report
from shoal.engine.transport.messages.server_to_worker import ToWorker


class AnswerWorker(NamedTuple):
    """A worker is answered.

    Args:
        session: Whose; vectors that go along are in its buffers.
        message: The answer.
        blob: What follows the vectors.
    """

    session: WorkerSession
    message: ToWorker
    blob: bytes


class TellController(NamedTuple):
    """The controller is told.

    Args:
        report: What; its number counts the reports.
        body: What follows it.
    """

    report: Report
    body: tuple[bytes, ...]


class Raise(NamedTuple):
    """The event could not be handled to its end.

    What was said until then counts, and so does what changed.

    Args:
        error: Why.
    """

    error: Exception


Effect: TypeAlias = AnswerWorker | TellController | Raise
