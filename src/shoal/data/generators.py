"""Data that only the driver can read: generators, and pipelines that are not pickled.

This file decides what an epoch of such data is, and how many rows it has. The driver
reads it once, in the order it has, and hands batches to workers through a spool; a
batch that is read again is the same one, so every sample is counted exactly once.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, final

from shoal.data.batches import Packing, bytes_per_row
from shoal.data.chunks import ArrayChunk, ChunkedSource, Mixing
from shoal.data.feeding import AHEAD_BYTES, Feed, next_chunk
from shoal.data.spool import BatchKey, Spool
from shoal.data.unended import Unended
from shoal.errors import ConfigError, DataError

MakePass: TypeAlias = Callable[[], Iterator[Any]]
"""Begins a pass over the data; for a generator always the same one."""

SLOW_COUNT_S = 1.0
"""Seconds of counting rows after which a note is given."""


@final
class FedSource(ChunkedSource):
    """Batches that the driver reads, each a chunk, and workers wait for.

    Build it with `of_iterator` or `of_passes`. Workers can read while `serving` is
    entered; before that, the driver itself can read the first epoch.

    Args:
        passes: Returns, for each epoch, its iterator of batches.
        chunk_rows: Rows of each batch of an epoch.
        packing: How batches are made into chunks.
        epochs: The first one, and one past the last.
        notes: Sentences that the user should read.
    """

    mixing: Mixing = "nothing"
    are_batches: bool = True
    travels_alone: bool = False

    def __init__(
        self,
        passes: _Passes,
        chunk_rows: Sequence[int],
        *,
        packing: Packing,
        epochs: range,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.kind, self.batch_size = packing.kind, max(chunk_rows)
        self.notes, self.ahead_bytes = notes, AHEAD_BYTES
        self._passes: _Passes | None = passes
        self._packing, self._epochs = packing, epochs
        self._chunk_rows = tuple(chunk_rows)
        self._first: ArrayChunk | None = self._packed(passes.peek(0), 0)
        self._bytes_per_row = bytes_per_row(self._first)
        self._spool = Spool.planned(packing.kind)

    @classmethod
    def of_iterator(
        cls,
        batches: Iterator[Any],
        *,
        packing: Packing,
        steps_per_epoch: int | None,
        epochs: range,
    ) -> FedSource:
        """Reads batches from an iterator that continues from epoch to epoch.

        Args:
            batches: Endless iterator, or one with batches for all epochs; of one size.
            packing: How batches are made into chunks.
            steps_per_epoch: Batches of an epoch; needed.
            epochs: The first one, and one past the last.

        Raises:
            ConfigError: There are no `steps_per_epoch`.
            DataError: The iterator is empty, or fails, or yields something else.

        Example:
            >>> import numpy as np
            >>> source = FedSource.of_iterator(
            ...     (np.full((2, 1), n) for n in range(9)), steps_per_epoch=3,
            ...     packing=Packing(kind="generator", floatx="float32"),
            ...     epochs=range(2),
            ... )
            >>> len(source)
            6
            >>> with source.serving():
            ...     source.read(2, epoch=1).rows.tolist()
            [[5], [5]]
        """
        if steps_per_epoch is None:
            raise ConfigError(
                f"{packing.steps_name}=None, but x is a {packing.kind} "
                f"({packing.where}), which does not tell its number of batches. "
                f"Expected the batches of one pass. Pass {packing.steps_name}."
            )
        passes = _Passes(lambda: batches, packing, first=epochs.start)
        rows = packing.rows_of(passes.peek(0), "batch 0")
        return cls(passes, (rows,) * steps_per_epoch, packing=packing, epochs=epochs)

    @classmethod
    def of_passes(
        cls,
        make_pass: MakePass,
        *,
        packing: Packing,
        steps_per_epoch: int | None,
        epochs: range,
        expect: Callable[[int], Sequence[int] | None] = lambda rows: None,
        notes: tuple[str, ...] = (),
    ) -> FedSource:
        """Reads batches from data that can be read from its start again.

        An epoch is one pass, or `steps_per_epoch` batches; passes then follow one
        another. Without `steps_per_epoch` the rows of a pass must be known: if the
        data has no length, it is read once before training, and a note says so.

        Args:
            make_pass: Begins a pass.
            packing: How batches are made into chunks.
            steps_per_epoch: Batches of an epoch; default None means one pass.
            epochs: The first one, and one past the last.
            expect: Maps the rows of the first batch to those of each batch of a
                pass, if the data knows them.
            notes: Sentences that the user should read.

        Raises:
            DataError: It has no batches, fails, or gives something else.
        """
        passes = _Passes(make_pass, packing, first=epochs.start, is_renewed=True)
        rows = packing.rows_of(passes.peek(0), "batch 0")
        known = expect(rows)
        if known and known[0] != rows:
            known = None
        if steps_per_epoch is not None and steps_per_epoch != len(known or ()):
            passes.repeat()
            known = (rows,) * steps_per_epoch
        elif known is None:
            known, counted = _counted(make_pass(), packing)
            notes = (*notes, *counted)
        return cls(passes, known, packing=packing, epochs=epochs, notes=notes)

    @property
    def chunk_rows(self) -> Sequence[int]:
        """Rows of each batch of an epoch."""
        return self._chunk_rows

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of one epoch, estimated from its first batch."""
        return int(len(self) * self._bytes_per_row)

    def read(self, chunk: int, epoch: int) -> ArrayChunk:
        """Reads a batch; a worker waits for it.

        Raises:
            DataError: The user's code failed or ended, or the driver is gone.
        """
        epoch = max(epoch, self._epochs.start)  # callers without an epoch ask for 0
        is_first = epoch == self._epochs.start
        if self._first is not None and is_first and chunk == 0:
            return self._first  # always available: models are built with it
        if not self._spool.is_own or self._spool.folder.exists():
            return self._spool.read(BatchKey(epoch, chunk))
        if self._passes is None or self._passes.is_closed:
            raise DataError(
                f"The {self.kind} is no longer open ({self._packing.where}). "
                "Expected it to be read before or while it is served, by the process "
                "that made it or by its workers. Make a new one."
            )
        return self._packed(self._passes.peek(chunk), chunk)

    def first_pass(self) -> Iterator[ArrayChunk]:
        """Yields the batches of the first epoch, once; keeps none of them.

        Raises:
            DataError: The user's code yields no batch, or one of another size.
        """
        if self._passes is None:
            raise RuntimeError("a copy of a source cannot read from the start")
        epoch = self._epochs.start
        batches = self._passes.of(epoch)
        try:
            for chunk, rows in enumerate(self._chunk_rows):
                place = BatchKey(epoch, chunk)
                yield next_chunk(batches, self._packing, place, self._chunk_rows, rows)
        finally:
            self._passes.close()

    @contextmanager
    def serving(self) -> Generator[None]:
        """Serves batches to workers while the context is entered.

        Raises:
            DataError: A run failed because the user's code did; the cause is its
                exception, with its traceback.
        """
        if self._passes is None:
            raise RuntimeError("a copy of a source cannot serve workers")
        with self._spool.open():
            feed = Feed(
                self._spool,
                self._passes.of,
                self._chunk_rows,
                packing=self._packing,
                epochs=self._epochs,
                ahead_bytes=self.ahead_bytes,
            )
            try:
                with feed:
                    yield
            except Exception as error:
                if feed.failure is None or error is feed.failure:
                    raise
                raise feed.failure from feed.failure.__cause__
            finally:
                self._passes.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_passes": None, "_first": None}

    def _packed(self, batch: Any, chunk: int) -> ArrayChunk:
        rows = self._chunk_rows[chunk]
        return self._packing.chunk(batch, f"batch {chunk:,}", rows)


@final
class _Passes:
    """The batches of epochs; batches that were peeked at are returned again.

    Args:
        make_pass: Begins a pass, or returns the running one.
        packing: Settings with names for messages.
        first: The first epoch.
        is_renewed: Whether every epoch begins a pass.
    """

    def __init__(
        self,
        make_pass: MakePass,
        packing: Packing,
        *,
        first: int,
        is_renewed: bool = False,
    ) -> None:
        self._make_pass, self._packing = make_pass, packing
        self._first, self._is_renewed = first, is_renewed
        self._current: Iterator[Any] | None = None
        self._peeked: list[Any] = []
        self.is_closed = False

    def peek(self, chunk: int) -> Any:
        """Returns a batch of the first epoch, which that epoch returns again."""
        if self._current is None:
            self._current = self._make_pass()
        while len(self._peeked) <= chunk:
            self._peeked.append(self._next(self._current, len(self._peeked)))
        return self._peeked[chunk]

    def of(self, epoch: int) -> Iterator[Any]:
        """Returns the iterator of an epoch's batches; in order, once each."""
        if self._current is None or (self._is_renewed and epoch != self._first):
            self._current = self._make_pass()
        peeked, self._peeked = self._peeked, []
        # A generator of this file would close the user's when it is dropped.
        return itertools.chain(peeked, self._current)

    def repeat(self) -> None:
        """Makes passes follow one another from now on, across epochs."""
        first = self._current
        rest = _repeated(self._make_pass)
        self._is_renewed = False
        self._current = rest if first is None else itertools.chain(first, rest)

    def close(self) -> None:
        """Releases open iterators: a loader's processes end with its iterator."""
        self._current, self._peeked, self.is_closed = None, [], True

    def _next(self, current: Iterator[Any], chunk: int) -> Any:
        """Returns the next batch; the user's own code may fail here."""
        packing = self._packing
        try:
            return next(current)
        except StopIteration:
            raise DataError(
                f"The {packing.kind} has {chunk:,} batches ({packing.where}). "
                f"Expected more than {chunk:,}. Check how it was made, and that "
                "nothing has read it before."
            ) from None


def _repeated(make_pass: MakePass) -> Iterator[Any]:
    """Yields passes one after another without an end; ends if one is empty."""
    while True:
        is_empty = True
        for batch in make_pass():
            is_empty = False
            yield batch
        if is_empty:
            return


def _counted(
    batches: Iterator[Any], packing: Packing
) -> tuple[Sequence[int], tuple[str, ...]]:
    """Counts the rows of each batch by reading them all."""
    started = time.monotonic()
    told = Unended(packing).of(batches)
    rows = [packing.rows_of(b, f"batch {n:,}") for n, b in enumerate(told)]
    took_s = time.monotonic() - started
    if took_s < SLOW_COUNT_S:
        return rows, ()
    note = (
        f"The rows of the {packing.kind} were counted by reading it once: "
        f"{sum(rows):,} rows in {took_s:.0f} s. Pass {packing.steps_name} to save that."
    )
    return rows, (note,)
