from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from shoal.easydist import ExecutionEnvironment
from shoal.easydist.experiment import begin_experiment
from shoal.easydist.report import ExperimentReport
from shoal.easydist.timing import HEADER, Spent, spent
from shoal.errors import ConfigError, DataError, ShoalError, ShoalWarning
from shoal.runs.catalogue import list_runs
from shoal.runs.folder import Folder
from shoal.runs.store import create
from shoal.runs.use import Use
from tests.data.files.writing import npy_bytes
from tests.s3 import Bucket


class Rows:
    def preprocess(self, keys: list[str], objects: list[Any]) -> Any:
        x = np.concatenate([np.load(stream) for stream in objects])
        return x, x.sum(1, keepdims=True), len(x)


def linear() -> Any:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="line")
    model.compile("sgd", "mse")
    return model


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHOAL_RUNS", raising=False)
    return tmp_path


@pytest.fixture
def data(s3: Bucket) -> Bucket:
    x = np.random.default_rng(0).normal(size=(64, 2))
    for number in range(4):
        s3.put(f"rows/{number}.npy", npy_bytes(x[number * 16 :][:16]))
    return s3


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({}, "names no bucket"),
        ({"bucket": "a", "bucket_name": "b"}, "'a' and bucket_name='b' differ"),
        ({"bucket_name": "s3://a"}, "bucket='s3://a' is not a bucket's name"),
        ({"bucket": "a/b"}, "Put the path into prefix="),
    ],
)
def test_wrong_buckets(names: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        ExecutionEnvironment(**names)


def test_both_names_of_the_bucket():
    assert ExecutionEnvironment(bucket="a", prefix="x/").url == "s3://a/x/"
    assert ExecutionEnvironment(bucket_name="a", prefix="x/y-*").url == "s3://a/x/y-*"
    both = ExecutionEnvironment(bucket="a", bucket_name="a")
    assert both.url == "s3://a/"


def test_no_preprocessing_beside_the_script(home: Path):
    with pytest.raises(ConfigError, match=r"no preprocessing\.py in .*easydist\. Exp"):
        ExecutionEnvironment(bucket="b", model=linear()).fit()
    assert list(home.iterdir()) == []


def test_a_preprocessing_without_the_class(home: Path):
    (home / "preprocessing.py").write_text("Preprocess = 3\n")
    script = {"__name__": "script", "__file__": str(home / "model.py"), "m": linear()}
    code = (
        "from shoal.easydist import ExecutionEnvironment\n"
        "ExecutionEnvironment(bucket='b').fit()\n"
    )
    sys.modules.pop("preprocessing", None)
    try:
        with pytest.raises(DataError, match="defines no Preprocessing"):
            exec(code, script)
    finally:
        sys.modules.pop("preprocessing", None)


def test_arguments_of_the_environment_are_refused_in_fit(home: Path):
    with pytest.raises(ConfigError, match="was given epochs="):
        ExecutionEnvironment(bucket="b", model=linear()).fit(epochs=3)


def test_a_run_is_copied_to_storage_elsewhere(
    home: Path, data: Bucket, monkeypatch: pytest.MonkeyPatch
):
    root = f"memory://{home.name}"
    monkeypatch.setenv("SHOAL_RUNS", root)
    made = ExecutionEnvironment(
        bucket=data.name, prefix="rows", model=linear(), preprocess=Rows, workers=1
    )
    history = made.fit(verbose=0)
    [copied] = list_runs(root)
    assert (copied.id, copied.status) == (history.run.id, "finished")
    assert (home / "shoal-runs" / history.run.id).is_dir()
    assert Folder.at(root).exists(f"{history.run.id}/experiments/report.txt")


@pytest.mark.process
def test_a_run_in_this_process(
    home: Path, data: Bucket, capsys: pytest.CaptureFixture[str]
):
    seen: list[int] = []
    watcher = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda e, logs: seen.append(e)
    )
    model = linear()
    history = ExecutionEnvironment(
        bucket_name=data.name, prefix="rows", epochs=2, batch_size=4, opt="adam",
        preprocess=Rows, workers=2, strategy="downpour",
    ).fit(callbacks=watcher)  # fmt: skip
    assert isinstance(model.optimizer, keras.optimizers.Adam)
    assert seen == history.epoch == [0, 1]
    assert history.experiment == 1
    assert history.run.summary().samples_committed == 128
    text = capsys.readouterr().out
    assert "step " in text
    assert "of epoch 1/2  loss " in text
    assert "Experiment 1\n" in text
    folder = home / "models" / "001"
    found = sorted(path.name for path in folder.iterdir())
    assert found == ["best.keras", "best.weights.h5", "last.keras", "network.json"]
    best = keras.models.load_model(folder / "best.keras")
    rebuilt = keras.models.model_from_json((folder / "network.json").read_text())
    rebuilt.load_weights(folder / "best.weights.h5")
    for one, other in zip(best.get_weights(), rebuilt.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    consoles = home / "experiments" / "001"
    texts = [path.read_text() for path in sorted(consoles.glob("worker-*.log"))]
    assert len(texts) == 2
    # So few samples that the first worker may be done before the other one begins.
    assert any("preprocessing: 4 files" in text for text in texts)
    [run] = list_runs(home / "shoal-runs")
    assert (run.id, run.status) == (history.run.id, "finished")
    assert (consoles / "report.txt").read_text() in text


class OnlyHere:
    """Works in the process that made it, and in no worker."""

    def __init__(self) -> None:
        self.home = os.getpid()

    def preprocess(self, keys: list[str], objects: list[Any]) -> Any:
        if os.getpid() != self.home:
            print("what the user prints", flush=True)
            raise KeyError("label")
        return Rows().preprocess(keys, objects)


@pytest.mark.process
def test_a_run_that_fails_keeps_its_consoles(home: Path, data: Bucket):
    made = ExecutionEnvironment(
        bucket=data.name, prefix="rows", model=linear(), preprocess=OnlyHere(),
        workers=1, batch_size=4,
    )  # fmt: skip
    with pytest.raises(ShoalError, match="label"):
        made.fit(verbose=0)
    console = home / "experiments" / "001" / "worker-0.log"
    assert "what the user prints" in console.read_text()
    [run] = list_runs(home / "shoal-runs")
    assert run.status == "failed"
    assert not (home / "models").exists()


def test_a_run_that_cannot_start_leaves_no_folder(home: Path, data: Bucket):
    made = ExecutionEnvironment(
        bucket=data.name, prefix="rows", model=linear(), preprocess=Rows, epochs=-1
    )
    with pytest.raises(ValueError, match="epochs"):
        made.fit(verbose=0)
    assert list((home / "experiments").iterdir()) == []
    assert list((home / "shoal-runs").iterdir()) == []
    assert not (home / "models").exists()


def test_numbers_are_never_taken_twice(home: Path):
    (home / "models" / "007").mkdir(parents=True)
    numbers: list[int] = []
    for _ in range(2):
        with create("shoal-runs", "x", today=date(2026, 1, 1)) as run:
            found = begin_experiment(run, home)
        (found.records / "worker-0.log").write_text("hello")
        assert (found.consoles / "worker-0.log").read_text() == "hello"
        assert not Path(found.consoles.readlink()).is_absolute()
        numbers.append(found.number)
        run.folder.remove()  # the link stays, and keeps its number
    assert numbers == [8, 9]


def test_models_that_cannot_be_copied(home: Path):
    with create("shoal-runs", "x") as run:
        run.save_model(linear(), "last")
        found = begin_experiment(run, home)
        found.models.mkdir(parents=True)
        (found.models / "last.keras").write_text("mine")
        with pytest.warns(ShoalWarning, match="cannot be copied"):
            found.save_models()
    assert (found.models / "last.keras").read_text() == "mine"


def test_no_place_for_experiments(home: Path):
    (home / "experiments").write_text("a file")
    with create("shoal-runs", "x") as run, pytest.raises(ConfigError, match="be made"):
        begin_experiment(run, home)


def test_gpus():
    use = Use()
    for percent, mib in ((70.0, 1000.0), (90.0, 900.0)):
        gpu = {"name": "NVIDIA H100", "memory_mib": mib, "total_mib": 81559.0}
        gpus = [{**gpu, "number": 0, "percent": percent}, {**gpu, "number": 1}]
        use.add({"node": "localhost", "percent": 3.0, "gpus": gpus})
    report = ExperimentReport(
        number=1, total_s=1, opening_s=0, spent=Spent(0, 0, 0), epochs_s=(), best=None,
        gpus=tuple(use.rows()[:2]),
    )  # fmt: skip
    assert "0 (NVIDIA H100): busy 80 % of the time, at most 1,000 of" in str(report)
    assert "1 (NVIDIA H100)" not in str(report)  # it does not tell


def test_recorded_times_are_summed(tmp_path: Path):
    path = tmp_path / "times.csv"
    assert spent(path, driver=7) == (0, 0, 0, 0)
    path.write_text(f"{HEADER}7,0.5,1,3\n8,0.25,1,3\n9,0.25,1,3\n9,0.5,1,3\n9")
    assert spent(path, driver=7) == (1.0, 3, 2, 0.5)


def test_importing_it_needs_no_keras():
    code = "import shoal.easydist, sys; print('keras' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
