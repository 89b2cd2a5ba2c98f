"""The driver's thread that reads batches from a user's iterator for workers.

This file decides how far it runs ahead of the workers, when a batch is deleted, and
how an error in the user's code is reported.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

from shoal.data.batches import Packing
from shoal.data.chunks import ArrayChunk
from shoal.data.spool import ROOM_S, BatchKey, NoRoom, Spool
from shoal.errors import DataError

AHEAD_BYTES = 256 << 20
"""Bytes written ahead of the workers. One batch is always written ahead."""
KEPT_BYTES = 2 << 30
"""Bytes of batches already read, kept for a worker that replaces another."""
KEPT_BATCHES = 16
"""Minimum number of such batches, however large."""

LOOK_BATCHES = 32
"""Bytes written between two checks of the workers, while few batches are unread."""

_POLL_S = 0.02
_JOIN_S = 5.0


@final
class Feed:
    """Writes the batches of all epochs into a spool, in a thread of its own.

    Args:
        spool: Open spool that receives them.
        passes: Returns, for an epoch, an iterator of its batches.
        chunk_rows: Rows of each batch of an epoch.
        packing: How batches are made into chunks.
        epochs: The first one, and one past the last.
        ahead_bytes: Limit of bytes written ahead of the workers.
        kept_bytes: Limit of bytes of batches that were read.

    Example:
        >>> import numpy as np
        >>> spool = Spool.planned("list")
        >>> packing = Packing(kind="list", floatx="float32")
        >>> with spool.open(), Feed(
        ...     spool, lambda epoch: iter([np.ones(2), np.zeros(2)]), [2, 2],
        ...     packing=packing, epochs=range(2),
        ... ):
        ...     spool.read(BatchKey(1, 0)).rows
        array([1., 1.], dtype=float32)
    """

    def __init__(
        self,
        spool: Spool,
        passes: Callable[[int], Iterator[Any]],
        chunk_rows: Sequence[int],
        *,
        packing: Packing,
        epochs: range,
        ahead_bytes: int = AHEAD_BYTES,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._spool, self._passes, self._rows = spool, passes, chunk_rows
        self._packing, self._epochs = packing, epochs
        self._batches = _SpooledBatches(spool, ahead_bytes, kept_bytes)
        self._stop = threading.Event()
        self.failure: DataError | None = None
        self._thread = threading.Thread(
            target=self._run, name="shoal-feed", daemon=True
        )

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        # A user's iterator that hangs must not hang the end of a run.
        self._stop.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            for epoch in self._epochs:
                if not self._write_epoch(epoch):
                    return
            while not self._stop.wait(_POLL_S):
                self._batches.look()
        except Exception as error:  # this runs the user's code
            if not self._stop.is_set():
                self._fail(error)

    def _write_epoch(self, epoch: int) -> bool:
        """Writes one epoch; returns whether to continue."""
        batches = self._passes(epoch)
        for chunk, rows in enumerate(self._rows):
            place = BatchKey(epoch, chunk)
            while not self._batches.has_room(place):
                if self._stop.wait(_POLL_S):
                    return False
            if self._stop.is_set():
                return False
            packed = next_chunk(batches, self._packing, place, self._rows, rows)
            if not self._write(place, packed):
                return False
        return True

    def _write(self, place: BatchKey, packed: ArrayChunk) -> bool:
        """Writes one batch, when there is room for it; returns whether to continue.

        Raises:
            NoRoom: A worker waits for it, and no room can be made.
        """
        waited = time.monotonic()
        while True:
            try:
                self._batches.write(place, packed)
            except NoRoom:
                if self._batches.make_room() or not self._batches.is_wanted(place):
                    waited = time.monotonic()
                elif time.monotonic() - waited > ROOM_S:
                    raise
                if self._stop.wait(_POLL_S):
                    return False
            else:
                return True

    def _fail(self, error: Exception) -> None:
        message = str(error)
        if not isinstance(error, DataError):
            trace = "".join(traceback.format_exception(error))
            message = (
                f"The {self._packing.kind} failed in the driver "
                f"({self._packing.where}): {type(error).__name__}: {error}. "
                f"Expected batches for as long as training goes on. "
                f"Correct it where the traceback ends.\n\n{trace}"
            )
        self.failure = DataError(message)
        self.failure.__cause__ = error
        self._spool.fail(message)


def next_chunk(
    batches: Iterator[Any],
    packing: Packing,
    place: BatchKey,
    chunk_rows: Sequence[int],
    rows: int | None,
) -> ArrayChunk:
    """Takes the next batch from an iterator.

    Raises:
        DataError: There is no batch, or it cannot be used.
    """
    try:
        batch = next(batches)
    except StopIteration:
        raise DataError(
            f"The {packing.kind} ended after {place.chunk:,} batches of epoch "
            f"{place.epoch} ({packing.where}). Expected {len(chunk_rows):,} batches "
            f"in every epoch. Pass fewer {packing.steps_name} or fewer epochs, or let "
            "it go on without an end (while True)."
        ) from None
    return packing.chunk(batch, f"batch {place.chunk:,} of epoch {place.epoch}", rows)


@final
class _SpooledBatches:
    """Batches in a spool, and which of them have been read."""

    def __init__(self, spool: Spool, ahead_bytes: int, kept_bytes: int) -> None:
        self._spool, self._limits = spool, (ahead_bytes, kept_bytes)
        # Last written, and furthest wanted.
        self._last = self._furthest = BatchKey(-1, -1)
        self._sizes: dict[BatchKey, int] = {}  # of batches in the spool, as written
        self._ahead: deque[tuple[BatchKey, int]] = deque()
        self._ahead_bytes = 0
        self._read: dict[BatchKey, int] = {}  # in the order of reading
        self._read_bytes = 0

    def has_room(self, place: BatchKey) -> bool:
        """Whether to write a batch now: a worker waits, or few batches are unread."""
        has_few = 2 * self._ahead_bytes < self._limits[0]
        if has_few and len(self._ahead) % LOOK_BATCHES:
            return True  # a check costs more than writing a small batch
        self.look()
        return place <= self._furthest or self._ahead_bytes < self._limits[0]

    def look(self) -> None:
        """Reads requests of workers, and deletes batches that none of them needs."""
        before = self._furthest.epoch
        wanted, read = self._spool.marks()
        for place in wanted:
            self._furthest = max(self._furthest, place)
            if place <= self._last and place not in self._sizes:
                self._spool.refuse(place)
        for place in read:
            if place in self._sizes:
                self._note(place)
        while self._ahead and self._ahead[0][0] <= self._furthest:
            self._ahead_bytes -= self._ahead.popleft()[1]
        if self._furthest.epoch > before:
            oldest = self._furthest.epoch - 1  # may still be leased
            for place in [at for at in self._sizes if at.epoch < oldest]:
                self._delete(place)

    def write(self, place: BatchKey, chunk: ArrayChunk) -> None:
        """Writes a batch."""
        size = self._spool.write(place, chunk)
        self._sizes[place] = size
        self._last = place
        self._ahead.append((place, size))
        self._ahead_bytes += size

    def is_wanted(self, place: BatchKey) -> bool:
        """Whether a worker waits for a batch, as of the last check."""
        return place <= self._furthest

    def make_room(self) -> bool:
        """Deletes batches that were read long ago; returns whether there were any.

        Batches near the first unread one stay: a worker may have read a batch
        ahead that another one is given.
        """
        self.look()
        places = list(self._sizes)  # in the order of training
        unread = (n for n, place in enumerate(places) if place not in self._read)
        most = next(unread, len(places)) - KEPT_BATCHES
        for place in places[: max(0, most)]:
            self._delete(place)
        return most > 0

    def _note(self, place: BatchKey) -> None:
        """Notes that a batch was read; the ones read first are deleted for new ones."""
        if place not in self._read:
            self._read[place] = self._sizes[place]
            self._read_bytes += self._sizes[place]
        while self._read_bytes > self._limits[1] and len(self._read) > KEPT_BATCHES:
            self._delete(next(iter(self._read)))

    def _delete(self, place: BatchKey) -> None:
        self._spool.delete(place)
        del self._sizes[place]
        self._read_bytes -= self._read.pop(place, 0)
