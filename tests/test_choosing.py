"""What `strategy="auto"` chooses, rule by rule, and what `plan` says about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import shoal
from shoal.errors import ConfigError
from shoal.facts import DataFacts, MachineFacts, ModelFacts, Multiplications, NodeFacts
from shoal.plan import Plan, Request, resolve
from shoal.plan.choosing import Situation, choose
from shoal.strategies import Auto, get
from tests.api.problems import line, linear

SHORT = {"step_s": 0.001, "exchange_s": 0.002}
NORMED = {"has_moving_averages": True}
LONG = {"step_s": 0.2, "exchange_s": 0.002}
MODEL = ModelFacts(
    name="mlp", parameters=380_000, statistics=0, optimizer="Adagrad",
    multiplications=Multiplications(dense=380_000),
)  # fmt: skip
DATA = DataFacts(rows=64_000, size_bytes=8_000_000)
TWO = MachineFacts(cores=2)


def nodes(*cores: int) -> MachineFacts:
    found = tuple(NodeFacts(name=f"10.0.0.{n}", cores=c) for n, c in enumerate(cores))
    return MachineFacts(cores=min(cores), nodes=found)


@pytest.mark.parametrize(
    ("facts", "name", "period"),
    [
        ({"same_curve": True, **SHORT}, "all_reduce", 1),
        ({"workers": 1, **SHORT}, "all_reduce", 1),
        ({"workers": 1, "refusal": "two optimizers"}, "single", 10),
        ({"library": "nccl"}, "all_reduce", 1),
        ({"steps": 9, **SHORT}, "all_reduce", 1),
        ({"steps": 29, "epochs": 10, "workers": 32, **SHORT}, "all_reduce", 1),
        ({"steps": 30, "epochs": 10, "workers": 32, **SHORT}, "diloco", 10),
        ({"steps": 20, "epochs": 2, **SHORT}, "diloco", 6),  # a trial
        ({**LONG}, "all_reduce", 1),
        ({**LONG, "refusal": "two optimizers"}, "diloco", 50),
        ({**LONG, "exchange_s": 0.02}, "diloco", 50),
        ({**SHORT}, "diloco", 50),
        ({}, "diloco", 50),
        ({**SHORT, "exchange_s": 0.1}, "diloco", 333),
        ({**SHORT, "exchange_s": 9.0, "steps": 10_000}, "diloco", 500),
        ({**SHORT, "steps": 60}, "diloco", 20),
        ({**SHORT, "period": 7}, "diloco", 7),
        ({**SHORT, "is_equal": False, "is_ordered": True}, "diloco", 50),
        ({**SHORT, "is_equal": False}, "aeasgd", 40),
        ({**SHORT, "is_equal": False, "workers": 8}, "async_diloco", 50),
        ({**SHORT, **NORMED}, "local_sgd", 40),
        ({**SHORT, **NORMED, "is_equal": False, "workers": 15}, "aeasgd", 40),
        ({**SHORT, **NORMED, "is_equal": False, "workers": 16}, "async_diloco", 50),
    ],
)
def test_the_strategy_of_a_situation(facts: dict[str, Any], name: str, period: int):
    given: dict[str, Any] = {"workers": 2, **facts}
    found = choose(Situation(**given))
    assert (found.strategy.name, found.strategy.period) == (name, period)
    assert found.reason


@given(
    workers=some.integers(1, 64),
    step_s=some.floats(0, 10),
    exchange_s=some.floats(0, 10),
    steps=some.integers(1, 10_000),
    epochs=some.integers(0, 20),
    is_equal=some.booleans(),
    refusal=some.sampled_from(["", "two optimizers"]),
)
def test_a_strategy_that_may_diverge_is_never_chosen(workers: int, **facts: Any):
    found = choose(Situation(workers=workers, **facts)).strategy
    assert found.overshoot(workers) is None
    assert 1 <= found.period <= 500
    assert found.exchanges == "weights" or not facts["refusal"]


def plan(strategy: str = "auto", **given: Any) -> Plan:
    facts: dict[str, Any] = {"model": MODEL, "data": DATA, "machine": TWO}
    facts |= {name: given.pop(name) for name in [*given] if name in facts}
    request = Request(strategy=get(strategy), batch_size=64, **given)
    return resolve(request, **facts)


@pytest.mark.parametrize(
    ("arguments", "name", "workers"),
    [
        ({}, "diloco", 2),
        ({"strategy": "auto:same_curve=true"}, "all_reduce", 1),
        ({"workers": 1}, "all_reduce", 1),
        ({"machine": MachineFacts(cores=1)}, "all_reduce", 1),
        (
            {"model": replace(MODEL, multiplications=Multiplications(convolved=10**8))},
            "all_reduce",
            2,
        ),
        ({"machine": nodes(2, 2)}, "diloco", 2),
        ({"machine": nodes(2, 4)}, "aeasgd", 2),
        ({"machine": nodes(2, 4), "deterministic": True}, "diloco", 2),
        ({"workers": (1, 2)}, "aeasgd", 2),
        ({"workers": (1, 2), "strategy": "auto:equal_workers=true"}, "diloco", 2),
        ({"quorum": 1.0}, "diloco", 2),
        ({"overlap": True}, "diloco", 2),
        ({"strategy": "auto:period=20"}, "diloco", 2),
    ],
)
def test_a_plan_says_what_was_chosen_and_why(
    arguments: dict[str, Any], name: str, workers: int
):
    found = plan(**arguments)
    assert (found.strategy.name, found.workers) == (name, workers)
    assert found.request.strategy.name == name
    assert f"\n  strategy   {found.choice}" in found.explain()
    assert found.to_json()["strategy"]["name"] == name
    assert "note" not in found.explain()


@pytest.mark.parametrize(
    ("is_normed", "is_trained", "name"),
    [(False, True, "diloco"), (True, True, "local_sgd"), (True, False, "diloco")],
)
def test_moving_averages_of_a_model_that_change(
    is_normed: bool, is_trained: bool, name: str
):
    """Layers that are frozen keep what they have, also within another model."""
    inside = [keras.Input((4,)), keras.layers.Dense(8)]
    if is_normed:
        inside.append(keras.layers.BatchNormalization(trainable=is_trained))
    model = keras.Sequential([keras.Sequential(inside), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x, y = np.zeros((64_000, 4), "f4"), np.zeros(64_000, "f4")
    given: dict[str, Any] = {"workers": 2, "cluster": "inline", "batch_size": 64}
    assert shoal.plan(model, x, y, strategy="auto", **given).strategy.name == name
    found = shoal.plan(model, x, y, strategy="diloco", **given)
    assert found.estimates_averages is (name == "local_sgd")


def test_a_plan_of_the_users_strategy_has_no_choice():
    assert plan("diloco").choice == ""
    assert "\n  strategy " not in plan("diloco").explain()


def test_auto_is_checked_as_other_strategies():
    for wrong in ("auto:same_curve=1", "auto:equal_workers=2", "auto:period=-1"):
        with pytest.raises(ConfigError):
            get(wrong)
    with pytest.raises(ConfigError, match="unknown parameter of auto 'perod'"):
        get("auto:perod=1")
    assert get(Auto).name == "auto"


def test_a_run_has_the_strategy_that_was_chosen():
    history = shoal.fit(
        linear(), *line(), strategy="auto", workers=2, cluster="inline", batch_size=4,
        epochs=2, verbose=0, run=False, seed=1,
    )  # fmt: skip
    assert history.run.summary().strategy == "diloco"
    assert history.history["loss"][1] < history.history["loss"][0]


def test_an_unknown_strategy_names_auto_too() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'auto'(?s:.*)Known: .*auto,"):
        get("autos")
