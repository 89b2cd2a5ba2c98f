from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from shoal.cli.app import app
from shoal.runs.store import StoredRun, create


@pytest.fixture
def shoal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Calls the command line in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHOAL_RUNS", raising=False)
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., StoredRun]:
    """Makes a run in ./shoal-runs; it is closed."""

    def make(name: str = "higgs", *, day: int = 21, ended: bool = True) -> StoredRun:
        root = tmp_path / "shoal-runs"
        with create(root, name, today=date(2026, 11, day)) as run:
            run.event("run_started", strategy="aeasgd", workers=2, rows=96, epochs=1)
            for rank, text in enumerate(("zero\nnull\n", "one\n")):
                log = run.log_path(rank)
                assert log is not None
                log.write_text(text)
            run.exchanges([{"rank": r, "epoch": 0, "samples": 48} for r in (0, 1)])
            run.event("worker_lost", rank=1, reason="killed by SIGKILL", step=3)
            run.event("warning", text="small data")
            metrics = {"loss": 0.5, "accuracy": 0.75}
            run.event("epoch_ended", epoch=0, metrics=metrics, samples=96)
            if ended:
                run.finish("finished")
        return run

    return make
