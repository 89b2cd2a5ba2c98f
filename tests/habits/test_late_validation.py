"""Validation by a process of its own: the numbers of Keras, some epochs later."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.data.training import scored_source
from shoal.errors import ConfigError, PlanError, WorkerFailed
from shoal.models.travel import pack
from shoal.training.evaluator import Evaluator
from shoal.training.user_model import UserModel
from shoal.training.validation import Validation
from tests.habits.cases import data, make_model


def plan(**given: Any) -> Any:
    x, y = data(200)
    usual: dict[str, Any] = {"validation": "async", "validation_data": data(64)}
    return shoal.plan(make_model(), x, y, **{**usual, **given})


def test_a_plan_says_who_validates() -> None:
    assert "64 samples, by a process of its own" in plan().explain()
    assert "64 samples, in this process" in plan(validation="blocking").explain()
    assert plan().to_json()["validation"] == "async"


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"validation": "later"}, ConfigError, "Expected 'blocking' or 'async'"),
        ({"validation_data": None}, PlanError, "without data to validate on"),
        ({"cluster": "inline"}, PlanError, "Leave one of the two out"),
        ({"strategy": "ensemble"}, PlanError, "ensemble, which validates each"),
        (
            {"callbacks": [keras.callbacks.EarlyStopping()]},
            PlanError,
            r"EarlyStopping\(monitor='val_loss'\) with validation='async'",
        ),
        (
            {"callbacks": [keras.callbacks.ModelCheckpoint("{val_loss}.keras")]},
            PlanError,
            r"ModelCheckpoint\(filepath='\{val_loss\}.keras'\)",
        ),
    ],
)
def test_callbacks_that_need_scores_are_refused(
    given: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        plan(**given)


def test_callbacks_that_do_without_scores_are_taken() -> None:
    callbacks = [
        keras.callbacks.EarlyStopping("loss"),
        keras.callbacks.ModelCheckpoint("{epoch}.keras"),
    ]
    assert plan(callbacks=callbacks).request.validation == "async"


@pytest.fixture
def evaluator() -> Iterator[Evaluator]:
    made = evaluator_of(make_model())
    yield made
    made.close()


def evaluator_of(model: Any) -> Evaluator:
    source = scored_source((*data(64), None))
    return Evaluator(
        packed=pack(model, sample=source.take(slice(0, 2))),
        validation=Validation(source=source, batch_size=32),
        backend=keras.backend.backend(),
        threads=1,
        heed=lambda: None,
    )


@pytest.mark.process
def test_history_and_best_model_are_those_of_a_run_that_waits(tmp_path: Path) -> None:
    x, y = data(300)
    found: dict[str, Any] = {}
    with shoal.Session() as session:
        for how in ("blocking", "async"):
            model = make_model()
            history = session.fit(
                model, x, y, validation=how, validation_data=data(100, seed=1),
                validation_freq=[1, 2, 5], epochs=5, workers=1, batch_size=32, seed=1,
                verbose=0, run=str(tmp_path / how),
            )  # fmt: skip
            url = history.run.url.removeprefix("file://")
            best = keras.models.load_model(f"{url}/models/best.keras", compile=False)
            found[how] = (history, best.get_weights(), model.get_weights())
    waited, late = found["blocking"], found["async"]
    assert late[0].history == waited[0].history
    assert len(late[0].history["val_loss"]) == 3
    assert late[0].run.summary().metrics == waited[0].run.summary().metrics
    for which in (1, 2):
        for one, other in zip(late[which], waited[which], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.process
def test_a_score_is_computed_although_the_process_dies(evaluator: Evaluator) -> None:
    model = make_model()
    first = UserModel(model).moved()
    second = {place: 2 * weight for place, weight in first.items()}
    evaluator.start()
    os.kill(evaluator.pid, signal.SIGKILL)
    found = evaluator.ask(0, first) + evaluator.ask(3, second)
    found += evaluator.drain()
    assert [score.epoch for score in found] == [0, 3]
    x, y = data(64)
    for score, weights in zip(found, (first, second), strict=True):
        UserModel(model).put(weights)
        wanted = model.evaluate(x, y, batch_size=32, verbose=0, return_dict=True)
        assert score.metrics == wanted


class Shy(keras.layers.Layer):
    """Works in the process it was made in, and in no other."""

    home = os.getpid()

    def call(self, x: Any) -> Any:
        if os.getpid() != self.home:
            raise RuntimeError("too far from home")
        return x


@pytest.mark.process
def test_an_error_of_the_users_code_is_shown() -> None:
    model = keras.Sequential([keras.Input((8,)), Shy(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    evaluator = evaluator_of(model)
    try:
        evaluator.ask(0, UserModel(model).moved())
        with pytest.raises(WorkerFailed, match="too far from home"):
            evaluator.drain()
    finally:
        evaluator.close()
