"""Comparisons, logs and the form of a new run in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.runs.store import create
from tests.ui.conftest import Served
from tests.ui.test_browser import _no_leaks, browser, expect, page, plots, served

__all__ = ["_no_leaks", "browser", "page", "served"]
pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.timeout(120)]


def test_a_wide_table_scrolls_in_its_region(page: Any, root: Path, served: Served):
    names: list[str] = []
    for at, name in enumerate(("cod", "eel", "ray", "tuna")):
        with create(str(root), name) as run:
            run.event("run_started", strategy="adag", workers=2, rows=640, epochs=1)
            metrics = {"loss": 1.0 + at, "auc": 0.5 + at / 10, "mean_squared_error": at}
            run.event("epoch_ended", epoch=0, samples=640, metrics=metrics)
            run.finish("finished")
        names.append(f"runs=runs/{run.id}")
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{served.url}/compare?{'&'.join(names)}")
    expect(plots(page).first).to_be_visible()
    assert page.locator("#compared .hidden").count() > 2
    assert page.evaluate("document.documentElement.scrollWidth") == 360
