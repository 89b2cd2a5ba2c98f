"""Workers that average gradients among themselves, as processes: on torch.

What a plan refuses is in `tests/test_plan_gpus.py`, what becomes of a group in
`tests/engine/test_groups.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.testing import faults
from tests.backends.cases import BACKEND, BATCH_SIZE, ROWS, make
from tests.backends.test_every_backend import close
from tests.backends.test_every_backend import fit as fit_inline

EPOCHS = 2
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(BACKEND != "torch", reason="it forms no groups"),
]


def fit(name: str, folder: Path, workers: int) -> tuple[Any, Any]:
    """Trains; returns the model and the run."""
    model, data = make(name)
    history = shoal.fit(
        model, **data, workers=workers, collective="native", batch_size=BATCH_SIZE,
        epochs=EPOCHS, shuffle=False, seed=1, verbose=0, run=str(folder / "run"),
    )  # fmt: skip
    return model, history.run


def logs(run: Any) -> str:
    files = Path(run.url).rglob("worker-*.log")
    return "".join(path.read_text() for path in files)


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_the_curve_is_that_of_keras(workers: int, tmp_path: Path) -> None:
    plain, data = make("arrays")
    fit_inline(plain, data)
    ours, run = fit("arrays", tmp_path, workers)
    close("arrays", ours, plain)
    assert logs(run).count(f"group 0-1 formed by {workers} workers") == workers
    assert "broke" not in logs(run)


@pytest.mark.slow
def test_statistics_of_batch_norm_are_those_of_the_server(tmp_path: Path) -> None:
    ours, data = make("batch_norm")
    fit_inline(ours, data, strategy="all_reduce", workers=2)
    close("batch_norm", fit("batch_norm", tmp_path, 2)[0], ours)


def test_a_killed_worker_costs_no_sample(tmp_path: Path) -> None:
    with faults.kill(rank=1, step=3):
        model, run = fit("arrays", tmp_path, 3)
    found = run.summary()
    assert found.samples_committed == found.samples_expected == ROWS * EPOCHS
    assert found.workers_lost == 1
    assert "broke" in logs(run)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
