from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.errors import PlanError
from shoal.models.metrics import (
    MetricStates,
    build_metrics,
    pythonify,
    unmergeable,
)
from shoal.models.metrics_probe import is_additive

# Keras asks JAX for int64 in confusion matrices, whatever x64 says.
pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")

metrics: Any = keras.metrics
layers: Any = keras.layers
ops: Any = keras.ops

BATCHES, ROWS, CLASSES = 8, 4, 3


def classifier(**compiled: Any) -> Any:
    model = keras.Sequential([keras.Input((5,)), layers.Dense(CLASSES, "softmax")])
    model.compile("sgd", "categorical_crossentropy", **compiled)
    return model


def data(seed: int, rows: int = BATCHES * ROWS) -> tuple[Any, Any, Any]:
    """Returns x, one-hot y and sample weights."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 5)).astype("float32")
    y = np.eye(CLASSES, dtype="float32")[rng.integers(0, CLASSES, rows)]
    return x, y, rng.uniform(0.1, 2.0, rows).astype("float32")


def every_kind() -> list[Any]:
    return [
        metrics.AUC(num_thresholds=50, name="auc"),
        metrics.AUC(num_thresholds=20, curve="PR", multi_label=True, name="pr"),
        metrics.Precision(name="precision"),
        metrics.Recall(class_id=1, name="recall"),
        metrics.PrecisionAtRecall(0.5, num_thresholds=20, name="at"),
        metrics.F1Score(average="macro", name="f1"),
        metrics.FBetaScore(beta=2.0, name="f2"),
        metrics.OneHotMeanIoU(CLASSES, name="iou", dtype="float32"),
        metrics.R2Score(name="r2"),
        metrics.RootMeanSquaredError(name="rmse"),
        metrics.BinaryAccuracy(name="binary"),
        metrics.TopKCategoricalAccuracy(2, name="top"),
        metrics.CategoricalCrossentropy(name="ce"),
        metrics.CosineSimilarity(name="cosine"),
        "accuracy",
    ]


@pytest.fixture(scope="module")
def model() -> Any:
    built = classifier(metrics=every_kind(), weighted_metrics=every_kind())
    x, y, weight = data(0, ROWS)
    build_metrics(built, x=x, y=y, sample_weight=weight)
    return built


def run(model: Any, batches: Any) -> None:
    """Does what `test_step` does to the metrics, without a compiled program."""
    model.reset_metrics()
    for y, p, weight in batches:
        model._loss_tracker.update_state(ops.mean((y - p) ** 2), sample_weight=len(y))
        model._compile_metrics.update_state(y, p, sample_weight=weight)


@settings(max_examples=3)
@given(
    seed=st.integers(0, 10_000),
    cuts=st.lists(st.integers(0, BATCHES), min_size=2, max_size=2).map(sorted),
)
def test_three_uneven_shards_equal_one_process(
    model: Any, seed: int, cuts: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    _, y, weight = data(seed)
    p = rng.dirichlet(np.ones(CLASSES), len(y)).astype("float32")
    starts = range(0, len(y), ROWS)
    batches = [tuple(a[i : i + ROWS] for a in (y, p, weight)) for i in starts]
    states = MetricStates.of(model)
    run(model, batches)
    whole = pythonify(model.get_metrics_result())
    parts = []
    for shard in (batches[: cuts[0]], batches[cuts[0] : cuts[1]], batches[cuts[1] :]):
        run(model, shard)
        parts.append(states.read(model))
    merged = states.results(model, states.merge(parts))
    assert list(merged) == list(whole)
    for name, value in whole.items():
        np.testing.assert_allclose(merged[name], value, rtol=2e-5, atol=1e-6)


@settings(max_examples=50)
@given(values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=2))
def test_vector_goes_there_and_back(values: list[float]) -> None:
    model = classifier()
    build_metrics(model, x=data(0)[0], y=data(0)[1])
    states = MetricStates.of(model)
    vector = states.to_vector([np.float32(v) for v in values])
    assert vector.dtype == np.float64
    assert [float(v) for v in states.from_vector(vector)] == values


def test_layout_is_that_of_the_model(model: Any) -> None:
    states = MetricStates.of(model)
    assert [e.shape for e in states.entries] == [
        tuple(v.shape) for v in model.metrics_variables
    ]
    assert states.entries[0].name == "loss/total"
    assert states.size == states.read(model).size


def evaluate_in_shards(model: Any, x: Any, y: Any, weight: Any = None) -> tuple:
    """Returns results of one process, and of shards of 1, 2 and 5 batches."""
    tree = keras.tree.map_structure
    whole = model.evaluate(
        x, y, sample_weight=weight, batch_size=ROWS, verbose=0, return_dict=True
    )
    states = MetricStates.of(model)
    parts = []
    for start, stop in ((0, ROWS), (ROWS, 3 * ROWS), (3 * ROWS, 8 * ROWS)):

        def cut(a: Any, start: int = start, stop: int = stop) -> Any:
            return a[start:stop]

        model.evaluate(
            tree(cut, x),
            tree(cut, y),
            sample_weight=None if weight is None else tree(cut, weight),
            batch_size=ROWS,
            verbose=0,
        )
        parts.append(states.read(model))
    return whole, states.results(model, states.merge(parts))


def assert_equal(merged: dict, whole: dict) -> None:
    assert merged.keys() == whole.keys()
    for name, value in whole.items():
        np.testing.assert_allclose(
            merged[name], value, rtol=1e-5, atol=1e-6, err_msg=name
        )


def test_evaluate_in_shards_with_weights() -> None:
    model = classifier(
        metrics=["accuracy", metrics.AUC(name="auc")],
        weighted_metrics=["accuracy", metrics.Precision(name="precision")],
    )
    whole, merged = evaluate_in_shards(model, *data(1))
    assert_equal(merged, whole)


def test_evaluate_in_shards_with_several_outputs() -> None:
    inputs = keras.Input((5,))
    hidden = layers.Dense(4)(inputs)
    outputs = {
        "kind": layers.Dense(CLASSES, "softmax", name="kind")(hidden),
        "size": layers.Dense(1, name="size")(hidden),
    }
    model: Any = keras.Model(inputs, outputs)
    model.compile(
        loss={"kind": "sparse_categorical_crossentropy", "size": "mse"},
        metrics={
            "kind": ["accuracy", metrics.SparseTopKCategoricalAccuracy(2, "top")],
            "size": [metrics.R2Score(name="r2"), "mae"],
        },
    )
    x, y, _ = data(2)
    targets = {"kind": y.argmax(-1), "size": x[:, :1] * 2}
    whole, merged = evaluate_in_shards(model, x, targets)
    assert {"kind_accuracy", "size_r2", "kind_loss"} <= set(whole)
    assert_equal(merged, whole)


def test_results_have_the_keys_of_a_history() -> None:
    model = classifier(metrics=["accuracy", metrics.F1Score(average="micro")])
    x, y, _ = data(3)
    history = model.fit(x, y, batch_size=ROWS, verbose=0, shuffle=False)
    states = MetricStates.of(model)
    results = states.results(model, states.read(model))
    assert list(results) == list(history.history)
    assert results == {name: values[0] for name, values in history.history.items()}


def test_results_leave_the_state_of_the_model_alone(model: Any) -> None:
    states = MetricStates.of(model)
    run(model, [])
    states.results(model, np.ones(states.size))
    assert not states.read(model).any()


def test_other_metrics_than_at_the_start_are_refused(model: Any) -> None:
    states = MetricStates.of(model)
    with pytest.raises(PlanError, match=r"state\s+variables.*Do not compile"):
        states.results(classifier(), np.zeros(states.size))


class Maximum(metrics.Metric):
    """Cannot be summed."""

    def __init__(self, name: str = "maximum") -> None:
        super().__init__(name=name)
        self.top = self.add_variable((), "zeros", name="top")

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        del y, sample_weight
        self.top.assign(ops.maximum(self.top, ops.max(p)))

    def result(self) -> Any:
        return self.top.value


class Total(Maximum):
    """Can be summed; starts at 2, not at 0."""

    def __init__(self) -> None:
        super().__init__(name="sum_of_all")
        self.top.assign(2.0)

    def reset_state(self) -> None:
        self.top.assign(2.0)

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        del y, sample_weight
        self.top.assign(self.top + ops.sum(p))


class Memory(Total):
    """Keeps its state in a Python attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "memory"
        self.seen = 0

    def reset_state(self) -> None:
        super().reset_state()
        self.seen = 0

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        self.seen += 1

    def result(self) -> Any:
        return self.seen


def test_states_that_do_not_start_at_zero() -> None:
    model = classifier(metrics=[Total()])
    x, y, _ = data(4)
    whole, merged = evaluate_in_shards(model, x, y)
    assert_equal(merged, whole)
    assert merged["sum_of_all"] == pytest.approx(2 + len(x))


def test_metrics_that_cannot_be_summed_are_named() -> None:
    _, y, _ = data(5, 8)
    model = classifier(metrics=["accuracy", Maximum(), Total(), Memory()])
    assert unmergeable(model, y) == ("maximum", "memory")
    assert not model._compile_metrics.built
    assert unmergeable(classifier(metrics=["accuracy", metrics.AUC()]), y) == ()
    weighted = classifier(weighted_metrics=[Maximum()])
    assert unmergeable(weighted, y) == ("maximum",)


def test_name_of_the_output_comes_first() -> None:
    inputs = keras.Input((5,))
    outputs = {name: layers.Dense(1, name=name)(inputs) for name in ("a", "b")}
    model: Any = keras.Model(inputs, outputs)
    model.compile(loss="mse", metrics={"a": [Total()], "b": [Maximum()]})
    y = np.ones((6, 1), "float32")
    assert unmergeable(model, {"a": y, "b": y}) == ("b_maximum",)


def test_metrics_of_layers_count_too() -> None:
    class Watch(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.seen = metrics.Mean(name="seen")
            self.top = Maximum("top")

        def call(self, x: Any) -> Any:
            self.seen.update_state(x)
            return x

    model: Any = keras.Sequential([keras.Input((5,)), Watch(), layers.Dense(1)])
    model.compile(loss="mse")
    x = data(6)[0]
    assert unmergeable(model, x[:, :1]) == ("top",)
    states, parts = MetricStates.of(model), []
    for rows in (x[:3], x[3:5], x[5:]):
        model.reset_metrics()
        model(rows)
        parts.append(states.read(model))
    merged = states.results(model, states.merge(parts))
    assert merged["seen"] == pytest.approx(float(x.mean()), rel=1e-5)


def test_subclass_needs_predictions() -> None:
    class Sub(keras.Model):
        def call(self, x: Any) -> Any:
            return x

    model: Any = Sub()
    model.compile(loss="mse", metrics=[Total(), Maximum()])
    y = np.linspace(0.5, 1, 6, dtype="float32").reshape(6, 1)
    assert unmergeable(model, y) == ("sum_of_all", "maximum")
    assert unmergeable(model, y, y_pred=y) == ("maximum",)


# Arguments of the classes that need some, and the rows they like.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "IoU": {"num_classes": 2, "target_class_ids": [1]},
    "BinaryIoU": {},
    "TopKCategoricalAccuracy": {"k": 2},
    "SparseTopKCategoricalAccuracy": {"k": 2},
    "MeanIoU": {"num_classes": 2},
    "OneHotIoU": {"num_classes": 3, "target_class_ids": [1]},
    "OneHotMeanIoU": {"num_classes": 3},
    "FBetaScore": {},
    "MeanMetricWrapper": {"fn": keras.losses.mean_squared_error},
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.5},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
}


def every_class() -> list[str]:
    return sorted(
        name
        for name, cls in vars(keras.metrics).items()
        if isinstance(cls, type)
        and issubclass(cls, keras.metrics.Metric)
        and cls is not keras.metrics.Metric
    )


@pytest.mark.parametrize("name", every_class())
def test_keras_own_metrics_add_up(name: str) -> None:
    rng = np.random.default_rng(1)
    kinds = rng.integers(0, 2, (9, 1))
    soft = rng.uniform(0.05, 0.95, (9, 1)).astype("float32")
    three = rng.dirichlet(np.ones(3), 9).astype("float32")
    hot = np.eye(3, dtype="float32")[rng.integers(0, 3, 9)]
    rows = {
        "Mean": (soft,),
        "Sum": (soft,),
        "MeanIoU": (kinds, (soft > 0.5).astype("int32")),
        "IoU": (kinds, (soft > 0.5).astype("int32")),
    }.get(name)
    if rows is None:
        on_classes = ("F1Score", "FBetaScore", "OneHotIoU", "OneHotMeanIoU")
        if name.startswith("Sparse"):
            rows = (hot.argmax(-1), three)
        elif name in on_classes or "Categorical" in name:
            rows = (hot, three)
        else:
            rows = (kinds.astype("float32"), soft)
    metric = getattr(metrics, name)(**ARGUMENTS.get(name, {}))
    assert is_additive(metric, *rows)


def test_metrics_of_one_name_are_told_apart() -> None:
    model = classifier(metrics=[Total(), Maximum("sum_of_all")])
    assert unmergeable(model, data(5, 8)[1]) == ("sum_of_all_1",)


def test_subclass_is_called_where_its_outputs_are_not_known() -> None:
    class Sub(keras.Model):
        def call(self, x: Any) -> Any:
            return x

    model: Any = Sub()
    model.compile(loss="mse", metrics=[Total(), Maximum()])
    y = np.linspace(0.5, 1, 6, dtype="float32").reshape(6, 1)
    assert unmergeable(model, y, x=y) == ("maximum",)


def test_subclass_with_weights_is_called_too() -> None:
    class Sub(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

    model: Any = Sub()
    model.compile(loss="mse", metrics=[Total(), Maximum()])
    x = np.linspace(0.5, 1, 6, dtype="float32").reshape(6, 1)
    assert "sum_of_all" not in unmergeable(model, x, x=x)


class Extremes(Maximum):
    """Cannot be summed, and has several results."""

    def __init__(self) -> None:
        super().__init__(name="extremes")

    def result(self) -> Any:
        return {"top": self.top.value, "half": self.top.value / 2}


@pytest.mark.parametrize(
    ("strategy", "workers"), [("aeasgd", 1), ("aeasgd", 2), ("all_reduce", 2)]
)
def test_training_leaves_out_metrics_that_cannot_be_summed(
    strategy: str, workers: int
) -> None:
    x, y, _ = data(7, 64)
    model = classifier(metrics=["accuracy", Maximum(), Extremes()])
    given: dict[str, Any] = {"strategy": strategy, "workers": workers, "batch_size": 8}
    [warning] = [w for w in shoal.plan(model, x, y, **given).warnings if "merged" in w]
    assert warning.startswith("metrics maximum, extremes cannot")
    with pytest.raises(PlanError, match="val_maximum"):
        shoal.plan(model, x, y, monitor="maximum", **given)
    history = shoal.fit(
        model, x, y, validation_data=(x, y), verbose=0, run=False, cluster="inline",
        **given,
    ).history  # fmt: skip
    validated = {"val_accuracy", "val_loss", "val_maximum", "val_top", "val_half"}
    assert set(history) == {"accuracy", "loss"} | validated
    whole = float(model.predict(x, verbose=0).max())
    assert history["val_maximum"][0] == pytest.approx(whole, rel=1e-5)
    assert history["val_half"][0] == pytest.approx(whole / 2, rel=1e-5)
