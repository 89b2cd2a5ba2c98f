"""The page of several runs: its table, bars and files."""

from __future__ import annotations

import csv
import html
import io
import re
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest

import shoal
from shoal.runs.store import create
from shoal.runs.summary import RunSummary
from shoal.ui.comparing import bars_of, columns_of, differing, styles_of
from shoal.ui.pages.compare import MOST_RUNS
from shoal.ui.site import seconds
from tests.ui.conftest import Serving, make_run

keras = pytest.importorskip("keras")


def plan_of(seed: int, batch_size: int = 64) -> dict:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.zeros((640, 3), "f4"), np.zeros((640, 1), "f4")
    found = shoal.plan(
        model, x, y, workers=2, cluster="inline", seed=seed, batch_size=batch_size
    )
    return found.to_json()


def test_seeds_of_one_setting_share_a_colour_whatever_memory_was_free():
    plans = [plan_of(1), plan_of(2), plan_of(1, batch_size=32)]
    for at, plan in enumerate(plans):
        plan["machine"]["memory_bytes"] = 10**9 + at
    settings = differing(plans)
    assert styles_of(settings) == ["s0 d0", "s0 d1", "s1 d2"]
    assert {name.partition(".")[0] for own in settings for name in own} >= {
        "seed", "batch_size"
    }  # fmt: skip
    assert not any(name.startswith("machine") for own in settings for name in own)


def run_with(*epochs: dict[str, float], setting: str = "adag") -> RunSummary:
    ends = tuple(
        {"epoch": at, "seconds": at + 1.0, "samples": 100 * (at + 1)}
        for at in range(len(epochs))
    )
    return RunSummary(
        strategy="adag", setting=setting, workers=2, seconds=9.0, metrics=epochs,
        samples_committed=100,
        epoch_ends=ends,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "best"),
    [
        ("val_mape", 1.0), ("msle", 1.0), ("sparse_categorical_crossentropy", 1.0),
        ("kl_divergence", 1.0), ("log_cosh", 1.0), ("hinge", 1.0), ("val_loss", 1.0),
        ("false_positives", 1.0), ("auc_1", 2.0), ("true_positives", 2.0),
        ("mean_io_u", 2.0), ("cosine_similarity", 2.0), ("fuel", None),
        ("learning_rate", None),
    ],
)  # fmt: skip
def test_the_best_value_is_marked_where_its_direction_is_known(
    name: str, best: float | None
):
    runs = [run_with({name: 1.0}), run_with({name: 2.0})]
    [column] = [c for c in columns_of(runs, [{}, {}], [{}, {}]) if c.label == name]
    marked = [float(cell.text) for cell in column.cells if cell.is_best]
    assert marked == ([] if best is None else [best])


def test_the_plan_tells_the_direction_of_its_monitor_and_metrics():
    runs = [run_with({"fuel": 1.0, "speed": 1.0}), run_with({"fuel": 2.0, "speed": 2})]
    monitor = {"name": "val_fuel", "is_higher_better": False}
    plan = {"monitor": monitor, "model": {"metrics": {"speed": "up"}}}

    def best(plans: list[dict]) -> dict[str, list[bool]]:
        found = columns_of(runs, plans, [{}, {}])
        return {c.label: [cell.is_best for cell in c.cells] for c in found}

    assert best([plan, plan])["fuel"] == [True, False]
    assert best([plan, plan])["speed"] == [False, True]
    other = {"monitor": {**monitor, "is_higher_better": True}}
    assert best([plan, other])["fuel"] == [False, False]  # they contradict


def test_the_table_has_the_columns_of_shoal_compare_once_and_readable_numbers():
    runs = [
        run_with({"loss": 1.7320508075688772}, setting="single"),
        run_with({"loss": 2.0}, {"loss": 3.0}),
    ]
    names = {"strategy.name": "adag", "workers": "2", "seed": "1"}
    settings = [
        {**names, "data.rows": "1234567", "scale": "1.7320508075688772"},
        {**names, "data.rows": "10", "scale": "2"},
    ]
    columns = columns_of(runs, [{}, {}], settings)
    assert [c.label for c in columns] == [
        "Strategy", "Workers", "loss", "Seconds", "Samples/s", "Ratio to single",
        "data.rows", "scale",
    ]  # fmt: skip
    cells = {c.label: c.cells[0] for c in columns}
    assert (cells["loss"].text, cells["loss"].exact) == ("1.732", "1.7320508075688772")
    assert (cells["data.rows"].text, cells["data.rows"].exact) == (
        "1,234,567", "1234567"
    )  # fmt: skip
    assert (cells["scale"].text, cells["scale"].exact) == ("1.732", str(3**0.5))


def test_bars_are_of_a_metric_whatever_is_best_in_each_run():
    runs = [run_with({"loss": 2.0, "auc": 0.5}, {"loss": 3.0}), run_with({"loss": 1.0})]
    plans = [{}, {}]
    loss, time = bars_of(runs, plans, "loss", seconds)
    assert (loss.title, loss.bars) == ("best loss", [("2", 100.0), ("1", 50.0)])
    assert time.bars == [("9.0 s", 100.0), ("9.0 s", 100.0)]
    assert bars_of(runs, plans, "auc", seconds)[0].bars == [("0.5", 100), ("none", 0)]


def make_other(root: Path, name: str) -> str:
    with create(str(root), name) as run:
        run.event("run_started", strategy="adag", workers=2, rows=640, epochs=1)
        metrics = {"loss": 0.25, "auc": 0.5}
        run.event("epoch_ended", epoch=0, samples=640, metrics=metrics)
        run.finish("finished")
    return run.id


def test_the_metric_of_the_bars_is_chosen(serving: Serving, root: Path):
    runs = [make_run(root, "cod").id, make_other(root, "eel")]
    served = serving.start(root)
    query = urlencode({"runs": [f"runs/{run}" for run in runs]}, doseq=True)
    text = served.ask(f"/compare?{query}&x=seconds").text
    assert "best loss" in text  # val_loss is best in the first, which the other lacks
    [link] = re.findall(r'href="([^"]+bar=auc[^"]*)"', text)
    assert "x=seconds" in link
    text = served.ask(html.unescape(link)).text
    assert "best auc" in text
    assert '<input type="hidden" name="bar" value="auc">' in text
    assert "none" in text


def test_runs_that_are_left_out_are_named(serving: Serving, root: Path):
    run = make_run(root, "cod").id
    served = serving.start(root)
    names = [f"runs/{run}", "runs/none", "runs/<b>"]
    text = served.ask(f"/compare?{urlencode({'runs': names}, doseq=True)}").text
    assert "Left out, as they are gone" in text
    assert "runs/none, runs/&lt;b&gt;." in text
    many = [f"runs/{run}", *(f"runs/x{at}" for at in range(MOST_RUNS + 3))]
    text = served.ask(f"/compare?{urlencode({'runs': many}, doseq=True)}").text
    assert "and 3 more" in text
    assert "Left out" not in served.ask(f"/compare?runs=runs/{run}").text
    fields = {"do": "compare", "form_token": served.site.access.form_token, "run": many}
    answer = served.ask(
        "/choose",
        method="POST",
        headers={
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": f"http://127.0.0.1:{served.port}",
        },
        body=urlencode(fields, doseq=True).encode(),
    )
    assert answer.status == 303
    assert "and 3 more" in served.ask(answer.headers["location"]).text


def test_the_file_has_losses_of_exchanges_and_the_window(serving: Serving, root: Path):
    run = make_run(root, "cod").id
    served = serving.start(root)

    def rows(query: str) -> list[dict[str, str]]:
        answer = served.ask(f"/compare.csv?runs=runs/{run}&{query}")
        return list(csv.DictReader(io.StringIO(answer.text)))

    exchanges = [r for r in rows("") if r["metric"] == "loss of exchanges"]
    assert len(exchanges) == 20
    assert (exchanges[0]["worker"], exchanges[0]["value"]) == ("0", "2.0")
    assert {r["samples"] for r in rows("from=600&to=700")} == {"640"}
    assert {r["metric"] for r in rows("x=epoch&from=1.5&to=2")} == {"loss", "val_loss"}
    text = served.ask(f"/compare?runs=runs/{run}&from=600&to=700").text
    assert "/compare.csv?runs=runs%2F" in text
    assert "from=600.0&amp;to=700.0" in text
