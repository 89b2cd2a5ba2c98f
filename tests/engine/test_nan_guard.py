"""Which step a worker names when its numbers are not finite."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shoal.engine.coordination.ledger import Piece
from shoal.engine.transport.messages.worker_reports import NanReport
from shoal.engine.worker.nan_guard import NanGuard
from shoal.engine.worker.nan_policy import WARN

SIZE, STEPS = 4, 5  # rows of a step, steps of the window
FIRST = 11  # the worker's own number of the first of them


def told(bad_row: int | None, turned: int | None, rows: int = SIZE * STEPS) -> Any:
    """The report of a worker about a window whose weights are lost."""
    data = np.zeros((rows, 2), np.float32)
    if bad_row is not None:
        data[bad_row] = -np.inf
    said: list[NanReport] = []
    fine = np.zeros(3, np.float32)
    member: Any = SimpleNamespace(
        local=fine,
        statistics=fine,
        buffers=SimpleNamespace(metrics=np.array([np.nan, 1.0])),
        tell=said.append,
    )
    backend: Any = SimpleNamespace(read=lambda: (fine * np.nan, fine))
    reader: Any = SimpleNamespace(
        pieces=lambda pieces: (data,),
        indices=lambda pieces: np.arange(rows),
        runs=lambda pieces, size: [(pieces, (data,))],
    )
    guard = NanGuard(WARN, member, backend, reader, loss_at=(0,), batch_size=SIZE)
    span = FIRST, FIRST + STEPS - 1
    assert not guard.is_harmed([Piece(0, 0, rows)], span, turned)
    [found] = said
    return found


@pytest.mark.parametrize(
    ("bad_row", "turned", "step"),
    [
        (None, 13, 13),  # the data shows nothing
        (9, 13, 13),  # row and loss agree
        (9, 14, 13),  # the row harms the weights, and only the next loss shows it
        (9, None, 13),  # no loss of this window shows it
        (17, 12, 12),  # the loss turned before that row was met
    ],
)
def test_the_first_step_that_did_harm(
    bad_row: int | None, turned: int | None, step: int
) -> None:
    found = told(bad_row, turned)
    assert (found.step, found.last_step) == (step, step)
    assert found.what == ("weights" if turned is None else "loss")


def test_the_whole_window_where_nothing_shows_it() -> None:
    found = told(None, None)
    assert (found.step, found.last_step) == (FIRST, FIRST + STEPS - 1)


def test_rows_of_the_data_are_not_named_where_some_were_left_out() -> None:
    found = told(1, 15, rows=2 * SIZE)
    assert found.step == 15
