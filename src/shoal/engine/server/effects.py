"""Effects of an event: plain values for a server to carry out, in order.

A replica calls nothing. A server sends these answers and reports, a standby keeps the
reports, and both raise an error at the place of its effect.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from shoal.engine.server.session import WorkerSession
from shoal.engine.transport.messages.base import Report
from shoal.engine.transport.messages.server_to_worker import ToWorker


class AnswerWorker(NamedTuple):
    """Answer a worker.

    Args:
        session: Session of the worker; vectors of the answer are in its buffers.
        message: The answer.
        blob: Bytes that follow the vectors.
    """

    session: WorkerSession
    message: ToWorker
    blob: bytes


class TellController(NamedTuple):
    """Report to the controller.

    Args:
        report: The report; its number counts the reports.
        body: Bytes that follow it.
    """

    report: Report
    body: tuple[bytes, ...]


class Raise(NamedTuple):
    """Raise an error: the event could not be handled to its end.

    Effects before this one, and changes until then, count.

    Args:
        error: The error.
    """

    error: Exception


Effect: TypeAlias = AnswerWorker | TellController | Raise
