"""Reads samples for a worker; asks a source again if it raises, then reports.

This file decides the number of attempts, and how an error names a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, final

import numpy as np
import numpy.typing as npt

from shoal.data.chunks import ShapesDiffer, concatenated, kind_of
from shoal.data.order import Order
from shoal.data.read_ahead import ReadAhead, TooSlow
from shoal.engine.coordination.ledger import Piece
from shoal.engine.transport.fields import MOST_PARTS
from shoal.engine.transport.messages.worker_reports import DataRetry, DataState
from shoal.errors import DataError

MOST_ERROR = 1 << 10  # characters of an error that are reported
Indices: TypeAlias = npt.NDArray[np.int64]


class Rows(Protocol):
    """The part of a data source that a worker needs."""

    def take(self, indices: Indices) -> Any:
        """Returns the rows as a pytree for `train_step`."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class Retry:
    """Attempts to read from a source that raises.

    Waits are short compared with the time after which a worker counts as hung, see
    `timeouts.py`.

    Args:
        attempts: Number of attempts, at least 1.
        first_s: Seconds before the second attempt.
        factor: Factor from each wait to the next.

    Example:
        >>> Retry(attempts=4).waits
        (0.1, 0.4, 1.6)
    """

    attempts: int = 4
    first_s: float = 0.1
    factor: float = 4.0

    @property
    def waits(self) -> tuple[float, ...]:
        """Seconds before each attempt but the first."""
        times = range(self.attempts - 1)
        return tuple(round(self.first_s * self.factor**n, 6) for n in times)


@final
class SampleReader:
    """A worker's source, and the order in which it reads.

    Args:
        source: Source of samples.
        order: Order of samples.
        retry: Attempts if it raises.
        tell: Called with the error before each further attempt.
        sleep: Waits until the next attempt.
    """

    def __init__(
        self,
        source: Rows,
        order: Order,
        retry: Retry,
        tell: Callable[[DataRetry | DataState], None],
        sleep: Callable[[float], None],
    ) -> None:
        self._source, self._order = source, order
        self._retry, self._tell, self._sleep = retry, tell, sleep
        self._is_ragged = False
        self._turn = -1  # the last pass whose state was reported

    def indices(self, pieces: Sequence[Piece]) -> Indices:
        """Row numbers of pieces, in order."""
        parts = [self._order.indices(p.epoch, p.start, p.stop) for p in pieces]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def pieces(self, pieces: Sequence[Piece]) -> Any:
        """Reads the rows of pieces, in order.

        Raises:
            DataError: The source raised at every attempt.
        """
        if isinstance(self._source, ReadAhead):
            last = pieces[-1]
            # A share of a batch: only its size tells where the batch begins.
            batch = (
                (last.start - last.start % last.step_rows, last.step_rows)
                if last.step_rows
                else ()
            )
            upcoming = self._order.upcoming(
                last.epoch, last.start, last.stop, batch or (0, 0)
            )
            self._source.expect(self._order.turn(last.epoch), upcoming)
        return self._ask(self.indices(pieces), pieces)

    def runs(
        self, pieces: Sequence[Piece], batch_size: int
    ) -> list[tuple[list[Piece], Any]]:
        """Reads the rows of pieces, in order; each result has one shape.

        Args:
            pieces: Whole batches, or one short batch.
            batch_size: Rows of a full batch.

        Returns:
            Pieces and their rows: all in one, unless shapes change from batch to batch.
        """
        # Once shapes differ, they are read batch by batch: to try again would read most
        # rows twice.
        if not self._is_ragged:
            try:
                return [(list(pieces), self.pieces(pieces))]
            except ShapesDiffer:
                self._is_ragged = True
        return uniform_runs(self.pieces, pieces, batch_size)

    def _tell_state(self, pieces: Sequence[Piece]) -> None:
        """Reports once a pass the state of the user's code in this copy of the data."""
        if not pieces or not isinstance(self._source, ReadAhead):
            return
        turn = self._order.turn(pieces[-1].epoch)
        if turn == self._turn:
            return
        found = self._source.state_of(turn)
        self._turn = turn
        if found:
            names = sorted(found)[:MOST_PARTS]
            digests = {name: found[name] for name in names}
            self._tell(DataState(epoch=turn, digests=digests))

    def first(self, indices: Indices) -> Any:
        """Reads rows to compile with, which are not leased.

        Raises:
            DataError: The source raised at every attempt.
        """
        return self._ask(indices, ())

    def _ask(self, indices: Indices, pieces: Sequence[Piece]) -> Any:
        waits = self._retry.waits
        for attempt, wait_s in enumerate((*waits, None), start=1):
            try:
                self._tell_state(pieces)
                return self._source.take(indices)
            # No fault of the source: another attempt would find the same.
            except ShapesDiffer:
                raise
            except Exception as error:
                name = f"{type(error).__name__}: {error}"[:MOST_ERROR]
                if wait_s is None or isinstance(error, TooSlow):
                    raise self._give_up(name, indices, pieces) from error
                text = f"{chunk_of(pieces, indices)} cannot be read: {name}"
                self._tell(DataRetry(text=text, attempt=attempt))
                self._sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")

    def _give_up(
        self, error: str, indices: Indices, pieces: Sequence[Piece]
    ) -> DataError:
        times = "time" if self._retry.attempts == 1 else "times"
        return DataError(
            f"{chunk_of(pieces, indices)} cannot be read: {error}. The source was "
            f"expected to give them, and was asked {self._retry.attempts} {times}. "
            "See that every worker can read all of the data, and that these rows are "
            "whole"
        )


def uniform_runs(
    read: Callable[[list[Piece]], Any], pieces: Sequence[Piece], batch_size: int
) -> list[tuple[list[Piece], Any]]:
    """Reads batch by batch, and joins consecutive batches of one shape.

    Args:
        read: Reads the rows of pieces.
        pieces: Whole batches, or one short batch.
        batch_size: Rows of a full batch.
    """
    found: list[tuple[list[Piece], list[Any]]] = []
    for batch in batches_of(pieces, batch_size):
        rows = read(batch)
        if found and kind_of(found[-1][1][0]) == kind_of(rows):
            found[-1][0].extend(batch)
            found[-1][1].append(rows)
        else:
            found.append((batch, [rows]))
    return [(batch, concatenated(parts)) for batch, parts in found]


def batches_of(pieces: Sequence[Piece], batch_size: int) -> list[list[Piece]]:
    """Cuts pieces into batches.

    Example:
        >>> cut = batches_of([Piece(0, 0, 6), Piece(0, 9, 11)], 4)
        >>> [[(piece.start, piece.stop) for piece in batch] for batch in cut]
        [[(0, 4)], [(4, 6), (9, 11)]]
    """
    found: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        while piece.rows:
            if not room:
                found.append([])
                room = batch_size
            stop = min(piece.stop, piece.start + room)
            found[-1].append(piece._replace(stop=stop))
            room -= stop - piece.start
            piece = piece._replace(start=stop)
    return found


def chunk_of(pieces: Sequence[Piece], indices: Indices) -> str:
    """Names a chunk by its epoch, its place in the order, and rows of the data.

    Example:
        >>> chunk_of([Piece(1, 64, 96)], np.arange(40, 72))
        'samples 64 to 95 of the order of epoch 2 (rows 40 to 71 of the data)'
    """
    low, high = int(indices.min()), int(indices.max())
    if high - low + 1 == len(indices):
        rows = f"rows {low:,} to {high:,} of the data"
    else:
        named = ", ".join(f"{int(row):,}" for row in indices[:4])
        more = ", ..." if len(indices) > 4 else ""
        rows = f"rows {named}{more} of the data"
    if not pieces:
        return f"{rows} (to compile with)"
    places = " and ".join(f"{p.start:,} to {p.stop - 1:,}" for p in pieces)
    return f"samples {places} of the order of epoch {pieces[0].epoch + 1} ({rows})"
