"""Trainers of dist-keras: arguments, defaults and strategies, without Spark."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from shoal import spark, strategies
from shoal.errors import ConfigError
from shoal.spark.optimizer_names import optimizer_of
from tests.habits.cases import data, make_model

GIVEN = ("model", "sgd", "mse")
TABLE: dict[str, tuple[dict[str, Any], Any]] = {
    "SingleTrainer": ({}, strategies.Single()),
    "AveragingTrainer": ({"num_workers": 2}, strategies.Averaging()),
    "EASGD": (
        {"num_workers": 2, "rho": 5.0, "learning_rate": 0.01, "master_port": 5000},
        strategies.EASGD(rho=5.0, learning_rate=0.01, period=1),
    ),
    "EnsembleTrainer": ({"num_ensembles": 2}, strategies.Ensemble(members=2)),
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


def test_results_before_training_are_an_error() -> None:
    with pytest.raises(ConfigError, match="ADAG has not trained yet"):
        _ = spark.ADAG(*GIVEN).run


def test_a_trainer_of_ones_own_is_one_line() -> None:
    class Mine(spark.DistributedTrainer):
        def strategy(self) -> Any:
            return strategies.LocalSGD(period=3)

    assert Mine(*GIVEN, num_workers=4).workers == (1, 4)
    assert issubclass(Mine, spark.Trainer)


# ------------------------------------------------------------- set, get and JSON


def test_numbers_are_set_and_got() -> None:
    trainer = spark.AEASGD(*GIVEN)
    for name in ("num_workers", "num_epoch", "parallelism_factor", "max_prefetch"):
        getattr(trainer, f"set_{name}")(7)
        assert getattr(trainer, f"get_{name}")() == getattr(trainer, name) == 7
    trainer.set_minibatch_size(9)
    assert trainer.get_minibatch_size() == trainer.batch_size == 9
    with pytest.raises(ConfigError, match="num_workers=0 cannot be used"):
        trainer.set_num_workers(0)


def test_the_rate_of_elastic_trainers_is_the_elastic_one() -> None:
    trainer = spark.AEASGD("model", "adagrad", "mse")
    trainer.set_learning_rate(0.05)
    assert trainer.get_learning_rate() == 0.05
    assert trainer.strategy() == strategies.AEASGD(
        period=32, rho=5.0, learning_rate=0.05
    )
    assert trainer.get_worker_rate() == 0.01


@pytest.mark.parametrize("optimizer", ["adagrad", keras.optimizers.SGD(0.3)])
def test_the_rate_of_other_trainers_is_the_optimizers(optimizer: Any) -> None:
    trainer = spark.DOWNPOUR("model", optimizer, "mse", learning_rate=0.05)
    is_named = isinstance(optimizer, str)
    assert trainer.get_learning_rate() == pytest.approx(0.05 if is_named else 0.3)
    trainer.set_learning_rate(0.007)
    assert trainer.get_learning_rate() == 0.007
    assert float(trainer.optimizer().learning_rate) == pytest.approx(0.007)


def test_a_master_that_is_not_the_driver_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions = pytest.importorskip("shoal.launchers.spark_session")
    monkeypatch.setattr(sessions, "active_context", lambda: None)
    host = SimpleNamespace(host="10.0.0.1")
    monkeypatch.setattr(sessions, "read_session", lambda context: host)
    trainer = spark.ADAG(*GIVEN)
    trainer.check_master()
    trainer.set_master("10.0.0.1")
    trainer.check_master()
    trainer.set_master("10.0.0.2")
    assert trainer.get_master() == "10.0.0.2"
    with pytest.raises(ConfigError, match=r"address of the driver, '10\.0\.0\.1'"):
        trainer.check_master()


def test_a_trainer_is_restored_from_json() -> None:
    trainer = spark.EAMSGD(
        "model", keras.optimizers.SGD(0.3), keras.losses.MeanSquaredError(),
        metrics=["mae"], batch_size=9, momentum=0.8, run=False,
    )  # fmt: skip
    found = spark.deserialize_trainer(trainer.serialize(), "other")
    assert type(found) is spark.EAMSGD
    assert (found.keras_model, found.batch_size, found.momentum) == ("other", 9, 0.8)
    assert found.options == {"run": False}
    assert float(found.optimizer().learning_rate) == pytest.approx(0.3)
    assert isinstance(found.loss, keras.losses.MeanSquaredError)


def test_error_names_what_has_no_form_in_json() -> None:
    trainer = spark.ADAG(*GIVEN, callbacks=[keras.callbacks.Callback()])
    with pytest.raises(ConfigError, match=r"callbacks=.* has no form in JSON"):
        trainer.serialize()
    with pytest.raises(ConfigError, match="trainer='precache' is not a trainer"):
        spark.deserialize_trainer('{"trainer": "precache"}', None)


# ----------------------------------------------------------- training, without Spark


@pytest.fixture
def trainer(tmp_path: Path) -> Any:
    made = spark.DOWNPOUR(
        make_model(), "sgd", "sparse_categorical_crossentropy", batch_size=16,
        num_epoch=2, num_workers=1, communication_window=4, cluster="inline",
        run=str(tmp_path / "run"), verbose=0,
    )  # fmt: skip
    made.features_col = made.label_col = None
    return made


@pytest.mark.slow
def test_the_history_has_the_loss_of_each_exchange(
    trainer: Any, tmp_path: Path
) -> None:
    x, y = data(96)
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    trainer.train(str(tmp_path / "rows.npz"))
    history = trainer.get_history()
    assert [record["iteration"] for record in history] == [4, 6, 10, 12]
    assert trainer.num_updates == 4
    assert {record["worker_id"] for record in history} == {0}
    times = [record["timestamp"] for record in history]
    assert times == sorted(times)
    assert abs(times[-1] - time.time()) < 60
    for name in ("loss", "accuracy"):
        epoch = history[0][name] * 64 + history[1][name] * 32
        expected = trainer.history.history[name][0]
        assert epoch / 96 == pytest.approx(expected, rel=1e-4)
    assert trainer.get_executor_history(0) == history
    assert trainer.get_executor_history(1) == []
    averaged = trainer.get_averaged_history()
    assert [one["loss"] for one in averaged] == [one["loss"] for one in history]


def test_without_a_run_folder_there_is_no_history() -> None:
    trainer = spark.ADAG(*GIVEN)
    trainer.history = SimpleNamespace(run=SimpleNamespace(url=""))
    with pytest.raises(ConfigError, match="run=False keeps none"):
        trainer.get_history()


def test_emperor_lowers_the_rate_where_the_loss_stands_still() -> None:
    trained: list[tuple[Any, int, float]] = []

    class Stub(spark.SingleTrainer):
        def train(self, dataframe: Any, shuffle: bool = False) -> Any:
            rate = float(self.optimizer().learning_rate)
            trained.append((self.keras_model, self.num_epoch, rate))
            return f"{self.keras_model}+"

    losses = iter([0.9, 0.5, 0.499, 0.498])
    trainer = Stub("model", "sgd", "mse", num_epoch=3)
    emperor = spark.Emperor(
        trainer, lambda model: next(losses), num_epoch=17, loss_threshold=0.01
    )
    assert emperor.train("frame") == "model++++"
    assert [model for model, _, _ in trained] == [f"model{'+' * n}" for n in range(4)]
    assert [epochs for _, epochs, _ in trained] == [5, 5, 5, 2]
    rates = [rate for _, _, rate in trained]
    assert rates == pytest.approx([0.01, 0.01, 0.01, 0.001])
    assert emperor.losses == [0.9, 0.5, 0.499, 0.498]
    assert (trainer.keras_model, trainer.num_epoch) == ("model", 3)
    assert trainer.get_learning_rate() == pytest.approx(0.01)


@pytest.mark.parametrize("wrong", [{"num_epoch": 0}, {"loss_threshold": -1}])
def test_emperor_refuses_wrong_numbers(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        spark.Emperor(spark.ADAG(*GIVEN), lambda model: 0.0, **wrong)
