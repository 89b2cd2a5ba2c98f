from __future__ import annotations

import dataclasses
import functools
import gc
import importlib
import itertools
import os
import pickle
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import cloudpickle
import keras
import numpy as np
import pytest

from shoal.errors import PlanError
from shoal.models import inspection, pickling, travel
from shoal.models.culprit import describe_culprit
from shoal.models.parcel import Compiled
from shoal.models.travel import pack, unpack
from tests.models.travel_cases import CASES, OPTIMIZERS, batch, small

# The other process: knows shoal and nothing of these tests.
ARRIVE = """
import pickle, sys
from shoal.models.travel import unpack
source, target = sys.argv[1:]
exec(open(source + ".code").read())
out = {}
for name, (blob, x, y) in pickle.load(open(source, "rb")).items():
    try:
        out[name] = observe(unpack(blob), x, y)
    except Exception as error:
        out[name] = error
    if name == "mlp":
        out["modules of mlp"] = sorted(sys.modules)
out["modules"] = sorted(sys.modules)
pickle.dump(out, open(target, "wb"))
"""

# What is looked at on both sides: the start, then two steps of training.
OBSERVE = """
import numpy as np, keras
def observe(model, x, y):
    def arrays(variables):
        return [np.asarray(v.numpy(), "float64") for v in variables]
    seen = {
        "weights": arrays(model.variables),
        "optimizer": arrays(model.optimizer.variables),
        "rate": rate(model.optimizer),
        "trainable": [v.trainable for v in model.variables],
        "counts": (len(model.trainable_variables), len(model.layers)),
        "classes": [type(l).__name__ for l in model._flatten_layers()],
        "predict": [
            keras.ops.convert_to_numpy(p) for p in keras.tree.flatten(model(x))
        ],
    }
    if keras.backend.backend() == "torch":  # its own seed draws dropout of a layer
        import torch
        torch.manual_seed(1)  # Keras' own function imports TensorFlow
    if not hasattr(model, "no_steps"):
        steps = [model.train_on_batch(x, y, return_dict=True) for _ in range(2)]
    else:
        steps = []
        for scale in (1.0, -0.5):
            grads = [scale * (v.value + 0.1) for v in model.trainable_variables]
            model.optimizer.apply(grads, model.trainable_variables)
    seen["steps"] = steps
    seen["metrics"] = [type(m).__name__ for m in model.metrics]
    seen["after"] = arrays(model.variables)
    seen["optimizer after"] = arrays(model.optimizer.variables)
    return seen
def rate(optimizer):
    try:
        return float(optimizer.learning_rate)
    except AttributeError:
        return None
"""


def optimizer_case(name: str) -> tuple[Any, Any, Any]:
    """Returns a model whose optimizer has taken a step."""
    model = small()
    model.compile(getattr(keras.optimizers, name)(0.125), "mse")
    grads = [v.value * 0.5 + 0.1 for v in model.trainable_variables]
    model.optimizer.apply(grads, model.trainable_variables)
    model.optimizer.learning_rate = 0.0625
    return (model, *batch())


@pytest.fixture(scope="module")
def journeys(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict]:
    """All cases as seen here and in one fresh process."""
    folder = tmp_path_factory.mktemp("travel")
    space: dict[str, Any] = {}
    exec(OBSERVE, space)
    cases = {name: build() for name, build in CASES.items()}
    cases |= {name: optimizer_case(name) for name in OPTIMIZERS}
    parcels = {name: (pack(model), x, y) for name, (model, x, y) in cases.items()}
    (folder / "in").write_bytes(pickle.dumps(parcels))
    code = OBSERVE.replace('hasattr(model, "no_steps")', f"name in {OPTIMIZERS}")
    (folder / "in.code").write_text(code)
    source = Path(travel.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-c", ARRIVE, str(folder / "in"), str(folder / "out")]
    with subprocess.Popen(command, env=environment, cwd=folder) as process:
        here: dict[str, Any] = {}
        for name, (model, x, y) in cases.items():
            if name in OPTIMIZERS:
                model.no_steps = True
            here[name] = space["observe"](model, x, y)
    assert process.returncode == 0
    return here, pickle.loads((folder / "out").read_bytes())


def assert_same(here: Any, there: Any) -> None:
    if isinstance(here, dict):
        assert here.keys() == there.keys()
        for key in here:
            assert_same(here[key], there[key])
    elif isinstance(here, (list, tuple)):
        assert len(here) == len(there)
        for one, other in zip(here, there, strict=True):
            assert_same(one, other)
    elif isinstance(here, (np.ndarray, float, np.floating)):
        np.testing.assert_allclose(
            np.asarray(there, "float64"), np.asarray(here, "float64"), rtol=1e-6
        )
    else:
        assert here == there


@pytest.mark.timeout(240)  # the first one pays for the process
@pytest.mark.parametrize("name", [*CASES, *OPTIMIZERS])
def test_model_is_the_same_in_a_fresh_process(
    name: str, journeys: tuple[dict, dict]
) -> None:
    here, there = journeys
    if isinstance(there[name], Exception):
        raise there[name]
    for exact in ("weights", "optimizer", "trainable", "rate"):
        for one, other in zip(
            np.atleast_1d(np.asarray(here[name][exact], object)),
            np.atleast_1d(np.asarray(there[name][exact], object)),
            strict=True,
        ):
            np.testing.assert_array_equal(one, other)
    assert_same(here[name], there[name])


def test_fresh_process_needs_neither_these_modules_nor_tensorflow(
    journeys: tuple[dict, dict],
) -> None:
    modules = journeys[1]["modules"]
    assert not [m for m in modules if "travel_cases" in m or "test_travel" in m]
    # Keras itself imports it for a Bidirectional layer, where it is installed.
    is_needed = keras.backend.backend() == "tensorflow"
    assert ("tensorflow" in journeys[1]["modules of mlp"]) is is_needed


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("mlp", travel.Compiled),
        ("layer_with_config_and_add_loss", travel.Compiled),
        ("frozen_backbone", travel.Compiled),
        ("lambda_layer", travel.Whole),
        ("layer_without_config", travel.Whole),
        ("own_compile", travel.Whole),
    ],
)
def test_archive_goes_first(name: str, body: type) -> None:
    parcel = travel.loads(pack(CASES[name]()[0]))
    assert type(parcel.body) is body


@pytest.mark.parametrize(
    "name", ["mlp", "layer_with_config_and_add_loss", "lambda_layer", "own_compile"]
)
def test_an_unchanged_model_is_packed_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes, without a second copy of them; whatever changed is noticed."""
    model = CASES[name]()[0]
    pack(model)  # reading it back gives a class of this file its methods anew
    packed = pack(model)
    with monkeypatch.context() as patch:
        patch.setattr(travel, "_comes_back", None)  # it did, the first time
        assert pack(model, before=packed) is packed
    kernel, rate = model.trainable_variables[-1], model.optimizer.learning_rate
    for variable in (kernel, rate):
        value = np.array(variable.numpy())
        variable.assign(value + 1)
        changed = pack(model, before=packed)
        assert changed != packed
        assert changed == pack(model)
        variable.assign(value)
        assert pack(model, before=packed) is packed
    model.layers[-1].trainable = False
    assert pack(model, before=packed) == pack(model) != packed
    assert pack(model, before=packed[:-1]) == pack(model)


def test_loaded_from_file_keeps_its_optimizer(tmp_path: Path) -> None:
    model = CASES["trained_before"]()[0]
    model.save(tmp_path / "m.keras")
    loaded: Any = keras.saving.load_model(tmp_path / "m.keras")
    there = unpack(pack(loaded))
    for one, other in zip(
        loaded.optimizer.variables, there.optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert float(there.optimizer.learning_rate) == 0.25


def test_packing_leaves_no_trace() -> None:
    model = CASES["layer_with_config_and_add_loss"]()[0]
    before = random.getstate()
    pack(model)
    assert random.getstate() == before
    name = keras.layers.Dense(1).name
    pack(model)
    number = int(name.rpartition("_")[2])
    assert keras.layers.Dense(1).name == f"dense_{number + 1}"


def test_uncompiled_model_travels() -> None:
    model = small()
    there = unpack(pack(model))
    assert not there.compiled
    assert_same(model.get_weights(), there.get_weights())


def test_arrived_model_saves_and_travels_on(tmp_path: Path) -> None:
    model, x, _ = CASES["layer_without_config"]()
    twice = unpack(pack(unpack(pack(model))))
    there, here = (keras.ops.convert_to_numpy(m(x)) for m in (twice, model))
    np.testing.assert_array_equal(there, here)
    arrived = unpack(pack(CASES["trained_before"]()[0]))
    arrived.save(tmp_path / "m.keras")
    loaded: Any = keras.saving.load_model(tmp_path / "m.keras")
    there, here = (keras.ops.convert_to_numpy(m(x)) for m in (loaded, arrived))
    np.testing.assert_array_equal(there, here)


def test_whole_functional_model_keeps_its_graph() -> None:
    model = CASES["own_train_step"]()[0]
    there = unpack(travel._pack_whole(model))
    assert there.get_config()["layers"] == model.get_config()["layers"]


def test_unbuilt_model_is_refused() -> None:
    with pytest.raises(PlanError, match=r"no weights yet.*\. .*keras\.Input"):
        pack(keras.Sequential([keras.layers.Dense(1)]))


class Locked(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__(name="guarded")
        self.tools = {"guards": [threading.Lock()]}

    def call(self, x: Any) -> Any:
        return x


def test_layer_that_cannot_travel_is_named() -> None:
    with pytest.raises(PlanError) as caught:
        pack(small(Locked()))
    message = str(caught.value)
    assert "Locked 'guarded'.tools['guards'][0] is a _thread.lock" in message
    assert "get_config" in message
    assert "custom_objects=" in message
    assert "model=callable" in message


def test_loss_that_cannot_travel_is_named() -> None:
    lock = threading.Lock()

    def loss(y: Any, p: Any) -> Any:
        with lock:
            return keras.ops.mean(y - p)

    model = small()
    model.compile("sgd", loss)
    with pytest.raises(PlanError) as caught:
        pack(model)
    assert "compile['loss'] -> captured variable 'lock' is a _thread.lock" in str(
        caught.value
    )


def test_callable_makes_a_model_that_cannot_travel() -> None:
    def make() -> Any:
        model = small(Locked())
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        return model

    model = make()
    x, y = batch()
    model.train_on_batch(x, y)
    there = unpack(pack(model, factory=make))
    assert_same(model.get_weights(), there.get_weights())
    for one, other in zip(
        model.optimizer.variables, there.optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    alone = unpack(pack(make))
    assert alone.compiled


class TwoInputs(keras.Model):
    """Has no variables until it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs["a"]) + inputs["b"]


def test_an_unbuilt_model_of_a_callable_is_built_on_arrival() -> None:
    def make() -> Any:
        model = TwoInputs()
        model.compile("adam", "mse")
        return model

    sample = ({"a": np.ones((4, 3), "f4"), "b": np.ones((4, 2), "f4")}, np.ones((4, 2)))
    model = make()
    inspection.prepare(model, sample)
    there = unpack(pack(model, factory=make, sample=sample))
    assert_same(model.get_weights(), there.get_weights())


def test_callable_that_makes_another_model_is_refused() -> None:
    sizes = iter((3, 4))

    def make() -> Any:
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(next(sizes))])

    blob = pack(make)
    with pytest.raises(PlanError, match="made again with other variables"):
        unpack(blob)


def test_changed_layout_is_noticed_on_arrival() -> None:
    parcel = travel.loads(pack(small()))
    other = dataclasses.replace(parcel, digest="another")
    with pytest.raises(PlanError, match="made again with other"):
        other.open()


def test_missing_module_is_named_on_arrival(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # a lock in its globals: such a module goes by name
    code = (
        "import threading, keras\nlock = threading.Lock()\n"
        "class Guarded(keras.layers.Layer):\n"
        "    def call(self, x):\n        with lock:\n            return x\n"
    )
    (tmp_path / "guarding.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    blob = pack(small(importlib.import_module("guarding").Guarded()))
    assert unpack(blob).built
    monkeypatch.delitem(sys.modules, "guarding")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])
    importlib.invalidate_caches()
    with pytest.raises(PlanError, match="No module named 'guarding'"):
        unpack(blob)


def test_custom_objects_are_used() -> None:
    class Double(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return 2 * x

        def get_config(self) -> dict[str, Any]:
            return super().get_config()

    model = small(Double())
    parcel = travel.loads(pack(model, custom_objects={"Double": Double}))
    assert parcel.body.archive.custom_objects == {"Double": Double}


def test_callback_travels_without_its_model() -> None:
    callback = keras.callbacks.EarlyStopping(monitor="loss", patience=3)
    callback.set_model(small(Locked()))
    there = travel.loads(travel.dumps(callback))
    assert there.patience == 3
    assert there.model is None


def test_callback_that_cannot_travel_is_named(tmp_path: Path) -> None:
    class Logger(keras.callbacks.Callback):
        pass

    callback: Any = Logger()
    with open(tmp_path / "log", "w") as callback.file:
        found = describe_culprit(callback, "callback Logger")
    assert found == "callback Logger.file is a _io.TextIOWrapper"


def test_global_that_cannot_travel_is_named() -> None:
    space: dict[str, Any] = {"__name__": "__main__", "lock": threading.Lock()}
    exec("def prepare(x):\n    return [lock for _ in x]", space)
    found = describe_culprit(space["prepare"], "prepare")
    assert "prepare -> global 'lock' is a _thread.lock" in found


def closing_over(kind: str, held: Any) -> Any:
    """A model of which one function closes over something."""

    class Mine(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            _ = held if kind == "compute_loss" else None
            return super().compute_loss(*args, **kwargs)

    def loss(y: Any, y_pred: Any) -> Any:
        _ = held
        return keras.ops.mean((y - y_pred) ** 2, -1)

    model = small() if kind != "compute_loss" else Mine()
    if kind == "activation":
        model = small(keras.layers.Dense(2, activation=lambda x: (x, held)[0]))
    metrics = [loss] if kind == "metric" else []
    model.compile("sgd", loss if kind == "loss" else "mse", metrics=metrics)
    model(np.ones((2, 4), "float32"))
    return model


class Holder:
    """An object of the user's with something in it that cannot travel."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


@pytest.mark.parametrize("kind", ["loss", "metric", "activation"])
def test_error_names_what_a_function_closes_over(kind: str) -> None:
    with pytest.raises(PlanError, match="captured variable 'held'") as caught:
        travel.pack(closing_over(kind, Holder()))
    assert "Holder).lock is a _thread.lock" in str(caught.value)
    assert "_compiled_trainable_state" not in str(caught.value)


def test_error_names_what_a_method_closes_over() -> None:
    with pytest.raises(PlanError, match=r"Mine\).compute_loss -> captured") as caught:
        travel.pack(closing_over("compute_loss", Holder()))
    assert "'held' (" in str(caught.value)
    assert "Holder).lock is a _thread.lock" in str(caught.value)


class Guards:
    """No Keras object; a method of it goes nowhere without it."""

    def __init__(self) -> None:
        self.tools = {"guards": [threading.Lock()]}

    def prepare(self, x: Any) -> Any:
        return x


def test_bound_method_and_partial_are_followed() -> None:
    found = describe_culprit(functools.partial(Guards().prepare, 1), "function")
    assert ".tools['guards'][0]" in found


def test_one_thread_packs_at_a_time() -> None:
    """The registry of cloudpickle is one for the whole process."""

    class Watched:
        def __reduce__(self) -> Any:
            with ThreadPoolExecutor(1) as other:
                is_free = other.submit(pickling._REGISTRY.acquire, blocking=False)
            return str, (f"free: {is_free.result()}",)

    before = cloudpickle.list_registry_pickle_by_value()
    assert travel.loads(travel.dumps(Watched())) == "free: False"
    assert cloudpickle.list_registry_pickle_by_value() == before


def test_modules_may_be_imported_while_a_model_is_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads take turns where garbage is collected, as these imports are made."""
    names = (f"imported-{number}" for number in itertools.count())
    monkeypatch.setattr(sys, "modules", modules := sys.modules.copy())

    def imports(phase: str, _info: object) -> None:
        if phase == "start":
            name = next(names)
            modules[name] = ModuleType(name)

    before = gc.get_threshold()
    gc.callbacks.append(imports)
    gc.set_threshold(1)
    try:
        with pickling.by_value():
            pass
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(imports)
    assert next(names) != "imported-0"


def test_code_that_another_thread_removed_is_no_error() -> None:
    class Meddler:
        def __reduce__(self) -> Any:
            for name in list(cloudpickle.list_registry_pickle_by_value()):
                cloudpickle.unregister_pickle_by_value(sys.modules[name])
            return str, ("done",)

    assert travel.loads(travel.dumps(Meddler())) == "done"


def twice(x: Any) -> Any:
    return keras.ops.relu(x) * 2


@functools.wraps(twice)
def wrapped(x: Any) -> Any:
    return twice(x) + 1


def with_lambda() -> Any:
    layers: Any = [keras.layers.Lambda(wrapped), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((2, 2)), *layers])


def with_wrapped_relu() -> Any:
    @functools.wraps(keras.activations.relu)
    def relu(x: Any) -> Any:
        return keras.activations.relu(x) + 1

    return keras.Sequential([keras.Input((2, 2)), keras.layers.Lambda(relu)])


def with_checkpoint() -> Any:
    jax = pytest.importorskip("jax")
    if keras.backend.backend() != "jax":
        pytest.skip("functions of JAX need its backend")
    layer = keras.layers.Lambda(jax.checkpoint(keras.activations.relu))
    return keras.Sequential([keras.Input((2, 2)), layer])


class Pair(NamedTuple):
    one: Any
    two: Any


def test_named_tuples_of_outputs_stay_what_they_are() -> None:
    given = keras.Input((2,))
    outputs = Pair(keras.layers.Dense(1)(given), keras.layers.Dense(2)(given))
    model: Any = keras.Model(given, outputs)
    model.compile("sgd", "mse")
    assert isinstance(unpack(pack(model))(np.ones((3, 2))), tuple)
    assert unpack(pack(model))(np.ones((3, 2))).two.shape == (3, 2)


def test_a_model_that_was_trained_still_travels_as_an_archive() -> None:
    model: Any = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "relu")])
    model.compile("sgd", "mse")
    x, y = np.ones((4, 2)), np.ones((4, 1))
    model.fit(x, y, verbose=0)
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)
    assert isinstance(travel.read_parcel(pack(model)).body, Compiled)


def with_adapters() -> Any:
    layer = keras.layers.MultiHeadAttention(num_heads=3, key_dim=8, use_bias=False)
    layer.build((1, 2, 2), (1, 2, 2), (1, 2, 2))
    layer._query_dense.enable_lora(2)
    given = keras.Input((2, 2))
    return keras.Model(given, layer(given, given))


def quantized() -> Any:
    layer: Any = keras.layers.Dense(16)
    layer.build((None, 2, 2))
    layer.quantize("float8")
    return keras.Sequential([keras.Input((2, 2)), layer])


@pytest.mark.parametrize(
    "make", [with_lambda, with_wrapped_relu, with_checkpoint, with_adapters, quantized]
)
def test_state_of_a_layer_outside_of_its_config_is_sent(make: Any) -> None:
    model = make()
    model.compile("sgd", "mse")
    arrived = unpack(pack(model))
    x = np.random.default_rng(0).normal(size=(3, 2, 2)).astype("float32")
    found, expected = map(keras.ops.convert_to_numpy, (arrived(x), model(x)))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    trained = [len(m.trainable_variables) for m in (arrived, model)]
    assert trained[0] == trained[1]
