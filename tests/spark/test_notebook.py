"""The notebook of 2016 on real events, and its frames with a session of Spark 2."""

from __future__ import annotations

import gzip
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
