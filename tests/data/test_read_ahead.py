"""A worker that waits for data reports that it lives; the wait has a limit."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from shoal.data import read_ahead
from shoal.data.chunks import ArrayChunk, ChunkedSource
from shoal.data.order import Order
from shoal.data.read_ahead import ReadAhead, TooSlow
from shoal.engine.coordination.ledger import Piece
from shoal.engine.environment import SYSTEM
from shoal.engine.worker.reader import Retry, SampleReader
from shoal.errors import DataError


class Slow(ChunkedSource):
    """Two chunks of four rows; a read ends when the test allows it."""

    kind = "slow files"

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.reads = 0

    @property
    def chunk_rows(self) -> tuple[int, ...]:
        return (4, 4)

    @property
    def size_bytes(self) -> int:
        return 64

    def read(self, chunk: int, epoch: int) -> ArrayChunk:
        self.reads += 1
        self.may_end.wait()
        return ArrayChunk((np.arange(4) + 4 * chunk,))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    monkeypatch.setattr(read_ahead, "BEAT_S", 0.001)
    source = Slow()
    yield source
    source.may_end.set()


def test_waiting_for_data_is_reported(slow: Slow) -> None:
    beats = 0

    def beat() -> None:
        nonlocal beats
        beats += 1
        if beats == 3:
            slow.may_end.set()

    reader = ReadAhead(slow, on_wait=beat)
    assert reader.take(np.array([5, 1]))[0].tolist() == [5, 1]
    assert beats >= 3
    reader.close()


def test_many_short_reads_are_a_long_one(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "BEAT_S", 0.0)  # any read is longer
    slow.may_end.set()
    beats = list[int]()
    reader = ReadAhead(slow, on_wait=lambda: beats.append(slow.reads))
    reader.take(np.array([5, 1]))
    assert len(beats) >= 2
    reader.close()


def test_a_read_that_never_ends_is_an_error_and_not_asked_for_again(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "MOST_S", 0.0)
    ahead = ReadAhead(slow)
    told: list[str] = []
    tell = lambda kind, **_: told.append(kind)  # noqa: E731
    reader = SampleReader(ahead, Order(rows=8), Retry(), tell, SYSTEM.sleep)
    with pytest.raises(DataError, match="a read of slow files has not ended") as caught:
        reader.pieces([Piece(0, 0, 4)])
    assert isinstance(caught.value.__cause__, TooSlow)
    assert not told
    slow.may_end.set()
    ahead.close()
    assert slow.reads <= 2
