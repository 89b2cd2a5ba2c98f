"""The page of a run in a real browser: what changes while somebody reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.ui.conftest import Served, make_run
from tests.ui.test_browser import (
    _no_leaks,
    begin,
    drawn,
    expect,
    page,
    plots,
    served,
)

__all__ = ["_no_leaks", "page", "served"]
pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.timeout(300)]

REASON = """WorkerFailed: worker 0 failed: bad cell
second line

Traceback (most recent call last):
ValueError: bad cell"""


def test_a_run_that_fails_shows_why_and_its_files_without_a_reload(
    page: Any, root: Path, served: Served
):
    with begin(root) as run:
        page.goto(f"{served.url}/runs/runs/{run.id}")
        expect(page.locator(".state")).to_contain_text("running")
        run.folder.write("models/last.keras", b"model")
        run.folder.write("experiments/worker-0.log", b"hello\n")
        run.event("checkpoint_written", number=7, bytes=6700)
        run.finish("failed", {"reason": REASON})
        expect(page.locator("pre.bad")).to_be_visible()
        expect(page.locator("pre.bad")).to_contain_text("ValueError: bad cell")
        expect(page.locator(".notice").first).to_contain_text("second line")
        expect(page.get_by_role("link", name="last.keras")).to_be_visible()
        expect(page.get_by_role("link", name="Logs")).to_be_visible()
        page.locator("summary", has_text="Traceback").click()
        run.event("note", text="later")
        expect(page.locator(".moments")).to_contain_text("later")
        expect(page.locator("pre.bad")).to_be_hidden()
        time = page.locator(".facts time")
        expect(time).not_to_contain_text("UTC")


def test_values_are_exact_and_what_a_run_changes_is_not_announced(
    page: Any, root: Path, served: Served
):
    with begin(root) as run:
        push = {"rank": 0, "epoch": 0, "samples": 255_808, "loss": 1.0}
        run.exchanges([{**push, "t": 1.0}])
        page.goto(f"{served.url}/runs/runs/{run.id}")
        expect(plots(page)).to_have_count(1)
        chart = page.get_by_role("group", name="loss against samples")
        figure = page.locator("figure", has=chart)
        readout, told = figure.locator(".readout"), figure.get_by_role("status")
        chart.focus()
        page.keyboard.press("Home")
        expect(readout).to_contain_text("255,808 samples")
        first = readout.inner_text()
        expect(told).to_have_text(first)
        before = drawn(page)
        run.exchanges([{**push, "t": 2.0, "loss": 3.0}])
        expect(page.locator("#charts")).not_to_have_attribute("data-drawn", before)
        page.mouse.move(0, 0)
        box = plots(page).first.bounding_box()
        page.mouse.move(box["x"] + box["width"] - 40, box["y"] + 100)
        expect(readout).not_to_have_text(first)
        expect(told).to_have_text(first)


def test_each_chart_has_a_table_that_changes_with_it(
    page: Any, root: Path, served: Served
):
    with begin(root) as run:
        push = {"rank": 0, "epoch": 0, "samples": 64, "loss": 1.0, "staleness": 1}
        run.exchanges([{**push, "t": float(at)} for at in range(5)])
        run.event("epoch_ended", epoch=0, samples=320, metrics={"loss": 0.25})
        page.goto(f"{served.url}/runs/runs/{run.id}")
        expect(plots(page)).to_have_count(3)
        for name in ("samples/s", "staleness"):
            page.get_by_text(f"{name} as a table").click()
            region = page.get_by_role("region", name=f"Table of {name}")
            expect(region.locator("tbody tr")).to_have_count(1)
        page.get_by_text("loss as a table").click()
        table = page.get_by_role("region", name="Table of loss")
        expect(table.locator("thead th")).to_have_text(
            ["samples", "loss of exchanges", "loss"]
        )
        expect(table.locator("tbody tr").last).to_have_text("32010.25")
        run.exchanges([{**push, "t": 5.0, "loss": 7.0}])
        expect(table.locator("tbody tr").last).to_have_text("3847")
        page.get_by_text("loss as a table").click()
        expect(table).to_have_count(0)


def test_a_zoom_stays_within_the_data(page: Any, root: Path, served: Served):
    run = make_run(root, "fish")
    page.goto(f"{served.url}/runs/runs/{run.id}")
    expect(plots(page)).to_have_count(2)
    page.get_by_role("group", name="loss against samples").focus()
    page.keyboard.press("Home")
    page.keyboard.press("+")
    expect(page.locator("#charts")).to_have_attribute("data-drawn", "2")
    assert "from=64&to=672" in page.url
    page.keyboard.press("-")
    expect(page.locator("#charts")).to_have_attribute("data-drawn", "3")
    assert "from=" not in page.url
