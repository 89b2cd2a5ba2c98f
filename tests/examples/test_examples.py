"""The examples run as a user would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, folder: Path) -> str:
    """What an example prints; it works in any folder and leaves nothing there."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=folder, capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert not list(folder.iterdir())
    return done.stdout


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, text
    return float(found[1])


@pytest.mark.process
@pytest.mark.examples
def test_keras_tuner_finds_a_best_trial_and_its_model(tmp_path: Path):
    pytest.importorskip("keras_tuner")
    said = run("keras_tuner_search.py", tmp_path)
    assert re.search(r"best of 3 trials: width=(2|16|32), rate=0\.\d+", said), said
    score = number(r"val_accuracy=(\d\.\d+)", said)
    assert score > 0.75  # 0.5 is chance
    # The weights that the tuner saved, as trained, while Shoal trained.
    assert number(r"of the best model: (\d\.\d+)", said) == pytest.approx(score)


@pytest.mark.process
@pytest.mark.examples
def test_optuna_finds_a_best_trial_and_prunes_others(tmp_path: Path):
    pytest.importorskip("optuna")
    said = run("optuna_search.py", tmp_path)
    assert re.search(r": width=(2|16|32), rate=0\.\d+", said), said
    assert number(r"best of 6 trials, (\d) of them pruned", said) >= 1
    assert number(r"val_accuracy=(\d\.\d+)", said) > 0.75
