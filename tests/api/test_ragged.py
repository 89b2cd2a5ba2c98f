"""Batches that differ in rows or in shape: steps of their own, as in plain Keras."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import shoal

Sizes = list[tuple[int, int]]
"""Rows of each batch, and steps in time of its rows."""

EQUAL: Sizes = [(8, 5), (8, 5), (8, 5), (8, 5), (8, 5), (8, 5), (8, 5), (4, 5)]
PADDED: Sizes = [(8, 5), (8, 7), (8, 7), (8, 5), (8, 9), (8, 9), (8, 9), (8, 5)]
SHORT: Sizes = [(8, 5), (8, 5), (3, 5), (2, 5), (8, 5), (8, 5), (8, 5), (1, 5), (1, 5)]
BOTH: Sizes = [(8, 5), (3, 7), (3, 5), (8, 9), (8, 9), (8, 5), (2, 5), (1, 3)]
SINGLE: Sizes = [(1, n) for n in (3, 4, 3, 5, 5, 5, 3, 6)]
KINDS = {
    "equal": EQUAL, "padded": PADDED, "short": SHORT, "both": BOTH, "single": SINGLE
}  # fmt: skip


def batch(number: int, sizes: tuple[int, int]) -> Any:
    random = np.random.default_rng(number)
    x = random.standard_normal((*sizes, 3)).astype("f4")
    return x, x.sum((1, 2))[:, None]


def stream(sizes: Sizes) -> Iterator[Any]:
    for number, size in enumerate(sizes):
        yield batch(number, size)


class Data(keras.utils.PyDataset):
    """Batches of such sizes, in this order; the last ones are the shortest."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Any:
        return batch(index, self.sizes[index])


def make() -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((None, 3)),
            keras.layers.Dense(4, "tanh"),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


def fit(model: Any, x: Any, **given: Any) -> Any:
    usual: dict[str, Any] = {
        "cluster": "inline", "run": False, "verbose": 0, "workers": 2, "seed": 1
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", shoal.errors.ShoalWarning)
        return shoal.fit(model, x, shuffle=False, **{**usual, **given})


def check(ours: Any, theirs: Any) -> None:
    assert int(ours.optimizer.iterations) == int(theirs.optimizer.iterations)
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def as_keras(x: Any, **given: Any) -> Any:
    model = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, shuffle=False, verbose=0, **given)
    return model


# Keras gives the first batches of a generator twice there, and wants one shape.
no_tensorflow = pytest.mark.skipif(
    keras.backend.backend() == "tensorflow", reason="generators differ in Keras"
)


@no_tensorflow
@pytest.mark.parametrize("strategy", ["all_reduce", "single"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_has_the_steps_of_keras(kind: str, strategy: str) -> None:
    ours, sizes = make(), KINDS[kind]
    workers = 1 if strategy == "single" else 2
    found = fit(ours, stream(sizes), strategy=strategy, workers=workers)
    theirs = as_keras(stream(sizes))
    check(ours, theirs)
    for name, values in theirs.history.history.items():
        assert found.history[name] == pytest.approx(values, rel=1e-4)


@pytest.mark.parametrize("strategy", ["all_reduce", "downpour:period=4", "aeasgd"])
@pytest.mark.parametrize("kind", ["equal", "padded", "single"])
def test_windows_are_of_one_shape_at_a_time(kind: str, strategy: str) -> None:
    ours = make()
    found = fit(ours, Data(KINDS[kind]), strategy=strategy, workers=1, epochs=2)
    if strategy != "aeasgd":
        check(ours, as_keras(Data(KINDS[kind]), epochs=2))
    assert len(found.history["loss"]) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_validation_batches_may_differ_in_shape(kind: str) -> None:
    held, model = KINDS[kind], make()
    found = fit(model, Data(EQUAL), validation_data=stream(held), epochs=1)
    theirs = model.evaluate(stream_of_shapes(held), verbose=0, return_dict=True)
    for name, value in theirs.items():
        assert found.history[f"val_{name}"][0] == pytest.approx(value, rel=1e-4)
    assert shoal.evaluate(
        model, stream(held), verbose=0, return_dict=True
    ) == pytest.approx(theirs, rel=1e-4)
    gc.collect()  # a validation's batches go with what validates


def stream_of_shapes(sizes: Sizes) -> Any:
    """Read by number: Keras takes generators of one shape alone on TensorFlow."""
    return Data(sizes)


@pytest.mark.process
@pytest.mark.parametrize("strategy", ["all_reduce", "downpour:period=3", "diloco"])
@pytest.mark.parametrize("kind", ["padded", "both"])
def test_workers_take_each_sample_once(
    kept: shoal.Session, kind: str, strategy: str
) -> None:
    ours, sizes = make(), KINDS[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", shoal.errors.ShoalWarning)
        kept.fit(
            ours, stream(sizes), strategy=strategy, workers=2, run=False, verbose=0
        )
    assert int(ours.optimizer.iterations) == len(sizes)
    if strategy == "all_reduce" and keras.backend.backend() != "tensorflow":
        check(ours, as_keras(stream(sizes)))


@pytest.mark.process
def test_scoring_on_processes_takes_batches_as_they_are() -> None:
    model = make()
    theirs = model.predict(Data(PADDED), verbose=0)
    found = shoal.predict(model, Data(PADDED), workers=2, verbose=0)
    np.testing.assert_allclose(found, theirs, rtol=1e-4, atol=1e-5)
    scores = model.evaluate(Data(PADDED), verbose=0)
    assert shoal.evaluate(model, Data(PADDED), workers=2, verbose=0) == pytest.approx(
        scores, rel=1e-4
    )
