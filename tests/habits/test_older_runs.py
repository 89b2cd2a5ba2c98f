"""Runs that older versions broke off go on: see `tests/golden/runs/make.py`."""

from __future__ import annotations

import tarfile
from pathlib import Path

import keras
import pytest

import shoal
from shoal.runs.store import open_run
from tests.golden.runs import make

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(keras.backend.backend() != "jax", reason="runs of JAX"),
]
ARCHIVES = sorted(Path(make.__file__).parent.glob("*.tar.gz"))
SLOW = "before-five-rooms-all_reduce"
"""The other one of its commit is enough for every day."""


@pytest.mark.parametrize(
    "archive",
    [
        pytest.param(
            path,
            id=path.name,
            marks=pytest.mark.slow if path.name.startswith(SLOW) else (),
        )
        for path in ARCHIVES
    ],
)
def test_a_run_of_an_older_version_is_resumed(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as content:
        content.extractall(tmp_path, filter="data")
    folder = tmp_path / "run"
    # It was written on another machine, as far as anybody can tell.
    history = shoal.resume(folder, force=True, verbose=0)
    assert history.epoch == list(range(make.EPOCHS))
    found = open_run(str(folder)).summary()
    assert found.status == "finished"
    assert found.epochs == make.EPOCHS
    assert found.samples_committed == found.samples_expected == 256 * make.EPOCHS
    assert history.history["loss"][-1] < history.history["loss"][0]
