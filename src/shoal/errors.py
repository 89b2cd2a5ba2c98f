"""The exception tree. This file decides what a caller can catch.

```
ShoalError
├── ConfigError (ValueError)       a single argument is wrong
├── PlanError (ValueError)         arguments that cannot work together; nothing runs
├── DataError (ValueError)         a bad array, file or cell; a key that is gone
│   └── StoreFailed                the store failed, not a file in it
├── ClusterError                   machines did not come up, or went away
│   ├── ProvisionError             the provider refused or ran out
│   └── CredentialsError           the provider refused the credentials
├── WorkerError                    a training process failed
│   ├── WorkerLost                 it died or stopped answering, restarts used up
│   ├── WorkerFailed               user code raised on it; carries its traceback
│   └── NotFinite                  its weights or its loss turned NaN or infinite
├── ExchangeTimeout                a peer did not answer in time
└── CheckpointError                a checkpoint cannot be written or read
    └── ModelNotSaved              trained, but the storage did not take the model
```

Messages have three sentences: what happened and where; what was expected; what to do.
Something that works, but perhaps not as expected, is a `ShoalWarning`, issued as
Python's warnings are.
"""

from __future__ import annotations

from shoal.terminal import plain


class ShoalError(Exception):
    """Root of every error Shoal raises on purpose."""

    def __str__(self) -> str:
        # Messages quote names and output of others; Python prints them unescaped.
        return plain(super().__str__())


class ConfigError(ShoalError, ValueError):
    """A single argument has a wrong value."""


class PlanError(ShoalError, ValueError):
    """The arguments cannot work together; raised before anything is started."""


class DataError(ShoalError, ValueError):
    """Data cannot be read or does not fit the model."""


class StoreFailed(DataError):
    """A store could not be read; its files may be good, so none is left out."""


class ClusterError(ShoalError):
    """Machines did not come up, or went away beyond the retry limit."""


class ProvisionError(ClusterError):
    """The provider refused to give a resource."""


class CredentialsError(ClusterError):
    """The provider did not accept the credentials."""


class WorkerError(ShoalError):
    """A training process failed.

    Args:
        message: The three sentences.
        rank: Rank of the worker, or None when it never got one.
        node: Name of its machine.
        step: Optimizer steps it had taken, or None when unknown.
        traceback: The worker's own traceback, "" when there is none.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        node: str = "localhost",
        step: int | None = None,
        traceback: str = "",
    ) -> None:
        super().__init__(f"{message}\n\n{traceback}".rstrip())
        self.rank = rank
        self.node = node
        self.step = step
        self.traceback = traceback


class WorkerLost(WorkerError):
    """A worker died or stopped answering, and its restarts are used up."""


class WorkerFailed(WorkerError):
    """User code raised on a worker; `traceback` is the worker's."""


class NotFinite(WorkerError):
    """Numbers of a worker turned NaN or infinite, and `on_nan` told the run to stop.

    Args:
        message: The three sentences.
        rank: Rank of the worker.
        step: First step of the worker in which it may have happened.
        epoch: Epoch from 0, as for callbacks.
        samples: (start, stop) ranges of the epoch's order that the worker was training.
        rows: Indices of rows, in the user's data, that hold NaN or infinity; at
            most the first eight.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int,
        step: int,
        epoch: int,
        samples: tuple[tuple[int, int], ...],
        rows: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message, rank=rank, step=step)
        self.epoch, self.samples, self.rows = epoch, samples, rows


class ExchangeTimeout(ShoalError):
    """A peer did not answer in time."""


class CheckpointError(ShoalError):
    """A checkpoint cannot be written, or none can be read."""


class ModelNotSaved(CheckpointError):
    """The run ended well, but its storage did not take the trained model.

    The model object that was given to `fit` holds the trained weights.

    Args:
        message: The three sentences.
        history: The history that `fit` would have returned.
    """

    def __init__(self, message: str, *, history: object) -> None:
        super().__init__(message)
        self.history = history


class ShoalWarning(UserWarning):
    """Something works, but perhaps not as expected; see `Plan.warnings`."""

    def __str__(self) -> str:
        return plain(super().__str__())


def a_kind(value: object) -> str:
    """Returns the kind of a value with its article, for the text of an error.

    Example:
        >>> a_kind(3), a_kind([]), a_kind("")
        ('an int', 'a list', 'a str')
    """
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeioAEIO" else f"a {name}"
