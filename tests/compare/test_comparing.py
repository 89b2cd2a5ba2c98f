"""`shoal.compare`: rows, table, JSON, picture."""

from __future__ import annotations

import builtins
import json
import sys
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import keras
import numpy as np
import pytest
from rich.console import Console

import shoal
from shoal.errors import ConfigError, DataError, ShoalWarning
from shoal.runs.catalogue import read_summary
from shoal.runs.store import create
from shoal.runs.summary import RunSummary
from shoal.strategies import Downpour, get, spell
from shoal.training import comparing
from shoal.training.comparing import Task
from shoal.training.comparison import COLUMNS, Comparison, ComparisonEntry, Point
from shoal.training.f1 import f1_of
from tests.compare.problem import BATCH_SIZE, ROWS, data, make_model


def compare(**more: Any) -> Comparison:
    x, y = data()
    settings: dict[str, Any] = {
        "strategies": ["single", "local_sgd", get("aeasgd:period=4")],
        "epochs": 2, "batch_size": BATCH_SIZE, "cluster": "inline",
        "validation_data": (x[:50], y[:50]), **more,
    }  # fmt: skip
    return shoal.compare(make_model, x, y, **settings)


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(workers=2)


def test_rows_hold_each_setting_once_beside_the_baseline() -> None:
    asked: list[tuple[str, int, int]] = []

    def fit(*_: Any, strategy: Any, workers: int, seed: int, **more: Any) -> Any:
        asked.append((spell(strategy), workers, seed))
        for epoch in range(more["epochs"]):
            more["callbacks"][0].on_epoch_end(epoch, {"loss": 1.0})
        run = SimpleNamespace(summary=lambda: SimpleNamespace(workers=workers))
        return SimpleNamespace(run=run)

    x, y = data()
    task = Task(make_model=make_model, x=x, y=y, epochs=2, f1="binary")
    chosen = ["single", "local_sgd", "aeasgd:period=4"]
    told: list[str] = []
    found = comparing.compare(
        task, fit, strategies=chosen, workers=[1, 3], seeds=[4, 8], tell=told.append
    )
    assert (told[0], told[4]) == (
        "1 of 10: single (plain Keras)",
        "5 of 10: aeasgd:period=4",
    )
    assert (len(told), told[5]) == (10, "6 of 10: single (plain Keras)")
    expected = [
        [(name, count, seed) for name in chosen[1:] for count in (1, 3)]
        for seed in (4, 8)
    ]
    assert asked == expected[0] + expected[1]
    assert [(r["strategy"], r["workers"], r["seed"]) for r in found.rows] == [
        ("single", 1, 4), *expected[0], ("single", 1, 8), *expected[1],
    ]  # fmt: skip
    for row in found.rows:
        assert {"loss", "accuracy", "f1", "seconds", "samples_per_s"} <= set(row)
    for entry in found.entries:
        assert entry.seconds > 0
        assert entry.samples_per_s > 0
    assert [r["ratio"] for r in found.rows if r["strategy"] == "single"] == [1.0, 1.0]


def test_points_are_the_ends_of_epochs(found: Comparison) -> None:
    for entry in found.entries:
        assert [p.samples for p in entry.points] == [ROWS, 2 * ROWS]
        assert 0 < entry.points[0].seconds < entry.points[1].seconds <= entry.seconds
        assert "val_accuracy" in entry.points[-1].metrics


def test_metrics_are_those_of_the_trained_model(found: Comparison) -> None:
    """The last validation and the final judgement see the same weights."""
    for entry in found.entries:
        last = entry.points[-1].metrics
        assert entry.metrics["accuracy"] == pytest.approx(last["val_accuracy"])
        assert entry.metrics["loss"] == pytest.approx(last["val_loss"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.process
def test_processes_are_compared_the_same_way(found: Comparison) -> None:
    processes = compare(strategies=["local_sgd"], cluster="local")
    assert [(r["strategy"], r["workers"]) for r in processes.rows] == [
        ("single", 1), ("local_sgd", 2),
    ]  # fmt: skip
    here, there = processes.entries[1].metrics, found.entries[1].metrics
    assert here["loss"] == pytest.approx(there["loss"], rel=1e-4)


def test_table_and_json_show_the_rows(tmp_path: Path, found: Comparison) -> None:
    out = StringIO()
    Console(file=out, width=200).print(found.table())
    text = out.getvalue()
    assert "local_sgd" in text
    assert "ratio" in text
    path = tmp_path / "found.json"
    assert json.loads(found.to_json(path)) == json.loads(path.read_text())
    entries = json.loads(path.read_text())["entries"]
    assert [e["strategy"] for e in entries] == [
        "single", "local_sgd", "aeasgd:period=4",
    ]  # fmt: skip
    assert len(entries[1]["points"]) == 2


def test_picture_is_drawn(tmp_path: Path, found: Comparison) -> None:
    path = tmp_path / "asked.png"
    compare(strategies=[], seeds=2, picture=path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert found.plot(tmp_path / "later.png", metric="loss").stat().st_size > 1000


def test_picture_needs_a_known_metric(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metric='auc'.*\n?.*Known: accuracy"):
        _two().plot(tmp_path / "x.png", metric="auc")
    assert not (tmp_path / "x.png").exists()


def test_picture_needs_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **more)

    def missing(name: str) -> Any:
        return without(name)

    monkeypatch.setattr("shoal.training.comparison.import_module", missing)
    with pytest.raises(ConfigError, match=r"shoal\[demo\]"):
        _two().plot(tmp_path / "x.png")


@pytest.mark.parametrize(
    ("picture", "words"),
    [("nowhere/x.png", "folder that is there"), ("x.poem", "png"), ("x", "png")],
)
def test_a_picture_that_cannot_be_written_is_refused_before_anything_trains(
    picture: str, words: str, tmp_path: Path
) -> None:
    x, y = data()
    with pytest.raises(ConfigError, match=words):
        shoal.compare(never, x, y, strategies=["adag"], picture=tmp_path / picture)


def test_missing_matplotlib_is_found_before_anything_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    x, y = data()
    with pytest.raises(ConfigError, match=r"shoal\[demo\]"):
        shoal.compare(never, x, y, strategies=["adag"], picture=tmp_path / "x.png")


def test_a_picture_that_fails_does_not_cost_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **more: Any) -> Any:
        raise OSError("disk full")

    monkeypatch.setattr(comparing, "compare", lambda *_, **more: _two())
    monkeypatch.setattr(Comparison, "plot", fail)
    x, y = data()
    with pytest.warns(ShoalWarning, match="cannot be drawn: OSError: disk full"):
        found = shoal.compare(never, x, y, strategies=[], picture=tmp_path / "x.png")
    assert found.rows == _two().rows


def never() -> Any:
    raise AssertionError("trained")


def test_metrics_of_one_number_each_are_kept() -> None:
    def make() -> Any:
        model = make_model()
        f1 = keras.metrics.F1Score(average=None, name="each")
        model.compile("sgd", "categorical_crossentropy", metrics=["accuracy", f1])
        return model

    x, y = data()
    found = shoal.compare(
        make, x, np.eye(2, dtype="f4")[y], strategies=[],
        validation_data=(x[:50], np.eye(2, dtype="f4")[y[:50]]), batch_size=64,
    )  # fmt: skip
    for entry in found.entries:
        assert set(entry.metrics) == {"accuracy", "loss"}
        assert "val_accuracy" in entry.points[0].metrics
        assert "each" not in entry.points[0].metrics


@pytest.mark.parametrize("workers", [0, [1, 0], [2, "many"], [(2, 1)]])
def test_wrong_workers_are_refused_before_anything_trains(workers: Any) -> None:
    x, y = data()
    with pytest.raises(ConfigError, match="workers="):
        shoal.compare(never, x, y, strategies=["adag"], workers=workers)


@pytest.mark.parametrize("nothing", [{"workers": []}, {"seeds": 0}])
def test_nothing_to_compare_is_refused(nothing: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="nothing to compare"):
        compare(**nothing)


def test_a_misspelled_strategy_is_refused_before_anything_trains() -> None:
    x, y = data()
    with pytest.raises(ConfigError, match="Did you mean"):
        shoal.compare(never, x, y, strategies=["local_sgd", "eagsd"])


@pytest.mark.parametrize("is_model", [True, False])
def test_a_model_in_place_of_its_maker_is_refused(is_model: bool) -> None:
    x, y = data()
    given: Any = make_model() if is_model else "model"
    with pytest.raises(ConfigError, match=r"make_model is a.* Expected a function"):
        shoal.compare(given, x, y, strategies=["adag"])


def test_every_column_is_defined() -> None:
    (row,) = _two().rows
    assert row.keys() - {"accuracy"} == COLUMNS.keys() - {"loss, accuracy, ..."}


def test_spelling_is_read_back() -> None:
    for text in ("adag", "aeasgd:period=20,beta=0.5", "eamsgd:momentum=0.5"):
        assert get(spell(get(text))) == get(text)


@dataclass(frozen=True, kw_only=True)
class OfAUser(Downpour):  # pyright: ignore[reportGeneralTypeIssues]
    """A strategy with fields that no rule of the base class checks."""

    name: ClassVar[str] = "of_a_user"
    scales: Any = field(default_factory=lambda: [1, 2])
    table: Any = None


def test_a_strategy_of_a_user_is_spelled() -> None:
    assert spell(OfAUser()) == "of_a_user"
    assert spell(OfAUser(table=np.ones(2))).startswith("of_a_user:table=")


def test_f1_scores() -> None:
    classes, scores = [0, 1, 2, 2], np.eye(3)[[0, 1, 1, 2]]
    assert f1_of(classes, scores, average="macro") == pytest.approx(7 / 9)
    assert f1_of(np.eye(3)[classes], scores, average="macro") == pytest.approx(7 / 9)
    assert f1_of([[0], [0]], [[0.1], [0.2]], average="binary") == 0.0
    assert f1_of([1, 0], [[0.2, 0.8], [0.7, 0.3]], average="binary") == 1.0


def test_f1_rounds_labels_and_cuts_scores() -> None:
    """Whole numbers are often stored as floats: 2.0 is a class, not a certainty."""
    scores = np.eye(3, dtype="f4")[[0, 1, 1, 2]]
    labels = np.array([[0.0], [1.0], [2.0], [2.0]], "f4")
    assert f1_of(labels, scores, average="macro") == pytest.approx(7 / 9)
    assert f1_of(np.array([1.0, 0.0]), [0.9, 0.2], average="binary") == 1.0
    assert f1_of(np.array([True, False]), [[0.9], [0.2]], average="binary") == 1.0


def _two() -> Comparison:
    point = Point(seconds=1.0, samples=10, metrics={"accuracy": 0.5, "loss": 1.0})
    plain = ComparisonEntry(
        strategy="single", workers=1, seed=0, metrics={"accuracy": 0.5}, seconds=1.0,
        samples_per_s=10.0, points=(point,),
    )  # fmt: skip
    return Comparison(entries=(plain,))


def test_batches_are_refused_before_training() -> None:
    def made() -> Any:
        raise AssertionError("nothing may be made")

    with pytest.raises(DataError, match="x is a generator"):
        shoal.compare(made, (row for row in [1.0]), strategies=["aeasgd"])


def test_runs_that_stand_are_compared(tmp_path: Path):
    summaries: list[RunSummary] = []
    for strategy, factor in (("adag", 1.0), ("easgd", 2.0)):
        with create(tmp_path, strategy) as run:
            run.event("run_started", strategy=strategy, workers=2, rows=100, epochs=2)
            for epoch in range(2):
                metrics = {"loss": factor / (epoch + 1), "note": "no number"}
                run.event("epoch_ended", epoch=epoch, samples=100, metrics=metrics)
            run.finish("finished")
        summaries.append(read_summary(run.folder))
    found = Comparison.of_runs(summaries)
    assert [entry.strategy for entry in found.entries] == ["adag", "easgd"]
    assert [point.samples for point in found.entries[1].points] == [100, 200]
    assert found.entries[1].metrics == {"loss": 1.0}
    assert found.rows[0]["samples_per_s"] > 0
    assert Comparison.of_runs([RunSummary()]).rows[0]["samples_per_s"] == 0.0


def test_runs_that_stand_have_their_parameters_and_their_seed() -> None:
    ends = ({"epoch": 0, "seconds": 2.0, "samples": 100.0},)
    runs = [
        RunSummary(
            strategy=setting.partition(":")[0], setting=setting, seed=seed, workers=2,
            seconds=seconds, samples_committed=100, epoch_ends=ends,
        )
        for setting, seed, seconds in [
            ("single", 1, 4.0), ("single", 2, 2.0), ("adag:period=7", 2, 1.0),
            ("adag", 3, 1.0), ("adag", None, 1.0),
        ]
    ]  # fmt: skip
    rows = Comparison.of_runs(runs).rows
    assert [row["seed"] for row in rows] == [1, 2, 2, 3, 0]
    assert rows[2]["strategy"] == "adag:period=7"
    assert rows[2]["ratio"] == 2.0  # 100 a second to 50, of single with the same seed
    assert rows[3]["ratio"] == round(100 / 37.5, 3)  # of the mean of both
