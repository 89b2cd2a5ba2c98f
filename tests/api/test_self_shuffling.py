"""Data sets that shuffle themselves, read by workers that are processes."""

from __future__ import annotations

import os
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.errors import DataError, PlanError, ShoalWarning

pytestmark = pytest.mark.process

ROWS, BATCH = 24, 4


class Rows(keras.utils.PyDataset):
    """One weight for each sample: it counts how often the sample was trained."""

    def __init__(self) -> None:
        super().__init__()
        self.order = np.arange(ROWS)

    def __len__(self) -> int:
        return ROWS // BATCH

    def __getitem__(self, index: int) -> Any:
        rows = self.order[index * BATCH : (index + 1) * BATCH]
        return np.eye(ROWS, dtype="f4")[rows], np.zeros(BATCH, "f4")


class Fresh(Rows):
    """Draws from a generator that it makes anew."""

    def on_epoch_end(self) -> None:
        self.order = np.random.default_rng().permutation(ROWS)


class OfProcess(Rows):
    """Draws alike in one process, and not in another."""

    def on_epoch_end(self) -> None:
        self.order = np.random.RandomState(os.getpid()).permutation(ROWS)


def counter() -> Any:
    keras.utils.set_random_seed(3)
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((ROWS,)), dense])
    # A mean over the batch, times its rows: 1 for each visit.
    model.compile(
        keras.optimizers.SGD(float(BATCH)), lambda t, p: -keras.ops.sum(p, axis=-1)
    )
    return model


@pytest.mark.parametrize("strategy", ["all_reduce", "downpour:period=2"])
def test_each_sample_is_trained_once_an_epoch(
    kept: shoal.Session, strategy: str
) -> None:
    model = counter()
    with pytest.warns(ShoalWarning, match="would leave another self.order"):
        kept.fit(
            model, Fresh(), epochs=3, workers=2, strategy=strategy, run=False, verbose=0
        )
    np.testing.assert_allclose(model.get_weights()[0][:, 0], np.full(ROWS, 3), 1e-5)


def test_copies_that_differ_between_processes_end_the_run(kept: shoal.Session) -> None:
    with pytest.raises(DataError, match=r"self\.order in one worker's copy"):
        kept.fit(
            # Both workers take part in each step: neither can train an epoch alone.
            counter(), OfProcess(), epochs=3, workers=2, run=False, verbose=0,
            strategy="all_reduce",
        )  # fmt: skip


def test_other_machines_cannot_have_batches_of_this_process() -> None:
    with pytest.raises(PlanError, match=r"self\.rng = np\.random\.default_rng\(7\)"):
        shoal.plan(counter(), Fresh(), cluster="ray")
