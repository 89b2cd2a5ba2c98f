"""Callbacks of TensorBoard, wandb and mlflow, offline, and export, where installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

TRAIN = """
import numpy as np, keras, shoal
x = np.random.default_rng(0).standard_normal((300, 8)).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile("adam", "mse")

def train(callback):
    return shoal.fit(model, x, x[:, :1], strategy="all_reduce", workers=2, epochs=2,
                     callbacks=[callback], run=False, verbose=0).history["loss"]
"""

TENSORBOARD = """
from pathlib import Path
train(keras.callbacks.TensorBoard("board", update_freq=5, histogram_freq=1))
assert list(Path("board").glob("train/events.out.*"))
if keras.backend.backend() != "torch":  # Keras cannot export a Sequential there
    model.export("exported", verbose=False)
    import tensorflow as tf
    loaded = tf.saved_model.load("exported")
    assert np.allclose(loaded.serve(x[:8]), model.predict(x[:8], verbose=0), atol=1e-5)
"""

WANDB = """
import wandb
from wandb.integration.keras import WandbMetricsLogger
with wandb.init(mode="offline", dir=".", project="shoal") as run:
    losses = train(WandbMetricsLogger(log_freq=5))
    logged = dict(run.summary)
assert abs(logged["epoch/loss"] - losses[-1]) < 1e-6, logged
assert "batch/loss" in logged, logged
"""

MLFLOW = """
import mlflow, mlflow.keras
with mlflow.start_run() as run:
    losses = train(mlflow.keras.MlflowCallback())
kept = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
assert np.allclose([metric.value for metric in kept], losses), kept
"""


@pytest.mark.parametrize(
    ("needs", "script"),
    [
        # Keras' own callback needs TensorFlow, and so does wandb's; the scalars of a
        # run folder do not.
        pytest.param(
            ["tensorflow"],
            TENSORBOARD,
            id="tensorboard and export",
            marks=pytest.mark.examples,
        ),
        pytest.param(["wandb", "tensorflow"], WANDB, id="wandb"),
        pytest.param(["mlflow"], MLFLOW, id="mlflow"),
    ],
)
def test_after_or_in_fit(tmp_path: Path, needs: list[str], script: str) -> None:
    for name in needs:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    # In a process of its own: all of them leave threads and services behind.
    (tmp_path / "train.py").write_text(TRAIN + script)
    done = subprocess.run(
        [sys.executable, "train.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            **os.environ,
            "MLFLOW_ALLOW_FILE_STORE": "true",
            "MLFLOW_TRACKING_URI": f"file://{tmp_path}/tracked",
        },
    )
    assert done.returncode == 0, done.stderr
