"""Sources that raise: read again, then reported with the chunk."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from shoal.data.order import Order
from shoal.engine.coordination.ledger import Piece
from shoal.engine.environment import SYSTEM
from shoal.engine.transport.messages.worker_reports import DataRetry, DataState
from shoal.engine.worker.reader import Retry, SampleReader
from shoal.errors import DataError, WorkerFailed
from shoal.strategies import get
from shoal.testing.problems import LeastSquares
from tests.support.inline import Setup, train
from tests.support.linear import LinearRows

PROBLEM = LeastSquares.seeded(rows=101, size=5)
BAD = 93  # beyond what workers compile with
AT_ONCE = Retry(attempts=3, first_s=0.0)


class Sick:
    """Raises on a row this number of times, for all threads together."""

    def __init__(self, times: int, error: Exception) -> None:
        self._rows, self._left, self._error = LinearRows(PROBLEM), times, error
        self.asked: Counter[tuple[int, ...]] = Counter()

    def take(self, indices: Any) -> Any:
        if BAD in indices:
            self.asked[tuple(indices.tolist())] += 1
            if self._left > 0:
                self._left -= 1
                raise self._error
        return self._rows.take(indices)


def reader(source: Sick, retry: Retry, told: list[Any]) -> SampleReader:
    def tell(message: DataRetry | DataState) -> None:
        assert isinstance(message, DataRetry)
        assert DataRetry.parse(message.pack()) == message  # the server takes it
        told.append((message.kind, message.attempt, message.text))

    return SampleReader(
        source, Order(rows=101, shuffle=False), retry, tell, SYSTEM.sleep
    )


def test_a_source_that_recovers_is_no_failure() -> None:
    source, told = Sick(2, OSError("no route")), list[Any]()
    x, _ = reader(source, AT_ONCE, told).pieces([Piece(0, 90, 92), Piece(0, 92, 98)])
    np.testing.assert_array_equal(x, LinearRows(PROBLEM).take(np.arange(90, 98))[0])
    assert [attempt for _, attempt, _ in told] == [1, 2]
    assert told[0][2] == (
        "samples 90 to 91 and 92 to 97 of the order of epoch 1 (rows 90 to 97 of the "
        "data) cannot be read: OSError: no route"
    )


@pytest.mark.parametrize("error", [OSError("no route"), ConnectionError("reset"),
                                   KeyError("gone"), EOFError()])  # fmt: skip
def test_a_source_that_does_not_recover_is_reported_with_the_chunk(
    error: Exception,
) -> None:
    source = Sick(99, error)
    with pytest.raises(DataError) as caught:
        reader(source, AT_ONCE, []).pieces([Piece(2, 90, 98)])
    assert list(source.asked.values()) == [3]
    text = str(caught.value)
    assert "samples 90 to 97 of the order of epoch 3 (rows 90 to 97 of" in text
    assert f"{type(error).__name__}: {error}" in text
    assert "was asked 3 times" in text
    assert caught.value.__cause__ is error


def test_rows_of_a_shuffled_order_are_named() -> None:
    source = Sick(99, OSError("torn"))
    order = Order(rows=101, seed=3, shuffle=True)
    [place] = [n for n in range(101) if order.indices(0, n, n + 1)[0] == BAD]
    start = min(place, 93)
    shuffled = SampleReader(
        source, order, Retry(attempts=1), lambda *_, **__: None, SYSTEM.sleep
    )
    with pytest.raises(DataError, match="was asked 1 time") as caught:
        shuffled.pieces([Piece(0, start, start + 8)])
    first = ", ".join(map(str, order.indices(0, start, start + 4)))
    assert f"(rows {first}, ... of the data)" in str(caught.value)


def test_waits_between_attempts_grow() -> None:
    assert Retry(attempts=1).waits == ()
    waits = Retry().waits
    assert len(waits) == 3
    assert all(late >= 2 * early for early, late in pairwise(waits))


@pytest.mark.parametrize("name", ["aeasgd", "local_sgd", "all_reduce"])
def test_training_goes_on_when_a_source_recovers(name: str) -> None:
    given = Setup.linear(PROBLEM, get(name), 0.3, workers=2, epochs=3)
    healthy = train(replace(given, workers=1))
    source = Sick(2, ConnectionError("reset by peer"))
    outcome = train(replace(given, source=source, retry=AT_ONCE, workers=1))
    assert [end.rows for end in outcome.epochs] == [101] * 3
    np.testing.assert_array_equal(outcome.vector, healthy.vector)
    events = outcome.of_kind("data_retry")
    assert [(e["rank"], e["attempt"]) for e in events] == [(0, 1), (0, 2)]
    assert "ConnectionError: reset by peer" in events[0]["text"]


@pytest.mark.parametrize("name", ["aeasgd", "local_sgd", "all_reduce"])
def test_training_ends_naming_the_chunk_that_cannot_be_read(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lost connection of the source is not taken for one of the run."""
    given = Setup.linear(PROBLEM, get(name), 0.3, workers=2, epochs=3)
    source = Sick(99, ConnectionError("reset by peer"))
    with pytest.raises(WorkerFailed, match="of the order of epoch 1") as caught:
        train(replace(given, source=source, retry=AT_ONCE))
    assert "was asked 3 times" in str(caught.value)
    assert "DataError" in capsys.readouterr().out
