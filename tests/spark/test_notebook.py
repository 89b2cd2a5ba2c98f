"""The notebook of 2016 on real events, and its frames with a session of Spark 2."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from tests.spark.conftest import needs_java

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.data,
]

HIGGS = Path(__file__).parents[2] / "examples" / "higgs_spark.py"
EVENTS = "atlas_higgs_22889.csv.gz"
TRAINERS = 5


def variables(folder: Path) -> dict[str, str]:
    """Variables for a session on this machine that starts in another process."""
    options = (
        "--conf spark.ui.enabled=false --conf spark.driver.memory=600m "
        "--conf spark.driver.host=127.0.0.1 --conf spark.driver.bindAddress=127.0.0.1 "
        "--conf spark.ui.showConsoleProgress=false "
        f"--conf spark.local.dir={folder} pyspark-shell"
    )
    return {
        **os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": options,
        "SHOAL_VERBOSE": "0", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip


@pytest.mark.timeout(600)
def test_the_notebook_runs(
    data_file: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_java()
    for name, value in variables(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SHOAL_DATA", str(data_file(EVENTS).parent))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook: Any = nbformat.read(HIGGS.with_suffix(".ipynb"), as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=400, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    said = "".join(one.get("text", "") for one in outputs)
    pictures = [one for one in outputs if "image/png" in one.get("data", {})]
    assert len(pictures) == 2
    scores = [float(score) for score in re.findall(r"F1 \(.*\): (\d\.\d+)", said)]
    assert len(scores) == TRAINERS
    assert min(scores) > 0.6  # 0.52 for background alone
    assert re.search(r"Improvement by asynchronous EASGD: \d+\.\d %", said)


@pytest.mark.timeout(600)
def test_frames_are_made_with_a_session_of_spark_2(
    data_file: Any, tmp_path: Path
) -> None:
    needs_java()
    with gzip.open(data_file(EVENTS), "rt") as whole:
        few = "".join(islice(whole, 2001))
    with gzip.open(tmp_path / EVENTS, "wt") as events:
        events.write(few)
    # What follows the frames is the same with either session.
    script, _, _ = HIGGS.read_text().partition("# %% [markdown]\n# ## Model")
    script = script.replace("using_spark_2 = False", "using_spark_2 = True")
    (tmp_path / "higgs.py").write_text(f"{script}sc.stop()\n")
    done = subprocess.run(
        [sys.executable, "higgs.py"], cwd=tmp_path, check=False, text=True,
        env={**variables(tmp_path), "SHOAL_DATA": str(tmp_path)},
        capture_output=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = re.search(r"([\d,]+) events to train on, (\d+) to test with", done.stdout)
    assert found
    assert int(found[1].replace(",", "")) + int(found[2]) == 2000


PRESSES = """
import json, os, signal, sys, threading
import nbclient, nbformat

class Client(nbclient.NotebookClient):
    def process_message(self, msg, cell, cell_index):
        if "TRAINING" in str(msg["content"].get("text", "")):
            for _ in range(2):  # the stop button
                os.kill(self.km.provisioner.pid, signal.SIGINT)
                threading.Event().wait(0.3)
        return super().process_message(msg, cell, cell_index)

cells = [nbformat.v4.new_code_cell(cell) for cell in json.load(sys.stdin)]
notebook = nbformat.v4.new_notebook(cells=cells)
Client(notebook, kernel_name="python3", timeout=200).execute()
outputs = [
    "".join(o["text"] for o in cell.outputs if o.get("name") == "stdout")
    for cell in notebook.cells
]
print(json.dumps(outputs))
"""

CELLS = (
    """
import keras, shoal
from tests.habits.cases import data, make_model
from tests.spark.conftest import open_session
from tests.spark.processes import training_processes
spark = open_session("local[2]", FOLDER)
model, (x, y) = make_model(), data(320)
before = model.get_weights()[0].copy()

class Told(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2:
            print("TRAINING", flush=True)

def train(epochs, *callbacks):
    return shoal.fit(
        model, x, y, batch_size=16, epochs=epochs, strategy="aeasgd", workers=2,
        verbose=0, run=False, cluster="spark", callbacks=[*callbacks],
    )
""",
    """
try:
    train(99999, Told())
except KeyboardInterrupt:
    print("stopped")
""",
    """
print(len(training_processes()), spark.range(100).count())
print(abs(model.get_weights()[0] - before).max() > 0)
print(train(2).run.summary().samples_committed)
spark.stop()
""",
)


@pytest.mark.spark_long
def test_a_second_stop_in_a_notebook_keeps_its_session(tmp_path: Path) -> None:
    needs_java()
    cells = [cell.replace("FOLDER", repr(str(tmp_path))) for cell in CELLS]
    # In a process of its own: Jupyter's threads and sockets live as long as that.
    done = subprocess.run(
        [sys.executable, "-c", PRESSES], input=json.dumps(cells), check=False,
        capture_output=True, text=True, timeout=300,
        env={
            **variables(tmp_path), "PYTHONPATH": str(HIGGS.parents[1]),
            "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
            "IPYTHONDIR": str(tmp_path / "ipython"),
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    outputs = json.loads(done.stdout.splitlines()[-1])
    assert "stopped" in outputs[1]
    assert outputs[2].split() == ["0", "100", "True", "640"]
