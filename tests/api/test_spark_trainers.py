"""Trainers of dist-keras: arguments, defaults and strategies, without Spark."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import pytest

from shoal import spark, strategies
from shoal.errors import ConfigError
from shoal.spark.optimizer_names import optimizer_of
from shoal.spark.trainers import Trainer

GIVEN = ("model", "sgd", "mse")
TABLE: dict[str, tuple[dict[str, Any], Any]] = {
    "SingleTrainer": ({}, strategies.Single()),
    "AveragingTrainer": ({"num_workers": 2}, strategies.Averaging()),
    "EASGD": (
        {"num_workers": 2, "rho": 5.0, "learning_rate": 0.01},
        strategies.EASGD(rho=5.0, learning_rate=0.01),
    ),
    "AEASGD": (
        {"num_workers": 2, "communication_window": 32, "rho": 5.0,
         "learning_rate": 0.1},
        strategies.AEASGD(period=32, rho=5.0, learning_rate=0.1),
    ),
    "EAMSGD": (
        {"num_workers": 2, "communication_window": 32, "rho": 5.0,
         "learning_rate": 0.1, "momentum": 0.9},
        strategies.EAMSGD(period=32, rho=5.0, learning_rate=0.1, momentum=0.9),
    ),
    "DOWNPOUR": (
        {"num_workers": 2, "communication_window": 5, "learning_rate": None},
        strategies.Downpour(period=5),
    ),
    "ADAG": (
        {"num_workers": 2, "communication_window": 12}, strategies.ADAG(period=12)
    ),
    "DynSGD": (
        {"num_workers": 2, "communication_window": 5}, strategies.DynSGD(period=5)
    ),
    "LocalSGD": (
        {"num_workers": 2, "communication_window": 10}, strategies.LocalSGD()
    ),
    "DiLoCo": ({"num_workers": 2, "communication_window": 50}, strategies.DiLoCo()),
    "AsyncDiLoCo": (
        {"num_workers": 2, "communication_window": 50}, strategies.AsyncDiLoCo()
    ),
    "AllReduce": ({"num_workers": 2}, strategies.AllReduce()),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_arguments_and_defaults_are_those_of_the_table(name: str) -> None:
    further, strategy = TABLE[name]
    kind: Any = getattr(spark, name)
    parameters = inspect.signature(kind).parameters
    common = {
        "metrics": ("accuracy",), "features_col": "features", "label_col": "label",
        "batch_size": 32, "num_epoch": 1,
    }  # fmt: skip
    plain = [p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in plain[:3]] == ["keras_model", "worker_optimizer", "loss"]
    assert {p.name: p.default for p in plain[3:]} == {**common, **further}
    assert [p.name for p in plain[3:]] == [*common, *further]
    trainer = kind(*GIVEN)
    assert trainer.strategy() == strategy
    assert trainer.workers == (1 if name == "SingleTrainer" else (1, 2))


def test_the_calls_of_the_notebook() -> None:
    by_name = {"keras_model": "m", "worker_optimizer": "adagrad", "loss": "mse"}
    easgd = spark.EASGD(
        **by_name, batch_size=64, num_epoch=1, num_workers=3, rho=5.0,
        learning_rate=0.04,
    )  # fmt: skip
    strategy: Any = easgd.strategy()
    assert strategy.moving_rate_for(3) == pytest.approx(0.2)
    downpour = spark.DOWNPOUR(**by_name, batch_size=62, learning_rate=0.05)
    assert float(downpour.optimizer().learning_rate) == pytest.approx(0.05)
    assert spark.AsynchronousEASGD is spark.AEASGD
    assert spark.AsynchronousEAMSGD is spark.EAMSGD


@pytest.mark.parametrize(
    ("name", "rate"),
    [("adagrad", 0.01), ("adadelta", 1.0), ("nadam", 0.002), ("sgd", 0.01)],
)
def test_names_have_the_rates_of_keras_1(
    name: str, rate: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert float(optimizer_of(name).learning_rate) == pytest.approx(rate)
    assert (f"Keras 1, {rate:g}" in capsys.readouterr().out) is (name != "sgd")


def test_an_optimizer_keeps_its_rate_and_is_copied() -> None:
    mine = keras.optimizers.Adagrad(0.3)
    found = optimizer_of(mine, 0.5)
    assert found is not mine
    assert float(found.learning_rate) == pytest.approx(0.3)


@pytest.mark.parametrize(
    "wrong", [{"batch_size": 0}, {"num_epoch": 1.5}, {"num_workers": 0}]
)
def test_wrong_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}=.* cannot be used"):
        spark.ADAG(*GIVEN, **wrong)


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(TypeError, match="'loss'"):
        spark.ADAG("model", "sgd")


def test_nothing_is_known_before_training() -> None:
    with pytest.raises(ConfigError, match="ADAG has not trained yet"):
        _ = spark.ADAG(*GIVEN).run


def test_a_trainer_of_ones_own_is_one_line() -> None:
    class Mine(spark.DistributedTrainer):
        def strategy(self) -> Any:
            return strategies.LocalSGD(period=3)

    assert Mine(*GIVEN, num_workers=4).workers == (1, 4)
    assert issubclass(Mine, Trainer)
