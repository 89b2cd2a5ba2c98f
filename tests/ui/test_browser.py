"""The page in a real browser: what only a browser decides.

Needs Debian's chromium, `apt-get install --no-install-recommends chromium`. A request
to another host, and anything that the console calls an error, fails a test.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.runs.catalogue import run_ids
from shoal.runs.control import read_stop
from shoal.runs.store import StoredRun, create
from tests.ui.conftest import TOKEN, Served, Serving, make_run

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.timeout(120)]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
WIDTHS = (360, 768, 1440)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        if os.environ.get("SHOAL_REQUIRE_BROWSER"):
            pytest.fail("there is no chromium, and this machine should have one")
        pytest.skip("needs chromium")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield found
        found.close()


@pytest.fixture(autouse=True)
def _no_leaks() -> None:
    """In place of the check of all tests: a browser starts processes as it needs them.

    They end with the browser, and it with this file.
    """


@pytest.fixture
def served(serving: Serving, root: Path) -> Served:
    return serving.start(root)


@pytest.fixture
def page(browser: Any, served: Served) -> Iterator[Any]:
    """A new context, inside, and everything that it must not do is noted."""
    context = browser.new_context()
    found = context.new_page()
    found.set_default_timeout(20_000)
    wrong: list[str] = []
    found.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on(
        "request",
        lambda r: None if r.url.startswith(served.url) else wrong.append(r.url),
    )
    found.goto(f"{served.url}/?token={TOKEN}")
    yield found
    context.close()
    assert wrong == []


def expect(locator: Any) -> Any:
    api = pytest.importorskip("playwright.sync_api")
    api.expect.set_options(timeout=20_000)
    return api.expect(locator)


def test_the_token_leaves_the_address(page: Any, served: Served):
    assert page.url == f"{served.url}/"
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")


def test_a_keystroke_filters(page: Any, root: Path, served: Served):
    for name in ("cod", "eel"):
        make_run(root, name)
    page.goto(f"{served.url}/")
    expect(page.locator("#runs tbody tr:visible")).to_have_count(2)
    page.keyboard.press("Tab")
    page.get_by_label("Find").focus()
    page.keyboard.type("eel")
    expect(page.locator("#runs tbody tr:visible")).to_have_count(1)
    expect(page.locator("#count")).to_contain_text("1 of 2 runs")
    page.reload()
    expect(page.locator("#runs tbody tr:visible")).to_have_count(1)
    assert page.url.endswith("q=eel")


def test_rows_of_running_runs_change_in_place(page: Any, root: Path, served: Served):
    with begin(root) as run:
        page.goto(f"{served.url}/")
        row = page.locator("#runs tbody tr")
        expect(row).to_contain_text("running")
        page.get_by_label(re.compile("^Choose")).check()
        run.event("epoch_ended", epoch=0, samples=640, metrics={"loss": 0.5})
        expect(row).to_contain_text("50 %")
        expect(row).to_contain_text("loss 0.5")
        run.finish("failed")
        expect(row).to_contain_text("failed")
        expect(page.get_by_label(re.compile("^Choose"))).to_be_checked()


def begin(root: Path, name: str = "live") -> StoredRun:
    run = create(str(root), name)
    run.event("run_started", strategy="adag", workers=2, rows=640, epochs=2)
    run.event("worker_started", rank=0, pid=1, node="localhost")
    return run


def test_a_run_is_watched_without_a_reload(page: Any, root: Path, served: Served):
    with begin(root) as run:
        page.goto(f"{served.url}/runs/runs/{run.id}")
        expect(page.locator(".state")).to_contain_text("running")
        for at in range(5):
            record = {"rank": 0, "epoch": 0, "samples": 64, "loss": 1.0 / (at + 1)}
            run.exchanges([{**record, "t": run.seconds}])
        expect(page.locator("svg.chart")).to_have_count(1)
        expect(page.locator("body")).to_contain_text("320 of 1,280 samples")
        run.event("worker_lost", rank=0, reason="killed by SIGKILL")
        expect(page.locator(".moments")).to_contain_text("worker 0 lost: killed")
        expect(page.locator("svg .mark")).to_have_count(1)
        page.get_by_text("Stop…").click()
        page.get_by_role("button", name="Stop the run").click()
        expect(page.locator("h1")).to_contain_text("live")
        assert read_stop(run.folder) is not None
        run.finish("interrupted")
        expect(page.locator(".state")).to_contain_text("interrupted")


def test_a_server_that_restarts_is_found_again(
    browser: Any, root: Path, serving: Serving
):
    with begin(root) as run:
        first = Serving()
        served = first.start(root)
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{served.url}/runs/runs/{run.id}?token={TOKEN}")
        expect(page.locator(".state")).to_contain_text("running")
        first.close()
        expect(page.locator("#link-state")).to_have_text("Reconnecting…")
        again = serving.start(root, port=served.port)
        assert again.port == served.port
        expect(page.locator("#link-state")).to_have_text("")
        run.event("worker_lost", rank=0, reason="killed")
        expect(page.locator(".moments")).to_contain_text("worker 0 lost")
        context.close()


def test_a_run_that_is_removed_says_so(page: Any, root: Path, served: Served):
    run = make_run(root, "gone")
    page.goto(f"{served.url}/runs/runs/{run.id}")
    expect(page.locator("svg.chart")).to_have_count(1)
    shutil.rmtree(root / run.id)
    expect(page.locator("#link-state")).to_have_text("This run was removed.")


def test_chosen_runs_are_removed(page: Any, root: Path, served: Served):
    gone, kept = make_run(root, "gone"), make_run(root, "kept")
    page.goto(f"{served.url}/")
    page.get_by_label(re.compile("^Choose .*gone")).check()
    page.get_by_role("button", name="Remove chosen…").click()
    expect(page.locator("main")).to_contain_text(gone.id)
    page.get_by_role("button", name="Remove 1").click()
    expect(page.locator("#runs tbody tr")).to_have_count(1)
    assert run_ids(root) == [kept.id]


def test_the_theme_is_remembered(page: Any, served: Served):
    theme = page.locator("#theme")
    theme.click()
    theme.click()
    expect(theme).to_have_text("Theme: dark")
    page.reload()
    expect(theme).to_have_text("Theme: dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_is_wider_than_the_window(
    width: int, page: Any, root: Path, served: Served
):
    run = make_run(root, "a" * 120)
    run.folder.write("experiments/worker-0.log", b"x" * 1_000_000)
    page.set_viewport_size({"width": width, "height": 740})
    for path in ("/", f"/runs/runs/{run.id}", f"/runs/runs/{run.id}/logs", "/help"):
        page.goto(f"{served.url}{path}")
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, path
