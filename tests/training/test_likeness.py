"""Whether data that is given again is what a run began with."""

from __future__ import annotations

import pickle
from typing import Any

import keras
import numpy as np
import pytest

from shoal.data import ArraySource
from shoal.data.adapting import source_of
from shoal.data.reading import Reading
from shoal.errors import PlanError
from shoal.training import resuming
from shoal.training.likeness import Likeness, difference

X = np.random.default_rng(1).normal(size=(5000, 4)).astype("f4")
Y = np.arange(5000)


class Batches(keras.utils.PyDataset):
    """Two batches of a value, or of noise."""

    def __init__(self, value: float | None) -> None:
        super().__init__()
        self.value = value

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        if self.value is None:
            return np.random.default_rng().random((8, 2)), np.zeros(8)
        return np.full((8, 2), self.value + index), np.zeros(8)


def generator(value: float) -> Any:
    source = source_of(
        (np.full((8, 2), value + n) for n in range(9)),
        reading=Reading(steps_per_epoch=3),
    )
    assert source is not None
    return source


def batches(value: float | None) -> Any:
    source = source_of(Batches(value))
    assert source is not None
    return source


def test_data_that_is_not_stored_is_recognised() -> None:
    found: Likeness = pickle.loads(pickle.dumps(Likeness.of(ArraySource(X, Y))))
    assert found.difference(ArraySource(X, Y)) == ""
    assert found.difference(ArraySource(X[::-1].copy(), Y)) != ""
    assert "columns are" in found.difference(ArraySource(X, Y.astype("f4")))
    assert "4,999 samples" in found.difference(ArraySource(X[1:], Y[1:]))
    for value in (3.0, 4.0):
        known = Likeness.of(generator(3.0))
        assert bool(known.difference(generator(value))) == (value != 3.0)
        known = Likeness.of(batches(3.0))
        assert bool(known.difference(batches(value))) == (value != 3.0)


def test_every_sample_of_kept_arrays_counts() -> None:
    holes = X.copy()
    holes[7, 1] = np.nan
    kept = ArraySource({"a": holes}, Y)
    assert difference(kept, ArraySource({"a": holes.copy()}, Y)) == ""
    other = holes.copy()
    other[4321, 2] = np.nextafter(other[4321, 2], np.float32(9))
    assert difference(kept, ArraySource({"a": other}, Y)) == ("sample 4,321 differs")
    assert "columns" in difference(kept, ArraySource({"b": holes}, Y))


def test_samples_that_are_made_anew_are_no_reason_to_refuse() -> None:
    warned: list[str] = []
    one, other = batches(None), batches(None)
    resuming._compare("x", difference(one, other), other, warned.append)
    assert "does not seem to be what fit was given" in warned[0]
    with pytest.raises(PlanError, match="it has 24 samples, and there were 16"):
        resuming._compare(
            "x", difference(one, generator(1.0)), generator(1.0), warned.append
        )
