"""Optimizers beside the model's own, on each backend; plain Keras is the judge.

On JAX Keras hands a `train_step` the variables of the model's own optimizer alone:
another one's take part as variables of the model.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.errors import PlanError
from shoal.models.inspection import prepare
from shoal.models.trial import try_step
from shoal.optimizers import optimizer_variables, optimizers_of
from tests.backends.cases import BACKEND

ROWS, BATCH_SIZE = 96, 16
ON_JAX = BACKEND == "jax"
optimizers = keras.optimizers


def data() -> dict[str, Any]:
    x = np.random.default_rng(1).standard_normal((ROWS, 4)).astype("f4")
    return {"x": x, "y": x.sum(1, keepdims=True)}


class Base(keras.Model):
    """Two parts, and steps for whatever optimizers there are."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = keras.layers.Dense(6, "tanh")
        self.wide = keras.layers.Dense(1)
        self.deep.build((None, 4))
        self.wide.build((None, 6))
        self.built = True

    def call(self, x: Any, training: bool = False) -> Any:
        return self.wide(self.deep(x))

    @property
    def first(self) -> list[Any]:
        return self.deep.trainable_variables

    @property
    def rest(self) -> list[Any]:
        return self.wide.trainable_variables

    def gradients(self, data: Any, variables: list[Any]) -> tuple[Any, list[Any]]:
        """Loss and gradients, on TensorFlow and torch."""
        x, y = data
        if BACKEND == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            return loss, tape.gradient(loss, variables)
        self.zero_grad()
        loss = self.compute_loss(x, y, self(x, training=True))
        loss.backward()  # pyright: ignore
        return loss, [v.value.grad for v in variables]

    def applied(self, optimizer: Any, gradients: Any, variables: Any) -> None:
        if BACKEND == "torch":
            import torch

            with torch.no_grad():
                optimizer.apply(gradients, variables)
        else:
            optimizer.apply(gradients, variables)

    def told(self, loss: Any) -> dict[str, Any]:
        self._loss_tracker.update_state(loss)
        return {"loss": self._loss_tracker.result()}


class Two(Base):
    """One optimizer a part."""

    def compile(self, first: Any, second: Any, **given: Any) -> None:  # pyright: ignore
        super().compile(optimizer=first, **given)
        self.second = second
        if ON_JAX:
            first.build(self.first)
            second.build(self.rest)
            self.second_variables = second.variables

    def train_step(self, *given: Any) -> Any:  # pyright: ignore
        return self._jax_step(*given) if ON_JAX else self._step(*given)

    def _step(self, data: Any) -> Any:
        loss, found = self.gradients(data, self.first + self.rest)
        self.applied(self.optimizer, found[:2], self.first)
        self.applied(self.second, found[2:], self.rest)
        return self.told(loss)

    def _jax_step(self, state: Any, data: Any) -> Any:
        import jax.numpy as jnp

        trainable, others, own, metrics = state
        x, y = data

        import jax

        def loss_of(values: Any) -> Any:
            found, _ = self.stateless_call(values, others, x, training=True)
            return jnp.mean((found - y) ** 2)

        loss, found = jax.value_and_grad(loss_of)(trainable)
        first, own = self.optimizer.stateless_apply(own, found[:2], trainable[:2])
        places = {id(v): n for n, v in enumerate(self.non_trainable_variables)}
        ours = [places[id(v)] for v in self.second.variables]
        slots = [others[place] for place in ours]
        rest, slots = self.second.stateless_apply(slots, found[2:], trainable[2:])
        others = list(others)
        for place, value in zip(ours, slots, strict=True):
            others[place] = value
        return {"loss": loss}, ([*first, *rest], others, own, metrics)


def schedule() -> Any:
    return optimizers.schedules.ExponentialDecay(0.1, 4, 0.5)


def two(second: Any = None) -> Any:
    keras.utils.set_random_seed(3)
    model = Two()
    second = second or optimizers.SGD(schedule(), momentum=0.9)
    model.compile(optimizers.Adam(0.02), second, loss="mse")
    return model


class Listed(Two):
    """The optimizers lie in a list and a dictionary, and the model has none itself."""

    def compile(self, first: Any, second: Any, **given: Any) -> None:  # pyright: ignore
        keras.Model.compile(self, optimizer=None, **given)
        self.parts: Any = [{"first": first}, [second]]

    def _step(self, data: Any) -> Any:
        loss, found = self.gradients(data, self.first + self.rest)
        self.applied(self.parts[0]["first"], found[:2], self.first)
        self.applied(self.parts[1][0], found[2:], self.rest)
        return self.told(loss)


class Adversaries(keras.Model):
    """A GAN as in Keras' guide: each part compiled with an optimizer of its own.

    The discriminator takes two steps for each one of the generator, whose gradient
    depends on them. `compile` leaves the model's own optimizer, which nobody applies.
    """

    def __init__(self) -> None:
        super().__init__()
        layers = keras.layers
        self.critic = keras.Sequential(
            [keras.Input((4,)), layers.Dense(6, "tanh"), layers.Dense(1)]
        )
        self.maker = keras.Sequential([keras.Input((4,)), layers.Dense(4)])
        self.built = True

    def compile(self) -> None:  # pyright: ignore
        super().compile()
        self.critic.compile(optimizers.Adam(0.01, beta_1=0.5))
        self.maker.compile(optimizers.RMSprop(schedule()))

    def call(self, x: Any) -> Any:
        return self.maker(x)

    def _moved(self, part: Any, loss_of: Any) -> Any:
        variables = part.trainable_variables
        if BACKEND == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = loss_of()
            part.optimizer.apply(tape.gradient(loss, variables), variables)
            return loss
        import torch

        self.zero_grad()
        loss = loss_of()
        loss.backward()
        with torch.no_grad():
            part.optimizer.apply([v.value.grad for v in variables], variables)
        return loss.detach()

    def train_step(self, data: Any) -> Any:  # pyright: ignore
        ops, x = keras.ops, data[0]
        critic: Any = None
        for _ in range(2):
            made = self.maker(x)
            critic = self._moved(
                self.critic,
                lambda made=made: (
                    ops.mean(self.critic(made) ** 2)
                    + ops.mean((self.critic(x) - 1) ** 2)
                ),
            )
        maker = self._moved(
            self.maker, lambda: ops.mean((self.critic(self.maker(x)) - 1) ** 2)
        )
        return {"critic": critic, "maker": maker}


def adversaries() -> Any:
    keras.utils.set_random_seed(3)
    model = Adversaries()
    model.compile()
    return model


def listed() -> Any:
    keras.utils.set_random_seed(3)
    model = Listed()
    model.compile(
        optimizers.Adam(0.02), optimizers.SGD(schedule(), momentum=0.9), loss="mse"
    )
    return model


MAKERS: dict[str, Any] = {"two": two}
if not ON_JAX:
    MAKERS |= {"listed": listed, "adversaries": adversaries}


def fit(model: Any, **given: Any) -> Any:
    usual: dict[str, Any] = {
        "batch_size": BATCH_SIZE, "epochs": 3, "shuffle": False, "verbose": 0
    }  # fmt: skip
    if "strategy" not in given:
        return model.fit(**data(), **usual)
    usual |= {"cluster": "inline", "run": False, "seed": 1}
    return shoal.fit(model, **data(), **{**usual, **given})


def values(variables: Any) -> list[Any]:
    return [np.array(keras.ops.convert_to_numpy(v.value)) for v in variables]


def by_name(optimizer: Any, model: Any) -> dict[str, Any]:
    """Variables of an optimizer by names that two models have in common.

    On TensorFlow Keras builds one when it is applied, and for what it is given.
    """
    places = {v.path.replace("/", "_"): n for n, v in enumerate(model.variables)}
    found: dict[str, Any] = {}
    for variable in optimizer.variables:
        owner = max((p for p in places if p in variable.path), key=len, default="")
        kind = variable.name.removeprefix(owner)
        found[f"{places.get(owner)} {kind}"] = variable
    return found


def same(ours: Any, plain: Any) -> None:
    for mine, theirs in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    for one, other in zip(optimizers_of(ours), optimizers_of(plain), strict=True):
        known = by_name(one, ours)
        for name, theirs in by_name(other, plain).items():
            found = values([known[name], theirs])
            np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MAKERS)
def test_one_worker_is_plain_keras_with_the_state_of_all(name: str) -> None:
    """Slots, counts of steps, schedules; a second fit goes on where the first ended."""
    plain, ours = MAKERS[name](), MAKERS[name]()
    kept: Any = None
    found: Any = None
    for _ in range(2):
        kept, found = fit(plain), fit(ours, strategy="single", workers=1)
        same(ours, plain)
    if name != "adversaries" and not ON_JAX:  # no metric: Keras shows the last step's
        np.testing.assert_allclose(
            found.history["loss"], kept.history["loss"], rtol=1e-4
        )


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("strategy", ["local_sgd:period=2", "aeasgd:period=2"])
def test_several_workers_bring_the_state_of_all_back(name: str, strategy: str) -> None:
    plain, ours = MAKERS[name](), MAKERS[name]()
    fit(plain)
    fit(ours, strategy=strategy, workers=2)
    for one, other in zip(optimizers_of(ours), optimizers_of(plain), strict=True):
        known = by_name(one, ours)
        for name, theirs in by_name(other, plain).items():
            found, wanted = values([known[name], theirs])
            if "iteration" in theirs.path:  # where plain Keras stands
                assert found == wanted, theirs.path
            elif wanted.any():
                assert found.any(), theirs.path


def test_schedules_of_all_are_read_at_the_run_clock() -> None:
    """Two workers that take half of the steps each end at the rate of plain Keras."""
    seen: list[float] = []

    class Rates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(float(self.model.second.learning_rate))

    fit(two(), strategy="local_sgd:period=1", workers=2, callbacks=[Rates()])
    steps = np.arange(1, 4) * ROWS / BATCH_SIZE
    assert seen == pytest.approx(0.1 * 0.5 ** (steps / 4), rel=1e-5)


@pytest.mark.parametrize("name", MAKERS)
def test_gradients_of_two_updates_are_refused_in_plan(name: str) -> None:
    model = MAKERS[name]()
    with pytest.raises(PlanError, match=r"applies gradients [23] times.*local_sgd"):
        shoal.plan(model, **data(), batch_size=BATCH_SIZE, workers=2)


class One(Two):
    """All variables by the second optimizer; nobody applies the first."""

    def _step(self, data: Any) -> Any:
        loss, found = self.gradients(data, self.first + self.rest)
        self.applied(self.second, found, self.first + self.rest)
        return self.told(loss)


@pytest.mark.skipif(ON_JAX, reason="Keras carries the model's own optimizer only")
def test_gradients_go_to_the_optimizer_that_is_applied() -> None:
    def make() -> Any:
        keras.utils.set_random_seed(3)
        model = One()
        model.compile(optimizers.SGD(1.0), optimizers.Adam(schedule()), loss="mse")
        return model

    plain, ours = make(), make()
    kept, found = fit(plain), fit(ours, strategy="all_reduce", workers=2)
    same(ours, plain)
    np.testing.assert_allclose(found.history["loss"], kept.history["loss"], rtol=1e-4)


class Part(Two):
    """A variable that no optimizer is given, and one that has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = keras.layers.Dense(2)
        self.idle.build((None, 2))

    def _step(self, data: Any) -> Any:
        mine = self.first + self.idle.trainable_variables
        loss, found = self.gradients(data, mine)
        self.applied(self.optimizer, found, mine)
        return self.told(loss)


@pytest.mark.skipif(ON_JAX, reason="gradients on JAX are zeros, never missing")
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_variables_without_a_gradient_stay_as_in_keras() -> None:
    """Weight decay would move them if they were given zeros."""

    def make() -> Any:
        keras.utils.set_random_seed(3)
        model = Part()
        decayed = optimizers.AdamW(0.02, weight_decay=0.1)
        model.compile(decayed, optimizers.SGD(), loss="mse")
        decayed.build(model.first + model.idle.trainable_variables)
        return model

    plain, ours = make(), make()
    fit(plain)
    fit(ours, strategy="all_reduce", workers=2)
    same(ours, plain)


ELSEWHERE = optimizers.SGD(0.1, momentum=0.9)


class Elsewhere(Two):
    """Applies an optimizer that is a global."""

    def _step(self, data: Any) -> Any:
        loss, found = self.gradients(data, self.first + self.rest)
        self.applied(ELSEWHERE, found, self.first + self.rest)
        return self.told(loss)

    def _jax_step(self, state: Any, data: Any) -> Any:
        found = [v.value for v in ELSEWHERE.variables]
        ELSEWHERE.stateless_apply(found, state[0], state[0])
        return {"loss": 0.0}, state


def test_an_optimizer_that_the_model_does_not_hold_is_named() -> None:
    model = two()
    model.__class__ = Elsewhere
    ELSEWHERE.built = False
    ELSEWHERE.build(model.trainable_variables)
    given: dict[str, Any] = {**data(), "batch_size": BATCH_SIZE, "workers": 2}
    with pytest.raises(PlanError, match=r"SGD '.*self\.second = optimizer"):
        shoal.plan(model, **given)
    plan = shoal.plan(model, **given, strategy="local_sgd")
    assert any("which the model does not hold" in text for text in plan.warnings)


class Clipping(Two):
    """Clips weights behind the optimizer's back, and follows them with another."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = keras.layers.Dense(6, trainable=False)
        self.slow.build((None, 4))

    def _step(self, data: Any) -> Any:
        loss, found = self.gradients(data, self.first + self.rest)
        self.applied(self.optimizer, found, self.first + self.rest)
        for variable in self.rest:
            variable.assign(keras.ops.clip(variable, -0.5, 0.5))
        self.slow.kernel.assign(0.9 * self.slow.kernel + 0.1 * self.deep.kernel)
        return self.told(loss)

    def _jax_step(self, state: Any, data: Any) -> Any:
        logs, (trainable, *rest) = super()._jax_step(state, data)
        clipped = [keras.ops.clip(v, -0.5, 0.5) for v in trainable[2:]]
        return logs, ([*trainable[:2], *clipped], *rest)


def test_changes_of_weights_after_the_update_are_found() -> None:
    keras.utils.set_random_seed(3)
    model = Clipping()
    model.compile(optimizers.SGD(0.1), optimizers.SGD(0.1), loss="mse")
    rows = tuple(array[:4] for array in data().values())
    prepare(model, rows)
    found = try_step(model, rows).beside
    assert model.wide.kernel.path in found
    if ON_JAX:
        return  # other variables are not looked at
    assert found == (*(v.path for v in model.rest), model.slow.kernel.path)
    with pytest.raises(PlanError, match="changes variables by itself"):
        shoal.plan(model, **data(), batch_size=BATCH_SIZE, workers=2)


def test_the_trial_step_changes_nothing() -> None:
    model = two()
    rows = tuple(array[:4] for array in data().values())
    prepare(model, rows)
    generator = keras.random.SeedGenerator(7)
    model.generator = generator
    model.fit(**data(), batch_size=BATCH_SIZE, verbose=0)
    held = [*model.variables, *optimizer_variables(model), *model.metrics_variables]
    before, drawn = values(held), np.random.get_state(legacy=False)["state"]["key"]
    assert len(try_step(model, rows).applies or ()) == 2
    for variable, value in zip(held, before, strict=True):
        np.testing.assert_array_equal(values([variable])[0], value, variable.path)
    np.testing.assert_array_equal(
        np.random.get_state(legacy=False)["state"]["key"], drawn
    )
