"""What a worker has beside weights, statistics and optimizer: what of it travels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from shoal.backends.base import Backend, Clock, ComputeSpec
from shoal.backends.fixed import Fixed, is_same, pack_changes, read_changes
from shoal.engine.worker.factories import backend_class
from shoal.models.inspection import prepare
from shoal.training.start_run import most_state
from shoal.vectors import local_variables

BATCH, FROZEN = 4, 50_000
NAME = keras.backend.backend()


class Counts(keras.layers.Layer):
    """Counts its steps, modulo five as well, and says whether it has taken any."""

    def build(self, _: Any) -> None:
        add: Callable[..., Any] = self.add_weight
        self.count = add(shape=(), dtype="int32", initializer="zeros", trainable=False)
        self.turn = add(shape=(), dtype="int32", initializer="zeros", trainable=False)
        self.has_begun = add(
            shape=(), dtype="bool", initializer="zeros", trainable=False
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.count.assign(self.count + 1)
            self.turn.assign((self.turn + 1) % 5)
            self.has_begun.assign(True)
        return x * keras.ops.cast(1 + self.turn, x.dtype)


class Follows(keras.layers.Layer):
    """Frozen, and yet it keeps the mean of all inputs it has seen."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=shape[1:], trainable=False)
        self.trainable = False

    def call(self, x: Any) -> Any:
        self.mean.assign(0.5 * self.mean + 0.5 * keras.ops.mean(x, axis=0))
        return x - self.mean


def net(frozen: int = FROZEN) -> Any:
    keras.utils.set_random_seed(1)
    start = keras.Input((3,))
    x = keras.layers.Dense(frozen // 3, trainable=False, name="frozen")(start)
    x = keras.layers.Dense(3, name="head")(x)
    for layer in (Counts(name="counts"), Follows(), keras.layers.Dropout(0.5)):
        x = layer(x)
    model = keras.Model(start, keras.layers.Dense(1)(x))
    model.compile(keras.optimizers.SGD(0.01), "mse")
    prepare(model, data())
    return model


def data(rows: int = BATCH) -> tuple[Any, Any]:
    x = np.random.default_rng(3).standard_normal((rows, 3)).astype("f4")
    return x, x.sum(1, keepdims=True)


def opened(model: Any, rank: int = 0) -> Backend:
    spec = ComputeSpec(window=2, batch_size=BATCH, rank_seed=rank, is_alone=False)
    return backend_class(NAME)(model, spec)


def step(backend: Backend) -> None:
    gradient = np.empty(backend.layout.size, np.float32)
    mass = backend.gradient(data(), BATCH, gradient)
    backend.apply(gradient / np.float32(mass), Clock())


def local(model: Any, backend: Backend) -> dict[str, Any]:
    """The local state that a snapshot tells of, by variable."""
    variables = local_variables(model)
    slots = sum(
        int(np.prod(tuple(v.shape))) * np.dtype(str(v.dtype)).itemsize
        for v in model.optimizer.variables
    )
    like = [np.asarray(v.numpy()) for v in variables]
    found = read_changes(memoryview(backend.snapshot())[slots:], like)
    return {variables[place].path: value for place, value in found.items()}


def drawn(found: dict[str, Any]) -> list[list[int]]:
    return [value.tolist() for path, value in found.items() if "seed" in path]


def counted(found: dict[str, Any]) -> list[int]:
    is_count = [v.shape == () and v.dtype == np.int32 for v in found.values()]
    return sorted(
        int(v) for v, own in zip(found.values(), is_count, strict=True) if own
    )


@pytest.mark.parametrize("is_gradient", [False, True])
def test_a_snapshot_has_changed_state_and_no_frozen_variables(
    is_gradient: bool,
) -> None:
    model = net()
    backend = opened(model)
    before = len(backend.snapshot())
    backend.warm_up(data(2 * BATCH), is_gradient=is_gradient)
    assert len(backend.snapshot()) == before < 400
    if is_gradient:
        step(backend)
        step(backend)
    else:
        backend.run(data(2 * BATCH), 2, Clock())
    assert before < len(backend.snapshot()) < 600
    assert not any("frozen" in path for path in local(model, backend))
    assert most_state(model) > 4 * FROZEN  # were it to move


def test_another_worker_restores_a_snapshot_with_its_own_seeds() -> None:
    first = opened(net())
    for _ in range(3):
        step(first)
    model = net()
    other = opened(model, rank=1)
    other.restore(first.snapshot())
    found = local(model, other)
    # Of torch dropout draws from a generator of its own, in plain Keras too.
    assert drawn(found) == ([] if NAME == "torch" else [[0, 3]])
    assert counted(found) == [3, 3]
    assert [bool(v) for v in found.values() if v.dtype == bool] == [True]
    assert other.snapshot() == first.snapshot()
    step(other)
    found = local(model, other)
    assert drawn(found) == ([] if NAME == "torch" else [[0, 4]])
    assert counted(found) == [4, 4]


def test_a_worker_restores_its_initial_state() -> None:
    model = net()
    backend = opened(model)
    began = backend.snapshot()
    for _ in range(2):
        step(backend)
    backend.restore(began)
    assert local(model, backend) == {}


def test_snapshots_of_older_versions_are_read() -> None:
    """Older snapshots had all values, one after the other."""
    model = net()
    backend = opened(model)
    slots = [np.array(v.numpy()) for v in model.optimizer.variables]
    values = [np.array(v.numpy()) for v in local_variables(model)]
    for value, variable in zip(values, local_variables(model), strict=True):
        if "seed" in variable.path:
            value[:] = [0, 7]
        elif value.dtype == np.int32:
            value[...] = 2
    backend.restore(b"".join(a.tobytes() for a in (*slots, *values)))
    found = local(model, backend)
    assert counted(found) == [2, 2]
    assert drawn(found) == [[0, 7]]


def test_state_of_another_model_is_refused() -> None:
    blob = pack_changes({0: np.zeros(3, np.float32)})
    for wrong in (blob[:-1], pack_changes({1: np.zeros(2, np.float32)}), b"x" * 7):
        with pytest.raises(ValueError, match="local state"):
            read_changes(wrong, [np.zeros(2, np.float32)])


def test_a_step_without_rows_counts_as_one_with_rows() -> None:
    """Counters that wrap included: no difference of two values tells of them."""
    model, other = net(), net()
    idle, busy = opened(model), opened(other, rank=1)
    for backend in (idle, busy):
        backend.warm_up(data(), is_gradient=True)
    for _ in range(7):
        idle.skip()
        step(busy)
    mine, theirs = local(model, idle), local(other, busy)
    for ours, value in zip(mine.values(), theirs.values(), strict=True):
        if value.dtype != np.float32:  # what follows the data need not be the same
            np.testing.assert_array_equal(ours, value)
    assert counted(mine) == [2, 7]


def test_a_step_without_rows_leaves_weights_statistics_and_metrics() -> None:
    backend = opened(net())
    step(backend)
    vector, statistics = (part.copy() for part in backend.read())
    sums = np.zeros(backend.metrics_size)
    backend.take_metrics(sums, add=False)
    backend.skip()
    for before, now in zip((vector, statistics), backend.read(), strict=True):
        np.testing.assert_array_equal(before, now)
    backend.take_metrics(sums, add=False)
    assert not sums.any()


def test_kept_state_is_restored() -> None:
    model = net()
    backend = opened(model)
    kept = backend.keep()
    step(backend)
    assert local(model, backend)
    backend.revert(kept)
    assert local(model, backend) == {}


@pytest.mark.parametrize("dtype", ["f4", "f2", "i4", "u1", "bool"])
@pytest.mark.parametrize("size", [0, 1, 3, 8, 2_000_003])
def test_all_bytes_are_compared(dtype: str, size: int) -> None:
    one = np.zeros(size, dtype)
    other = one.copy()
    assert is_same(one, other)
    assert not is_same(one, np.zeros(size + 1, dtype))
    if size:
        other[-1] = 1
        assert not is_same(one, other)


def test_nan_counts_as_unchanged() -> None:
    fixed = Fixed([np.full(4, np.nan, np.float32)], [False])
    assert fixed.changes([np.full(4, np.nan, np.float32)]) == {}
