"""A worker's programs serve the next run's model, if it differs in values and names."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import keras
import numpy as np
import pytest

from shoal.backends.base import Backend, Clock, ComputeSpec
from shoal.engine.worker import factories
from shoal.engine.worker.factories import CleanUp, OpenBackend
from shoal.models.inspection import prepare
from shoal.models.travel import pack, read_parcel

BATCH, WINDOW = 4, 3
NAME = keras.backend.backend()


@pytest.fixture(autouse=True)
def _nothing_kept() -> Generator[None]:
    factories._KEPT.clear()
    yield
    factories._KEPT.clear()


def data(seed: int = 3) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    x = random.standard_normal((WINDOW * BATCH, 3)).astype("f4")
    return x, x.sum(1, keepdims=True)


def net(seed: int = 1, units: int = 5, **given: Any) -> Any:
    """With statistics, random state and an optimizer that remembers."""
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((3,)),
            layers.Dense(units, activation=given.get("activation", "relu")),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.Adam(
        given.get("rate", 0.1), beta_1=given.get("beta_1", 0.9)
    )
    model.compile(optimizer, given.get("loss", "mse"), metrics=["mae"])
    prepare(model, data())
    return model


def trained(model: Any) -> Any:
    """The same model with other values everywhere."""
    model.fit(*data(seed=8), batch_size=BATCH, epochs=2, verbose=0)
    return model


def opened(
    packed: bytes, rank: int = 0, *, is_kept: bool = True, **given: Any
) -> Backend:
    spec = ComputeSpec(
        window=WINDOW, batch_size=BATCH, rank_seed=rank, is_alone=False, **given
    )
    x, y = data()
    open_backend = OpenBackend(name=NAME, model=packed, is_kept=is_kept)
    return open_backend(spec, (x[:2], y[:2]))


def observed(backend: Backend) -> list[Any]:
    """Where some windows, and a step of all_reduce, lead to."""
    sums = np.zeros(backend.metrics_size)
    backend.warm_up(data(), is_gradient=False)
    for seed in range(2):
        backend.run(data(seed), WINDOW, Clock())
    gradient = np.empty(backend.layout.size, np.float32)
    x, y = data(5)
    mass = backend.gradient((x[:BATCH], y[:BATCH]), BATCH, gradient)
    backend.apply(gradient / mass, Clock(start=6))
    backend.take_metrics(sums, add=False)
    vector, statistics = backend.read()
    found = [vector.copy(), statistics.copy(), gradient, sums]
    return [*found, np.frombuffer(backend.snapshot(), np.uint8)]


@pytest.mark.parametrize("change", ["values", "another model", "another rank"])
def test_a_kept_backend_gives_the_results_of_a_new_one(change: str) -> None:
    model = net()
    first = opened(pack(model))
    before = observed(first)
    rank = 2 if change == "another rank" else 0
    packed = pack(net(seed=7, rate=0.03) if change == "another model" else model)
    if change == "values":
        packed = pack(trained(model))
    second = opened(packed, rank)
    assert second is first
    found = observed(second)
    factories._KEPT.clear()
    fresh = opened(packed, rank, is_kept=False)
    assert fresh is not first
    for one, other in zip(found, observed(fresh), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert not np.allclose(found[0], before[0])


@pytest.mark.parametrize(
    "given",
    [{"units": 6}, {"activation": "tanh"}, {"beta_1": 0.8}, {"loss": "mae"}],
)
def test_a_model_that_needs_other_programs_gets_them(given: dict[str, Any]) -> None:
    first = opened(pack(net()))
    assert opened(pack(net(**given))) is not first


def test_other_compile_settings_need_other_programs() -> None:
    packed = pack(net())
    first = opened(packed)
    assert opened(packed, local_momentum=0.5) is not first


def test_programs_of_windows_and_of_gradients_are_both_compiled() -> None:
    backend: Any = opened(pack(net()))
    backend.warm_up(data(), is_gradient=True)
    backend.warm_up(data(), is_gradient=True)
    assert len(backend._warm) == 1
    backend.warm_up(data(), is_gradient=False)
    assert len(backend._warm) == 2


def test_a_run_outside_of_a_session_keeps_no_programs() -> None:
    packed = pack(net())
    first = opened(packed, is_kept=False)
    assert opened(packed, is_kept=False) is not first


def test_kept_programs_stay_until_another_model_needs_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forgotten = list[str]()
    kind = factories.backend_class(NAME)
    monkeypatch.setattr(kind, "forget", lambda: forgotten.append("all"))
    opened(pack(net()))
    CleanUp(name=NAME)()
    assert forgotten == []
    opened(pack(net(units=7)))
    assert forgotten == ["all"]


def test_a_make_depends_on_programs_and_not_on_values_or_names() -> None:
    def make(model: Any) -> str:
        return read_parcel(pack(model)).make

    model = net()
    known = make(model)
    assert known
    assert make(trained(model)) == known
    assert make(net(rate=0.5)) == known
    named = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="mine")])
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="yours")])
    for each in (named, other):
        each.compile("sgd", "mse")
        prepare(each, data())
    assert len({make(named), make(other), known}) == 3
    model.layers[0].trainable = False
    assert make(model) != known


def test_a_model_from_a_callable_has_no_make() -> None:
    def make() -> Any:
        return net()

    assert read_parcel(pack(net(), factory=make)).make == ""


def _own_loss(weight: Any) -> Any:
    return lambda true, found: weight * keras.ops.mean((true - found) ** 2, axis=-1)


@keras.saving.register_keras_serializable()
class OwnSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Reads a variable of its own."""

    def __init__(self, rate: Any) -> None:
        self.rate = rate

    def __call__(self, step: Any) -> Any:
        return self.rate * 1.0

    def get_config(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("place", ["loss", "schedule"])
def test_a_variable_that_no_parcel_gives_a_value_to_keeps_nothing(place: str) -> None:
    def packed(value: float) -> bytes:
        variable = keras.Variable(value)
        if place == "loss":
            return pack(net(loss=_own_loss(variable)))
        return pack(net(rate=OwnSchedule(variable)))

    assert read_parcel(packed(1.0)).make == ""
    first = opened(packed(0.1))
    before = observed(first)
    second = opened(packed(0.5))
    assert second is not first
    assert not np.allclose(
        observed(second)[2 if place == "loss" else 0],
        before[2 if place == "loss" else 0],
    )


def test_metrics_that_counted_before_change_no_make() -> None:
    def make() -> Any:
        model = net()
        metrics = [
            keras.metrics.MeanAbsoluteError(),
            keras.metrics.RootMeanSquaredError(),
        ]
        model.compile("adam", "mse", metrics=metrics)
        prepare(model, data())
        return model

    known = read_parcel(pack(make())).make
    assert known
    assert read_parcel(pack(trained(make()))).make == known
