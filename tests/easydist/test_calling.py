from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

from shoal.easydist import ExecutionEnvironment
from shoal.easydist.calling import CallSite, caller, the_model
from shoal.easydist.optimizer import set_optimizer
from shoal.errors import ConfigError


def small(*, compiled: bool = True) -> Any:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    if compiled:
        model.compile("sgd", "mae", metrics=["mse"])
    return model


def place(**names: Any) -> CallSite:
    return CallSite(module="script", names=names)


def test_the_one_compiled_model():
    model = small()
    raw = small(compiled=False)
    assert the_model([place(model=model, same=model, raw=raw, kind=list)]) is model


def test_the_first_place_that_has_one():
    model, other = small(), small()
    assert the_model([place(), place(m=model)]) is model
    assert the_model([place(m=other), place(m=model)]) is other


def test_no_model():
    with pytest.raises(
        ConfigError, match=r"script has no compiled .*\(not compiled: r"
    ):
        the_model([place(raw=small(compiled=False))])
    with pytest.raises(ConfigError, match=r"no compiled Keras model\. .*model=\.\.\."):
        the_model([place()])


def test_several_models():
    with pytest.raises(ConfigError, match=r"2 compiled models: a, b\. .*model=\.\.\."):
        the_model([place(b=small(), a=small())])


def test_the_caller_is_outside_of_the_package():
    local = "of the function"
    found = caller()
    assert found.names["local"] == local
    assert found.names["small"] is small
    assert found.file == __file__
    assert Path(found.beside) == Path(__file__)


def test_without_a_file_it_is_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert Path(place().beside).parent == tmp_path


def test_models_of_the_function_that_calls(tmp_path: Path):
    first, second = small(), small()
    assert first is not second
    with pytest.raises(ConfigError, match="2 compiled models: first, second"):
        ExecutionEnvironment(bucket="b").fit()


def test_models_where_the_environment_is_made():
    def make() -> ExecutionEnvironment:
        one, two = small(), small()
        assert one is not two
        return ExecutionEnvironment(bucket="b")

    with pytest.raises(ConfigError, match="2 compiled models: one, two"):
        make().fit()


@pytest.mark.parametrize(
    ("model", "words"),
    [("model", "'model' is a str"), (small(compiled=False), "is not compiled")],
)
def test_a_model_that_cannot_be_trained(model: Any, words: str):
    with pytest.raises(ConfigError, match=words):
        ExecutionEnvironment(bucket="b", model=model).fit()


@pytest.mark.parametrize("opt", ["adam", keras.optimizers.Adam(0.25)])
def test_opt_replaces_the_optimizer_alone(opt: Any):
    model = small()
    set_optimizer(model, opt)
    assert isinstance(model.optimizer, keras.optimizers.Adam)
    assert opt == "adam" or model.optimizer is opt
    assert (model.loss, model._compile_config.config["metrics"]) == ("mae", ["mse"])
    assert model.get_compile_config()["optimizer"]["class_name"] == "Adam"


def test_opt_of_a_model_with_a_compile_of_its_own():
    class Own(keras.Sequential):
        def compile(self, rate: float) -> None:
            super().compile(keras.optimizers.SGD(rate), "mae")

    model = Own([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(0.5)
    set_optimizer(model, "adam")
    assert isinstance(model.optimizer, keras.optimizers.Adam)


@pytest.mark.parametrize("opt", ["adamm", 3])
def test_opt_that_is_not_an_optimizer(opt: Any):
    with pytest.raises(ConfigError, match=f"opt={opt!r} is not an optimizer"):
        set_optimizer(small(), opt)
