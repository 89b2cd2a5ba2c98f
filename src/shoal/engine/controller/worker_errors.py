"""Errors of a worker's code, as the user gets them."""

from __future__ import annotations

from shoal.engine.transport.messages.worker_reports import Failed
from shoal.errors import DataError, WorkerFailed


def error_of(rank: int, failed: Failed) -> DataError | WorkerFailed:
    """Returns the error for a worker's report that code on it raised.

    Args:
        rank: Rank of the worker.
        failed: Its report.
    """
    where = f"worker {rank} at step {failed.step:,}"
    if failed.is_data:
        text = failed.error.removeprefix("DataError: ")
        return DataError(f"{where}: {text}.\n\n{failed.traceback}")
    error = failed.error.rstrip(". \n")
    gap = "\n" if "\n" in error else " "
    return WorkerFailed(
        f"{where} raised {error}.{gap}"
        "Code of the model, its layers, loss or metrics must run on workers as "
        "it does here. Its traceback follows; correct it and call fit again.",
        rank=rank,
        step=failed.step,
        traceback=failed.traceback,
    )
