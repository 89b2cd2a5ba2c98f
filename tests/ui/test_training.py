"""A real training of two workers, watched, hurt, stopped and resumed in the page."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.runs.catalogue import read_summary, run_ids
from shoal.runs.folder import Folder
from shoal.ui.starting import Starter
from tests.ui.conftest import TOKEN, Served, Serving
from tests.ui.test_browser import plots

pytestmark = [
    pytest.mark.ui, pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(900)
]  # fmt: skip

SCRIPT = """
import sys
import keras, numpy as np, shoal

def make():
    x = np.random.default_rng(0).standard_normal((8192, 64)).astype("f4")
    return make_model, x, (x[:, :1] > 0).astype("f4")

def make_model():
    layers = [keras.layers.Dense(512, "relu"), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    return model
"""
EPOCHS, ROWS = 40, 8192


@pytest.fixture(autouse=True)
def _no_leaks() -> None:
    """In place of the check of all tests: what the page starts outlives it."""


@pytest.fixture
def served(serving: Serving, root: Path) -> Served:
    serving.starter = Starter(root.parent / "state", root.parent)
    return serving.start(root, has_charts=True)


def test_a_training_from_its_form_to_its_model(
    browser: Any, root: Path, served: Served
):  # fmt: skip
    (root.parent / "train.py").write_text(SCRIPT)
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(150_000)  # a plan may take 120 s
    page.goto(f"{served.url}/new?token={TOKEN}")
    page.get_by_label("Script").fill("train.py")
    page.get_by_label("Strategy", exact=True).fill("downpour")
    page.get_by_label("period", exact=True).locator("visible=true").fill("4")
    page.get_by_label("Workers", exact=True).fill("2")
    page.get_by_label("Epochs", exact=True).fill(str(EPOCHS))
    page.get_by_label("Batch size").fill("16")
    page.get_by_role("button", name="What would happen?").click()
    slow(page.locator("#plan")).to_contain_text("downpour")
    page.get_by_role("button", name="Start it").click()
    slow(page.locator(".state")).to_contain_text("running")
    [run] = run_ids(root)
    assert page.url.endswith(f"/runs/runs/{run}")
    slow(plots(page).first).to_be_visible()
    table = page.locator('[aria-label="Table of workers"] tbody tr')
    slow(table).to_have_count(2)
    slow(table.nth(1)).to_contain_text("working")
    slow(page.locator("figure.leases rect").first).to_be_visible()
    pid = int(table.nth(1).locator("td").nth(2).inner_text())
    os.kill(pid, signal.SIGKILL)
    slow(page.locator(".moments")).to_contain_text("worker 1 lost")
    slow(page.locator(".moments")).to_contain_text("worker 1 replaced")
    page.get_by_text("Stop…").click()
    page.get_by_role("button", name="Stop the run").click()
    slow(page.locator(".state")).to_contain_text("interrupted")
    page.get_by_text("Resume…").click()
    page.get_by_role("textbox", name="Workers").fill("2")
    page.get_by_role("button", name="Resume the run").click()
    slow(page.locator(".state")).to_contain_text("running")
    slow(page.locator(".state")).to_contain_text("finished")
    summary = read_summary(Folder.at(root).child(run))
    assert summary.samples_committed == EPOCHS * ROWS
    page.reload()
    with page.expect_download() as started:
        page.get_by_role("link", name="last.keras").click()
    code = (
        "import keras, sys; print(keras.saving.load_model(sys.argv[1]).count_params())"
    )
    model = root.parent / "got.keras"
    started.value.save_as(model)
    done = subprocess.run(
        [sys.executable, "-c", code, str(model)], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str(64 * 512 + 512 + 513)
    context.close()


def slow(locator: Any) -> Any:
    """Expects what takes as long as processes start."""
    api = pytest.importorskip("playwright.sync_api")
    api.expect.set_options(timeout=120_000)  # it is read when an expectation is made
    return api.expect(locator)
