"""A slow worker takes less of the data and delays no other; a late one helps."""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.engine.coordination.instructions import (
    EpochDone,
    Instruction,
    PushMetadata,
    Respond,
    Rules,
)
from shoal.engine.coordination.ledger import Piece
from shoal.engine.coordination.sequencer import Sequencer
from shoal.engine.worker.spec import WATCH, Moment
from shoal.engine.worker.weight_loop import next_batches
from shoal.runs.events import exchange_records, read_events
from shoal.runs.folder import Folder

BATCH, WINDOW = 8, 4
CHUNK = BATCH * WINDOW


class Race:
    """Simulates an epoch with a real sequencer and workers of unequal speed.

    Args:
        seconds: Seconds of a full window, for each worker.
        chunks: Windows in the epoch.
        starts: When each worker is ready.
    """

    def __init__(
        self, seconds: Sequence[float], chunks: int, starts: Sequence[float]
    ) -> None:
        rules = Rules(
            epoch_rows=(chunks * CHUNK,), first_epoch=0, epochs=1, workers=len(seconds),
            batch=BATCH, window=WINDOW, is_rounds=False,
            exchanges_gradients=False, is_elastic=True,
        )  # fmt: skip
        self.seconds = seconds
        self.rows: Counter[int] = Counter()
        self.first: dict[int, float] = {}
        self.ended = math.nan
        self._sequencer = Sequencer(rules)
        self._sequencer.proceed(0)
        self._leases = [list[Piece]() for _ in seconds]
        self._windows = [list[Piece]() for _ in seconds]
        self._due = [(at, rank) for rank, at in enumerate(starts)]
        heapq.heapify(self._due)
        while math.isnan(self.ended):
            self._now, rank = heapq.heappop(self._due)
            if rank in self._sequencer.members:
                self._push(rank)
            else:
                member = self._sequencer.join(rank)
                self._heed(self._sequencer.ready(rank, member.incarnation))

    def _push(self, rank: int) -> None:
        member, pieces = self._sequencer.members[rank], self._windows[rank]
        rows = sum(piece.rows for piece in pieces)
        self._windows[rank] = []
        self.rows[rank] += rows
        steps, sequence = math.ceil(rows / BATCH), member.sequence + 1
        push = PushMetadata(
            rank, member.incarnation, 0, sequence, tuple(pieces), steps, float(rows)
        )
        self._heed(self._sequencer.push(push))
        if not self._windows[rank]:
            self._heed(self._sequencer.need(rank, member.incarnation))

    def _heed(self, instructions: list[Instruction]) -> None:
        for told in instructions:
            if isinstance(told, EpochDone):
                self.ended = self._now
            elif isinstance(told, Respond):
                self._leases[told.rank] += told.pieces
                if not self._windows[told.rank]:
                    self._begin(told.rank)

    def _begin(self, rank: int) -> None:
        leases = deque(self._leases[rank])
        if leases:
            window = next_batches(leases, BATCH, WINDOW, ())
            self._leases[rank], self._windows[rank] = list(leases), window
            self.first.setdefault(rank, self._now)
            share = sum(piece.rows for piece in window) / CHUNK
            heapq.heappush(self._due, (self._now + self.seconds[rank] * share, rank))


@settings(max_examples=50)
@given(
    others=st.integers(1, 5), slowness=st.floats(5.0, 50.0), chunks=st.integers(60, 120)
)
def test_a_slow_worker_takes_less_and_delays_no_other(
    others: int, slowness: float, chunks: int
) -> None:
    """The epoch lasts little longer than all speeds together allow.

    What it may last longer: at the end the slow worker holds up to two windows that
    nobody else can have, one it computes and one it was to read ahead.
    """
    race = Race([1.0] * others + [slowness], chunks, [0.0] * (others + 1))
    assert race.rows.total() == chunks * CHUNK
    windows = [race.rows[rank] / CHUNK for rank in range(others + 1)]
    ideal = chunks / (others + 1 / slowness)
    assert windows[-1] <= ideal / slowness + 2
    assert windows[-1] < min(windows[:-1])
    assert race.ended <= ideal + 2 * slowness + 1


@given(late=st.floats(0.0, 20.0), chunks=st.integers(60, 120))
def test_a_worker_that_joins_later_gets_data_at_once(late: float, chunks: int) -> None:
    race = Race([1.0, 1.0, 1.0], chunks, [0.0, 0.0, late])
    assert race.first[2] == late
    alone = late * 2
    together = (chunks - alone) / 3
    assert abs(race.rows[2] / CHUNK - together) <= 2
    assert race.ended <= late + together + 2


class Slow:
    """Slows one worker down: its windows take 0.2 s longer than those of the others."""

    def __call__(self, moment: Moment) -> None:
        if moment.rank == 1:
            time.sleep(0.2)  # it is the load that is tried here, nothing waits for it


@pytest.mark.process
def test_a_slow_process_takes_fewer_samples(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHOAL_RUNS", str(tmp_path))
    x = np.random.default_rng(0).standard_normal((2000, 4)).astype("float32")
    net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    token = WATCH.set(Slow())
    try:
        history = shoal.fit(
            net, x, x[:, :1], strategy=shoal.strategies.AEASGD(period=2), workers=2,
            epochs=4, batch_size=32, verbose=0, run="slow",
        )  # fmt: skip
    finally:
        WATCH.reset(token)
    taken: Counter[int] = Counter()
    for record in exchange_records(read_events(Folder.at(history.run.url))):
        taken[record["rank"]] += record["samples"]
    assert taken.total() == 4 * 2000
    assert taken[1] < taken[0]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="written for JAX")
def test_a_first_window_may_take_longer_than_any_timeout() -> None:
    """Five steps of a second each: no window was measured yet."""
    import jax

    class Late(keras.layers.Layer):
        def call(self, x):
            def wait(values):
                time.sleep(1.0)
                return values

            like = jax.ShapeDtypeStruct(x.shape, x.dtype)
            return x + 0 * jax.pure_callback(wait, like, jax.lax.stop_gradient(x))

    model = keras.Sequential([keras.Input((2,)), Late(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((120, 2), np.float32)
    found = shoal.fit(
        model, x, x[:, :1], strategy="aeasgd:period=5", workers=1, batch_size=8,
        max_restarts=0, run=False, verbose=0,
    )  # fmt: skip
    assert found.run.summary().samples_committed == 120
