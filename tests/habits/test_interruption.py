"""Ctrl-C in a script and the stop button of a notebook."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal.training.start_run import rescue
from tests.ray_nodes import EVERYWHERE, Place

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

LESSON = """
import keras, numpy as np, psutil, shoal
from shoal.engine.controller.controller import Controller
Controller.rescue.__defaults__ = (60.0,)  # a busy machine answers in its own time
random = np.random.default_rng(0)
x = random.standard_normal((200_000, 8)).astype("float32")
y = x[:, :1] * 2 + random.standard_normal((200_000, 1))
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01, momentum=0.5), "mse")
before = model.get_weights()[0].copy()

class Marker(keras.callbacks.Callback):
    said = False
    def on_train_batch_end(self, batch, logs=None):
        if not self.said:
            self.said = True
            print("TRAINING", flush=True)

def lesson(strategy):
    shoal.fit(model, x, y, strategy=strategy, workers=2, batch_size=8, epochs=1000,
              callbacks=[Marker()], verbose=2, run=RUNS, seed=1, threads=1,
              cluster=CLUSTER)

def look():
    from shoal.runs.catalogue import list_runs
    [run] = list_runs(RUNS)
    return {
        "moved": float(abs(model.get_weights()[0] - before).max()),
        "steps": int(model.optimizer.iterations),
        "momentum": float(abs(model.optimizer.variables[2].numpy()).max()),
        "children": len(psutil.Process().children(recursive=True)),
        "status": run.status,
        "id": run.id,
    }
"""

SCRIPT = """
import json, sys
RUNS = sys.argv[1]
try:
    lesson(sys.argv[2])
except KeyboardInterrupt:
    print("LOOK", json.dumps(look()), flush=True)
    raise
"""

EXECUTE = """
import json, os, signal, sys
import nbclient, nbformat

class Client(nbclient.NotebookClient):
    def process_message(self, msg, cell, cell_index):
        if "TRAINING" in str(msg["content"].get("text", "")):
            os.kill(self.km.provisioner.pid, signal.SIGINT)  # the stop button
        return super().process_message(msg, cell, cell_index)

cells = [nbformat.v4.new_code_cell(cell) for cell in json.load(sys.stdin)]
notebook = nbformat.v4.new_notebook(cells=cells)
Client(notebook, kernel_name="python3").execute()
outputs = ["".join(o.get("text", "") for o in c.outputs) for c in notebook.cells]
print(json.dumps(outputs))
"""


def _lesson(folder: Path, cluster: str) -> str:
    runs = repr(str(folder / "runs"))
    return LESSON.replace("RUNS", runs).replace("CLUSTER", repr(cluster))


def _start(folder: Path, strategy: str, place: Place) -> subprocess.Popen[str]:
    """Starts the script and waits until it trains."""
    script = folder / "lesson.py"
    script.write_text(_lesson(folder, place.cluster) + SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder / "runs"), strategy],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "TRAINING" in line:
            return process
    raise AssertionError(process.communicate()[1])


def _end(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    output, errors = process.communicate()
    # As Python ends by Ctrl-C: with the exception, then the signal itself.
    assert process.returncode in (-signal.SIGINT, 130)
    assert "KeyboardInterrupt" in errors
    [line] = [line for line in output.splitlines() if line.startswith("LOOK")]
    return json.loads(line.removeprefix("LOOK")), errors


@EVERYWHERE
def test_ctrl_c_leaves_the_center_and_nothing_else(
    tmp_path: Path, place: Place
) -> None:
    # all_reduce: nobody but the workers has the weights of the moment.
    process = _start(tmp_path, "all_reduce", place)
    process.send_signal(signal.SIGINT)
    found, errors = _end(process)
    assert found["moved"] > 0
    assert found["steps"] > 0
    assert found["momentum"] > 0
    assert found["children"] == 0
    assert found["status"] == "interrupted"
    assert "of 200,000,000 samples" in errors
    assert f"shoal runs show {found['id']}" in errors


@EVERYWHERE
def test_a_second_ctrl_c_does_not_wait_for_the_center(
    tmp_path: Path, place: Place
) -> None:
    process = _start(tmp_path, "aeasgd", place)
    children = psutil.Process(process.pid).children(recursive=True)
    if place.cluster != "local":
        children += place.workers()
    for child in children:  # nobody answers any more
        child.suspend()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    found, _ = _end(process)
    assert found["children"] == 0
    assert not any(child.is_running() for child in children)


def test_second_ctrl_c_still_prints_the_resume_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The center is not waited for then; the line is written all the same."""
    done: list[Any] = []

    def press() -> None:
        signal.raise_signal(signal.SIGINT)

    class Driver:
        def interrupt(self, found: Any) -> str:
            done.append(found)
            press()  # once more, while it is written
            return "Interrupted: go on with it"

        def abandon(self) -> None:
            done.append("abandoned")

    driver: Any = Driver()
    with pytest.raises(KeyboardInterrupt):
        rescue(driver, press, is_told=True)
    assert done == [None, "abandoned"]
    assert capsys.readouterr().err == "Interrupted: go on with it\n"


def test_the_stop_button_of_a_notebook(tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    script = tmp_path / "execute.py"
    script.write_text(EXECUTE)
    cells = [
        _lesson(tmp_path, "local"),
        "try:\n    lesson('aeasgd')\nexcept KeyboardInterrupt:\n    print('stopped')",
        "import json; print('LOOK', json.dumps(look()))",
    ]
    # In a process of its own: Jupyter's threads and sockets live as long as that.
    done = subprocess.run(
        [sys.executable, str(script)],
        input=json.dumps(cells),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            **os.environ,
            "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
            "IPYTHONDIR": str(tmp_path / "ipython"),
        },
    )
    assert done.returncode == 0, done.stderr
    outputs = json.loads(done.stdout.splitlines()[-1])
    assert "stopped" in outputs[1]
    assert "Interrupted: the model holds" in outputs[1]
    found = json.loads(outputs[2].removeprefix("LOOK"))
    assert found["moved"] > 0
    assert found["children"] == 0
    assert found["status"] == "interrupted"
