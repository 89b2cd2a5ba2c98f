"""Comparisons, logs and the form of a new run in a real browser."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shoal.runs.store import create
from shoal.ui import packages
from shoal.ui.packages import is_there
from shoal.ui.pages import logs as log_pages
from tests.ui.conftest import TOKEN, Served, Serving, make_run
from tests.ui.test_actions import hold
from tests.ui.test_browser import (
    AXE,
    FRAME,
    _no_leaks,
    begin,
    expect,
    page,
    plots,
    served,
    violations_of_themes,
)

__all__ = ["_no_leaks", "page", "served"]
pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.timeout(300)]


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


@pytest.fixture
def logs(root: Path, served: Served, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of logs with words beyond the page, in a bar, and far within a line."""
    # A busy machine finds only some of the lines in a moment, and links to the rest.
    monkeypatch.setattr(log_pages, "SEARCH_S", 60.0)
    run = make_run(root, "fish")
    lines = "".join(
        f"line {at}\n" + f"needle {at}\n" * (at % 600 == 0) for at in range(6000)
    )
    text = f"{lines}{'a' * 500_000}needle{'b' * 500_000}\n" + "after\n" * 20_000
    run.folder.write("experiments/worker-0.log", text.encode())
    bar = "".join(f"\r{at}/3 needle-bar" for at in range(1, 4))
    run.folder.write("experiments/worker-1.log", f"{bar}\n".encode())
    return f"{served.url}/runs/runs/{run.id}/logs"


def test_only_found_lines_of_all_workers_are_shown(page: Any, logs: str):
    page.goto(logs)
    page.get_by_label("Find").fill("needle")
    expect(page.locator("#hits")).to_have_text("14 found")
    page.get_by_label("only these lines").check()
    expect(page.locator("#lines li")).to_have_count(14)
    expect(page.locator("#lines li[data-rank='0'] mark")).to_have_count(11)
    assert "only=1" in page.url
    page.reload()
    expect(page.locator("#lines li")).to_have_count(14)
    page.get_by_label("Find").press("Shift+Enter")
    expect(page.locator("#lines li.current")).to_contain_text("3/3 needle-bar")
    page.get_by_label("Find").fill("needle 600")
    expect(page.locator("#lines li")).to_have_count(1)
    page.get_by_label("Find").fill("line")  # more than a page of them
    expect(page.locator("#hits")).to_have_text("6,000 found")
    expect(page.locator("#lines li")).to_have_count(200)
    page.get_by_role("link", name="More lines").click()
    expect(page.locator("#lines li")).to_have_count(400)
    page.get_by_label("Find").press("Enter")
    expect(page.locator("#lines li.current")).to_have_text("0 line 0")
    page.get_by_label("only these lines").uncheck()
    expect(page.locator("#lines li.current mark")).to_have_text("line")
    expect(page.locator("#lines")).to_contain_text("needle 0")


def test_a_reload_keeps_the_hit_and_the_searched_logs(page: Any, logs: str):
    page.goto(f"{logs}?q=needle")
    find = page.get_by_label("Find")
    expect(page.locator("#hits")).to_have_text("14 found")
    find.press("Shift+Enter")
    expect(page.locator("#hits")).to_have_text("14 of 14")
    find.press("Shift+Enter")
    find.press("Shift+Enter")
    find.press("Shift+Enter")
    expect(page.locator("#hits")).to_have_text("11 of 14")
    # Half a million characters into a line.
    expect(page.locator("li.current mark")).to_have_text("needle")
    page.reload()
    expect(page.locator("#hits")).to_have_text("11 of 14")
    expect(page.get_by_label("Worker", exact=True)).to_have_value("")
    expect(page.locator("li.current mark")).to_be_in_viewport()
    find.press("Enter")
    expect(page.locator("#hits")).to_have_text("12 of 14")
    expect(page.locator("li.current")).to_contain_text("1/3 needle-bar")


def test_what_is_said_of_new_lines_is_said_once(page: Any, root: Path, served: Served):
    with begin(root) as run:
        path = run.log_path(0)
        assert path is not None
        path.write_text("line\n")
        page.goto(f"{served.url}/runs/runs/{run.id}/logs")
        region = page.locator("#following")
        region.evaluate(
            "place => { place.dataset.changes = 0; new MutationObserver(() => "
            "{ place.dataset.changes = 1 + Number(place.dataset.changes); })"
            ".observe(place, { childList: true }); }"
        )
        for at in range(4):
            with path.open("a") as file:
                file.write(f"line {at}\n")
            expect(page.locator("#lines li").last).to_contain_text(f"line {at}")
        expect(region).to_have_text("New lines appear here.")
        expect(region).to_have_attribute("data-changes", "1")


def test_times_of_new_lines_are_in_the_zone_of_the_reader(
    browser: Any, root: Path, served: Served
):
    with begin(root) as run:
        path = run.log_path(0)
        assert path is not None
        path.write_text("line\n")
        run.event("log_sizes", sizes={0: 5})
        context = browser.new_context(timezone_id="Asia/Kathmandu")  # UTC + 5:45
        page = context.new_page()
        page.goto(f"{served.url}/runs/runs/{run.id}/logs?token={TOKEN}")
        expect(page.locator("#lines li")).to_have_count(1)
        with path.open("a") as file:
            file.write("next\n")
        times = page.locator("#lines time")
        expect(times).to_have_count(2)
        for at in range(2):
            exact = datetime.fromisoformat(times.nth(at).get_attribute("datetime"))
            there = exact + timedelta(hours=5, minutes=45)
            assert times.nth(at).inner_text() == f"{there:%H:%M:%S}"
        context.close()


def test_a_new_run_says_what_it_does(
    page: Any, root: Path, served: Served, serving: Serving
):
    (root.parent / "train.py").write_text("def make(): ...\n")
    (root.parent / "works").touch()
    page.goto(f"{served.url}/new")
    page.get_by_label("Script").focus()
    page.keyboard.press("Tab")  # it is left as empty as it was
    expect(page.locator("#script-error")).to_contain_text("there is no Python file")
    page.get_by_label("Script").fill("train.py:nope")
    page.keyboard.press("Tab")
    expect(page.locator("#script-error")).to_contain_text("no function 'nope'")
    page.get_by_label("Script").fill("train.py")
    # Playwright waits for a page that is on its way: this one is not sent.
    page.locator("#new").evaluate(
        "form => form.addEventListener('submit', (event) => event.preventDefault(), "
        "{ once: true })"
    )
    plan = page.get_by_role("button", name="What would happen?")
    # What is pressed stays where it is, also as what was left is found to be right.
    page.set_viewport_size({"width": 1280, "height": 2400})  # it sees field and button
    box = plan.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 4)
    with page.expect_response("**/new/check?**") as answer:
        page.mouse.down()
    answer.value.finished()
    for _ in range(2):
        page.evaluate(FRAME)
    assert plan.bounding_box() == box
    page.mouse.up()
    expect(page.locator("#script-error")).to_have_text("")
    expect(page.locator("#planning")).to_contain_text("It is being planned")
    plan.click()
    expect(page.get_by_role("button", name="Start it")).to_be_visible()
    assert "/new?script=train.py" in page.url
    page.reload()
    expect(page.get_by_label("Script")).to_have_value("train.py")
    hold(serving)
    page.get_by_role("button", name="Start it").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Starting")
    page.get_by_role("link", name="Look again").focus()
    page.evaluate("document.documentElement.dataset.same = 'yes'")
    expect(page.locator("small")).to_contain_text(re.compile(r"Started [2-9]"))
    expect(page.get_by_role("link", name="Look again")).to_be_focused()
    (root.parent / "hold").write_text("")
    expect(page.get_by_role("heading", level=1)).to_have_text("Not started")
    expect(page.locator("html")).to_have_attribute("data-same", "yes")
    expect(page.locator("main")).to_be_focused()


def test_axe_finds_nothing_in_what_is_found_refused_or_left_out(
    page: Any, root: Path, served: Served, logs: str
):
    if not is_there(packages.AXE, AXE.parent):
        pytest.skip("needs axe-core: python hatch_build.py")
    run = make_run(root, "eel")
    run.folder.write("experiments/worker-0.log", b"a\nERROR b\nTraceback\n")
    own = f"{served.url}/runs/runs/{run.id}/logs"
    form = f"{served.url}/new?epochs=x&checked=yes"
    compare = f"{served.url}/compare?runs=runs/{run.id}&runs=runs/none&draw=svg"
    for path in (f"{logs}?q=line&only=1", own, form, compare):
        page.goto(path)
        if path.startswith(logs):
            expect(page.locator("mark").first).to_be_visible()
        assert violations_of_themes(page) == [], path
