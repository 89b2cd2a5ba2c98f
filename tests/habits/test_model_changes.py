"""What a callback changes in the model, against the same callback in plain Keras."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from itertools import chain
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.errors import ShoalWarning
from tests.habits.cases import assert_close
from tests.habits.knobs import Turn, knob_model, knobs_of, trained

IS_JAX = keras.config.backend() == "jax"
IS_EAGER = keras.config.backend() == "torch"


@pytest.mark.process
@pytest.mark.parametrize(
    "strategy", ["all_reduce", pytest.param("single", marks=pytest.mark.slow)]
)
def test_values_set_by_callbacks_act_as_in_keras(
    strategy: str, kept: shoal.Session
) -> None:
    """Statistics, variables of frozen layers, integers, the optimizer's momentum."""
    plain, ours = knob_model(), knob_model()
    wanted = trained(plain, [Turn()])
    workers = 1 if strategy == "single" else 2
    found = trained(ours, [Turn()], kept.fit, strategy=strategy, workers=workers)
    assert_close(found.history, wanted.history)
    assert_close(ours.get_weights(), plain.get_weights())
    assert knobs_of(ours) == knobs_of(plain)


@pytest.mark.parametrize("strategy", ["aeasgd", "diloco", "downpour", "all_reduce"])
def test_values_set_by_callbacks_act_for_every_worker(strategy: str) -> None:
    """With a learning rate of 0 the loss tells where the knobs stood."""
    plain, ours = knob_model(0.0), knob_model(0.0)
    wanted = trained(plain, [Turn()])
    found = trained(
        ours, [Turn()], shoal.fit, strategy=strategy, workers=3, cluster="inline"
    )
    assert_close(found.history, wanted.history)
    assert knobs_of(ours) == knobs_of(plain)


@pytest.mark.process
@pytest.mark.parametrize("strategy", ["aeasgd:period=1", "local_sgd:period=1"])
def test_values_set_by_callbacks_act_in_every_process(
    strategy: str, kept: shoal.Session
) -> None:
    plain, ours = knob_model(0.0), knob_model(0.0)
    wanted = trained(plain, [Turn()])
    found = trained(ours, [Turn()], kept.fit, strategy=strategy, workers=2)
    assert_close(found.history, wanted.history)
    assert knobs_of(ours) == knobs_of(plain)


class EachBatch(keras.callbacks.Callback):
    """Sets what the next step is to use, from a count of its own."""

    def __init__(self, hook: str, set_to: Callable[[Any, int], None]) -> None:
        super().__init__()
        self._count, self._set = 0, set_to
        setattr(self, hook, self._step)

    def _step(self, batch: int, logs: Any = None) -> None:
        self._count += 1
        self._set(self.model, self._count)


def warm_up(model: Any, count: int) -> None:
    model.optimizer.learning_rate = 0.01 * count


def anneal(model: Any, count: int) -> None:
    model.get_layer("warm").beta.assign(0.1 * count)


@pytest.mark.process
@pytest.mark.parametrize(
    ("strategy", "hook", "set_to"),
    [
        ("all_reduce", "on_train_batch_begin", warm_up),
        ("all_reduce", "on_train_batch_end", anneal),
        ("single", "on_train_batch_end", warm_up),
        ("single", "on_train_batch_begin", anneal),
    ],
)
def test_values_set_before_a_step_act_in_that_step(
    strategy: str, hook: str, set_to: Any, kept: shoal.Session
) -> None:
    plain, ours = knob_model(), knob_model()
    wanted = trained(plain, [EachBatch(hook, set_to)])
    workers = 1 if strategy == "single" else 2
    callbacks = [EachBatch(hook, set_to)]
    found = trained(ours, callbacks, kept.fit, strategy=strategy, workers=workers)
    assert_close(found.history, wanted.history)
    assert_close(ours.get_weights(), plain.get_weights())
    assert knobs_of(ours) == knobs_of(plain)


def test_a_late_learning_rate_is_warned_of_once_with_advice() -> None:
    callbacks = [EachBatch("on_train_batch_begin", warm_up)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trained(
            knob_model(), callbacks, shoal.fit,
            strategy="aeasgd:period=1", workers=2, cluster="inline",
        )  # fmt: skip
    texts = [str(w.message) for w in said if w.category is ShoalWarning]
    assert sum("LearningRateSchedule" in text for text in texts) == 1


# ------------------------------------------------ what code of the model closes over


def weighted_loss(weight: Any) -> Any:
    def loss(y: Any, prediction: Any) -> Any:
        return weight * keras.losses.mean_squared_error(y, prediction)

    return loss


@pytest.mark.process
def test_a_variable_that_the_loss_closes_over_acts_or_is_named() -> None:
    """JAX compiles its value in, in Keras as well."""

    def fit(by: Any, **given: Any) -> Any:
        weight = keras.Variable(1.0, trainable=False, name="weight")

        def double(epoch: int, logs: Any = None) -> None:
            weight.assign(float(epoch + 1))

        callback = keras.callbacks.LambdaCallback(on_epoch_begin=double)
        model = knob_model(loss=weighted_loss(weight))
        return trained(model, [callback], by, epochs=3, **given)

    wanted = fit(None)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = fit(shoal.fit, workers=2)
    assert_close(found.history, wanted.history)
    told = [w for w in said if "closes over" in str(w.message)]
    assert len(told) == int(IS_JAX)


# --------------------------------------------------------------- plain attributes


@pytest.mark.process
def test_a_plain_attribute_acts_as_in_keras_and_is_named_where_it_does_not(
    kept: shoal.Session,
) -> None:
    def fit(by: Any, **given: Any) -> Any:
        model = knob_model()

        def slow(epoch: int, logs: Any = None) -> None:
            model.optimizer.momentum = 0.9 - 0.3 * epoch

        callback = keras.callbacks.LambdaCallback(on_epoch_begin=slow)
        return trained(model, [callback], by, epochs=3, **given)

    wanted = fit(None)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = fit(kept.fit, workers=2)
    assert_close(found.history, wanted.history)
    told = [w for w in said if "'momentum' of the optimizer" in str(w.message)]
    assert len(told) == int(not IS_EAGER)


def test_a_layer_that_is_unfrozen_while_it_trains_is_named() -> None:
    model = knob_model()

    def thaw(epoch: int, logs: Any = None) -> None:
        model.get_layer("cold").trainable = True

    callback = keras.callbacks.LambdaCallback(on_epoch_end=thaw)
    with pytest.warns(ShoalWarning, match=r"'trainable' of Knob 'cold'.*compile"):
        trained(model, [callback], shoal.fit, workers=2, cluster="inline", epochs=2)


# ------------------------------------------------------------- only real changes


def test_nothing_travels_where_callbacks_change_nothing() -> None:
    from shoal.training.changes import ModelChanges

    model = knob_model()
    model.optimizer.build(model.trainable_variables)
    said: list[str] = []
    watch = ModelChanges(model, said.append)
    watch.begin()
    knob = model.get_layer("warm")
    with watch.watching():
        keras.ops.convert_to_numpy(knob.beta)
        knob.beta.assign(0.0)
    with watch.watching():
        knob.beta.assign(5.0)
    with watch.watching():
        knob.beta.assign(0.0)  # as SwapEMAWeights: changed, and put back
    knob.level.assign(7)  # not in a hook: what a worker trained
    assert not watch.collect()
    assert not said
    with watch.watching():
        knob.beta.assign(5.0)
    assert [c.value for c in watch.collect().found.values()] == [5.0]


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_variable_is_watched_whatever_its_size(size: int) -> None:
    from shoal.training.changes import ModelChanges

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(size)])
    model.layers[0].trainable = False
    model.add(keras.layers.Dense(1))
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    watch = ModelChanges(model, print)
    watch.begin()
    kernel = model.layers[0].kernel
    with watch.watching():
        np.asarray(keras.ops.convert_to_numpy(kernel))
    assert not watch.collect()
    with watch.watching():
        kernel.assign(2 * kernel)
    [change] = watch.collect().found.values()
    assert change.value.shape == (1, size)


# --------------------------------------------------------- runs that are gone on with


class Begins(keras.callbacks.Callback):
    """Sets a rate and knobs when training begins, and others while it goes on."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.05
        self.model.get_layer("cold").level.assign(1)
        self.model.get_layer("warm").beta.assign(0.5)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.get_layer("cold").beta.assign(0.25 * epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.02
        self.model.get_layer("cold").level.assign(7)


class BreaksOff(Begins):
    """The same, and ends a run before its last epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_begin(epoch, logs)
        if epoch == 3:
            raise KeyboardInterrupt


@pytest.mark.process
@pytest.mark.parametrize("strategy", ["all_reduce", "single"])
def test_a_resumed_run_begins_with_what_callbacks_set_then(
    strategy: str, tmp_path: Any
) -> None:
    """The judge is plain Keras, called again for the epochs that are left."""
    with pytest.raises(KeyboardInterrupt):
        trained(
            knob_model(), [BreaksOff()], shoal.fit, run=str(tmp_path),
            strategy=strategy, workers=1 if strategy == "single" else 2,
        )  # fmt: skip
    [folder] = tmp_path.iterdir()
    found = shoal.resume(folder, callbacks=[Begins()])
    # Of the last epoch that ended, the checkpoint may not be written yet.
    lines = [f.read_text().splitlines() for f in folder.glob("events/*.jsonl")]
    events = [json.loads(line) for line in chain(*lines)]
    [epoch] = [e["epoch"] for e in events if e["kind"] == "run_resumed"]
    assert epoch > 0
    plain = knob_model()
    first = trained(plain, [Begins()], epochs=epoch)
    last = trained(plain, [Begins()], initial_epoch=epoch)
    wanted = first.history["loss"] + last.history["loss"]
    np.testing.assert_allclose(found.history["loss"], wanted, rtol=1e-4)
    assert_close(found.model.get_weights(), plain.get_weights())
    assert knobs_of(found.model) == knobs_of(plain)
