"""The example, as a user runs it: two commands, and a store of this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from tests.s3 import Bucket

EXAMPLE = Path(__file__).parents[2] / "examples" / "easydist"
REPORT = (
    r"total time +\d+\.\d\d s",
    r"preprocessing +\d+\.\d\d s",
    r"in the workers +\d+\.\d\d s: \d+ calls? in [12] process",
    r"mean epoch time +\d+\.\d\d s of \d epochs?",
    r"best loss +0\.\d+, epoch \d",
    r"GPU +\S+",
    r"run +\d{4}-\d\d-\d\d-python-or-prose-\w+",
)


# Added to the script, this reads what workers have written when an epoch is over.
LOOK = """
def look(epoch, logs):
    from pathlib import Path
    paths = Path('experiments/001').glob('worker-*.log')
    texts = [path.read_text() for path in paths]
    print('CONSOLES', sum('preprocessing: ' in text for text in texts))

"""


def start(script: Path, folder: Path, *options: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, str(script), *options],
        cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True,
        check=False, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def looks_at_consoles(folder: Path) -> Path:
    """The script of the example with a callback more, in a folder of the user's."""
    text = (EXAMPLE / "model_definition.py").read_text()
    body, _, call = text.partition("ExecutionEnvironment(\n")
    call = call.replace(
        ".fit()", ".fit(callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=look)])"
    )
    script = folder / "model_definition.py"
    script.write_text(f"{body}{LOOK}ExecutionEnvironment(\n{call}")
    shutil.copy(EXAMPLE / "preprocessing.py", folder)
    return script


@pytest.mark.process
@pytest.mark.examples
def test_the_example(s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EASYDIST_BUCKET", s3.name)
    monkeypatch.delenv("SHOAL_RUNS", raising=False)
    said = start(EXAMPLE / "make_data.py", tmp_path, "--lines", "2000", "--files", "5")
    assert "2,000 lines in 5 files" in said
    listed = s3.client.list_objects_v2(Bucket=s3.name, Prefix="text/")
    assert len(listed["Contents"]) == 5

    text = start(looks_at_consoles(tmp_path), tmp_path, EASYDIST_EPOCHS="2")
    assert re.search("CONSOLES [12]", text)
    for pattern in REPORT:
        assert re.search(pattern, text), f"{pattern} in:\n{text}"
    assert re.search(r"step \d+/\d+ of epoch 2/2  loss \d\.\d+  \d:\d\d elapsed", text)
    experiments, models = tmp_path / "experiments", tmp_path / "models"
    assert [path.name for path in experiments.iterdir()] == ["001"]
    consoles = sorted((experiments / "001").glob("worker-*.log"))
    assert len(consoles) == 2
    assert any("preprocessing: 5 files, 2000 rows" in c.read_text() for c in consoles)
    network = json.loads((models / "001" / "network.json").read_text())
    assert network["config"]["name"] == "python_or_prose"
    best = keras.models.load_model(models / "001" / "best.keras")
    assert isinstance(best.optimizer, keras.optimizers.Adam)  # opt=, not "sgd"
    assert [i.name for i in best.inputs] == ["characters", "numbers"]
    assert len(list((tmp_path / "shoal-runs").iterdir())) == 1
