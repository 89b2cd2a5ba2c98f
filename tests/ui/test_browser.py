"""The page in a real browser: what only a browser decides.

Needs Debian's chromium, `apt-get install --no-install-recommends chromium`. A request
to another host, and anything that the console calls an error, fails a test.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.runs.catalogue import run_ids
from shoal.runs.control import read_stop
from shoal.runs.store import StoredRun, create
from shoal.ui import packages
from shoal.ui.packages import UPLOT, is_there
from tests.s3 import s3, s3_endpoint
from tests.ui.conftest import FAILED, TOKEN, Served, Serving, make_run

__all__ = ["s3", "s3_endpoint"]
pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.timeout(300)]

WIDTHS = (360, 400, 768, 1280, 2560)
FRAME = "() => new Promise((go) => requestAnimationFrame(() => go()))"


@pytest.fixture(autouse=True)
def _no_leaks() -> None:
    """In place of the check of all tests: a browser starts processes as it needs them.

    They end with the browser: before the next test that needs none.
    """


@pytest.fixture
def served(serving: Serving, root: Path) -> Served:
    if not is_there(UPLOT):
        pytest.skip("needs uPlot: python hatch_build.py")
    return serving.start(root, has_charts=True)


@pytest.fixture
def page(
    browser: Any, served: Served, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Any]:
    """A new context, inside, and everything that it must not do is noted.

    A test that fails leaves a picture, its page and a trace in its folder of pytest.
    """
    context = browser.new_context()
    # Snapshots of each step would take a third of the time of pages with many rows.
    context.tracing.start(snapshots=False)
    found = context.new_page()
    found.set_default_timeout(60_000)
    wrong: list[str] = []
    found.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on(
        "request",
        lambda r: None if r.url.startswith(served.url) else wrong.append(r.url),
    )
    access = served.site.access
    cookie = {"name": access.cookie, "value": access.session, "url": served.url}
    context.add_cookies([{**cookie, "httpOnly": True, "sameSite": "Strict"}])
    yield found
    if request.node.stash.get(FAILED, False):
        found.screenshot(path=tmp_path / "failed.png", full_page=True)
        (tmp_path / "failed.html").write_text(found.content())
        context.tracing.stop(path=tmp_path / "failed.zip")
    context.close()
    assert wrong == []


def expect(locator: Any) -> Any:
    api = pytest.importorskip("playwright.sync_api")
    api.expect.set_options(timeout=60_000)
    return api.expect(locator)


def test_the_token_leaves_the_address(page: Any, served: Served):
    page.context.clear_cookies()
    page.goto(f"{served.url}/?token={TOKEN}")
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


def test_the_list_tells_of_new_runs_and_drops_those_that_are_gone(
    page: Any, root: Path, served: Served
):
    gone = make_run(root, "gone")
    make_run(root, "kept")
    page.goto(f"{served.url}/")
    expect(page.locator("#news")).to_have_attribute("data-begun", "yes")
    make_run(root, "new")
    expect(page.locator("#news")).to_have_text("1 new run: show it")
    shutil.rmtree(root / gone.id)
    expect(page.locator("#runs tbody tr")).to_have_count(1)
    page.get_by_role("link", name="1 new run").click()
    expect(page.locator("#runs tbody tr")).to_have_count(2)


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


@pytest.mark.parametrize("storage", ["memory", "s3"])
def test_a_bucket_of_runs(
    page: Any, serving: Serving, storage: str, request: pytest.FixtureRequest
):
    root = "memory://test-browser-bucket"
    if storage == "s3":
        root = f"{request.getfixturevalue('s3').url}/runs"
    run = make_run(root, "cod")
    with begin(root) as live:
        served = serving.start(root, has_charts=True)
        [key] = served.site.roots
        context = page.context.browser.new_context()
        other = context.new_page()
        other.goto(f"{served.url}/?token={TOKEN}")
        sizes = other.locator("#runs tbody td:last-child")
        expect(sizes.last).to_contain_text("kB")
        other.get_by_role("link", name=run.id).click()
        expect(plots(other)).to_have_count(2)
        other.get_by_role("link", name="Logs").click()
        expect(other.locator("#lines")).to_contain_text("hello")
        other.goto(f"{served.url}/runs/{key}/{live.id}")
        expect(other.locator(".state")).to_contain_text("running")
        live.finish("failed")
        expect(other.locator(".state")).to_contain_text("failed")
        context.close()


def begin(root: Path | str, name: str = "live") -> StoredRun:
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
        expect(plots(page)).to_have_count(2)
        expect(page.locator("body")).to_contain_text("320 of 1,280 samples")
        run.event("worker_lost", rank=0, reason="killed by SIGKILL")
        expect(page.locator(".moments")).to_contain_text("worker 0 lost: killed")
        page.get_by_text("Stop…").click()
        page.get_by_role("button", name="Stop the run").click()
        expect(page.locator("main")).to_contain_text("Asked to stop by")
        assert read_stop(run.folder) is not None
        run.finish("interrupted")
        expect(page.locator(".state")).to_contain_text("interrupted")


def plots(page: Any) -> Any:
    """The drawn charts of a page."""
    return page.locator(".plot canvas")


def drawn(page: Any) -> str:
    """How often the charts were drawn, as text."""
    return page.locator("#charts").get_attribute("data-drawn") or "0"


def test_values_are_read_by_keys(page: Any, root: Path, served: Served):
    run = make_run(root, "fish")
    page.goto(f"{served.url}/runs/runs/{run.id}")
    expect(plots(page)).to_have_count(2)
    chart = page.get_by_role("group", name="loss against samples")
    readout = page.locator("figure", has=chart).locator(".readout")
    chart.focus()
    page.keyboard.press("Home")
    expect(readout).to_contain_text("64 samples · loss of exchanges 2")
    page.keyboard.press("End")
    expect(readout).to_contain_text("val_loss 0.75")
    expect(readout).to_contain_text("worker 1 lost: killed by SIGKILL")
    page.keyboard.press("ArrowLeft")
    expect(readout).to_contain_text("1,152 samples")


def test_values_read_by_held_keys_are_announced_now_and_then(
    page: Any, root: Path, served: Served
):
    run = make_run(root, "fish")
    page.clock.install()
    page.goto(f"{served.url}/runs/runs/{run.id}")
    expect(plots(page)).to_have_count(2)
    chart = page.get_by_role("group", name="loss against samples")
    figure = page.locator("figure", has=chart)
    readout, told = figure.locator(".readout"), figure.get_by_role("status")
    expect(told).to_have_text("")
    page.clock.pause_at(page.evaluate("Date.now() + 60_000") / 1000)
    chart.focus()
    page.keyboard.press("Home")
    first = readout.inner_text()
    expect(told).to_have_text(first)
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    expect(readout).to_contain_text("640 samples")
    page.clock.run_for(4900)
    expect(told).to_have_text(first)
    page.clock.run_for(200)
    expect(told).to_have_text(readout.inner_text())
    last = readout.inner_text()
    # What the pointer reads is seen, and not announced.
    chart.hover(position={"x": 200, "y": 100})
    page.clock.run_for(20_000)
    expect(readout).not_to_have_text(last)
    expect(told).to_have_text(last)


def test_losses_of_single_workers_are_drawn_behind(
    page: Any, root: Path, served: Served
):
    run = make_run(root, "fish")
    page.goto(f"{served.url}/runs/runs/{run.id}")
    expect(plots(page)).to_have_count(2)
    chart = page.get_by_role("group", name="loss against samples")
    each = page.locator("figure", has=chart).get_by_role("button", name="each worker")

    def picture() -> str:
        page.evaluate(FRAME)
        return chart.locator("canvas").evaluate("(one) => one.toDataURL()")

    with_all = picture()
    each.click()
    expect(each).to_have_attribute("aria-pressed", "false")
    without = picture()
    assert without != with_all
    each.click()
    assert picture() == with_all
    page.reload()
    expect(plots(page)).to_have_count(2)
    assert picture() == with_all


def test_what_a_reader_holds_stays_as_a_run_changes(
    page: Any, root: Path, served: Served
):
    with begin(root) as run:
        page.goto(f"{served.url}/runs/runs/{run.id}")
        workers = page.get_by_role("region", name="Table of workers", exact=True)
        expect(workers.locator("tbody tr")).to_have_count(1)
        page.evaluate("""() => {
          const cell = document.querySelector("#live dl.facts dt");
          getSelection().selectAllChildren(cell);
          window.held = cell.textContent;
        }""")
        workers.focus()
        run.event("worker_lost", rank=0, reason="killed by SIGKILL")
        expect(workers).to_contain_text("killed by SIGKILL")
        expect(workers).to_be_focused()
        assert page.evaluate("getSelection().toString() === window.held")
        page.get_by_text("Stop…").click()
        stop = page.get_by_role("button", name="Stop the run")
        stop.focus()
        run.finish("failed", {"reason": "no room"})
        expect(page.locator('[data-part="head"]')).to_contain_text("no room")
        expect(stop).to_be_focused()  # what has the focus goes when the focus does
        workers.focus()
        expect(stop).to_have_count(0)
        expect(page.get_by_text("Remove…")).to_be_visible()


HELD_OBSERVERS = """
const held = [];
let isHeld = true;
window.reportAll = () => { isHeld = false; for (const one of held.splice(0)) one(); };
for (const name of ["ResizeObserver", "IntersectionObserver"]) {
  window[name] = class extends window[name] {
    constructor(tell, how) {
      const later = (...news) => { held.push(() => tell(...news)); };
      super((...news) => { (isHeld ? later : tell)(...news); }, how);
    }
  };
}
"""
"""As in a browser that has no time for a frame, until `reportAll`."""


def test_charts_are_drawn_at_once_as_wide_as_their_place(
    page: Any, root: Path, served: Served
):
    run = make_run(root, "fish")
    page.add_init_script(HELD_OBSERVERS)
    page.goto(f"{served.url}/runs/runs/{run.id}")
    expect(plots(page)).to_have_count(2)
    for at in range(2):
        chart = page.locator(".plot").nth(at)
        wide, drawn_wide = chart.evaluate(
            "chart => [chart.clientWidth, chart.querySelector('canvas').width]"
        )
        assert drawn_wide == wide > 200


def test_charts_out_of_sight_are_drawn_when_they_are_seen(
    page: Any, root: Path, served: Served
):
    page.set_viewport_size({"width": 800, "height": 300})
    page.add_init_script(HELD_OBSERVERS)
    with begin(root) as run:
        page.goto(f"{served.url}/runs/runs/{run.id}")
        exchange = {"rank": 0, "epoch": 0, "samples": 64, "steps": 1, "loss": 1.0}
        run.exchanges([{**exchange, "t": 40.0 + at} for at in range(5)])
        chart = page.get_by_role("group", name="samples/s against samples")
        expect(chart.locator("canvas")).to_have_count(1)
        page.evaluate("scrollTo(0, 0)")
        picture = "chart => chart.querySelector('canvas').toDataURL()"
        before = chart.evaluate(picture)
        run.exchanges([{**exchange, "t": 50.0 + 2 * at} for at in range(5)])
        expect(page.locator("body")).to_contain_text("640 of 1,280 samples")
        assert chart.evaluate(picture) == before
        page.evaluate("reportAll()")
        assert chart.evaluate(picture) == before
        chart.scroll_into_view_if_needed()
        page.wait_for_function(
            "([chart, before]) => chart.querySelector('canvas').toDataURL() !== before",
            arg=[chart.element_handle(), before],
        )


def test_a_zoom_is_in_the_address(page: Any, root: Path, served: Served):
    run = make_run(root, "fish")
    page.goto(f"{served.url}/runs/runs/{run.id}")
    expect(plots(page)).to_have_count(2)
    whole = drawn(page)
    page.get_by_role("group", name="loss against samples").focus()
    page.keyboard.press("+")
    expect(page.locator("#charts")).not_to_have_attribute("data-drawn", whole)
    assert "from=" in page.url
    csv = page.get_by_role("link", name="points.csv").get_attribute("href")
    assert "from=" in csv
    part = drawn(page)
    page.reload()
    expect(plots(page)).to_have_count(2)
    assert "from=" in page.url
    page.get_by_role("group", name="loss against samples").focus()
    page.keyboard.press("0")
    expect(page.locator("#charts")).not_to_have_attribute("data-drawn", "1")
    assert "from=" not in page.url
    box = plots(page).first.bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 120, steps=5)
    page.mouse.up()
    expect(page.locator("#charts")).not_to_have_attribute("data-drawn", "2")
    assert "from=" in page.url
    assert part


def test_a_command_is_copied(page: Any, root: Path, served: Served):
    run = make_run(root, "fish")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.clock.install()
    page.goto(f"{served.url}/runs/runs/{run.id}")
    page.clock.pause_at(page.evaluate("Date.now() + 60_000") / 1000)
    shown = page.locator(".command code").first.inner_text()
    copy = page.locator(".command .copy").first
    copy.click()
    expect(copy).to_have_text("Copied")
    page.clock.run_for(2000)
    expect(copy).to_have_text("Copy")
    assert page.evaluate("navigator.clipboard.readText()") == shown


def test_lines_are_hidden_and_smoothed(page: Any, root: Path, served: Served):
    run = make_run(root, "fish")
    page.goto(f"{served.url}/runs/runs/{run.id}")
    workers = page.get_by_role("button", name="each worker")
    expect(workers).to_have_attribute("aria-pressed", "true")
    workers.click()
    expect(workers).to_have_attribute("aria-pressed", "false")
    assert page.url.endswith("hide=each+worker")
    page.get_by_label("Smoothing").focus()
    page.keyboard.press("End")
    expect(page.locator("#smooth-value")).to_have_text("0.99")
    assert "smooth=0.99" in page.url
    page.get_by_label("Axis").select_option("time of day")
    page.get_by_label("Scale").select_option("logarithmic")
    expect(page.get_by_role("group", name="loss against time of day")).to_be_visible()
    page.reload()
    expect(workers).to_have_attribute("aria-pressed", "false")
    expect(page.get_by_label("Axis")).to_have_value("time")
    expect(page.get_by_label("Smoothing")).to_have_value("0.99")


def test_a_chart_is_saved_as_a_picture(page: Any, root: Path, served: Served):
    run = make_run(root, "fish")
    page.goto(f"{served.url}/runs/runs/{run.id}")
    with page.expect_download() as started:
        page.get_by_role("button", name="PNG: loss").click()
    assert started.value.suggested_filename == "loss.png"
    assert Path(started.value.path()).read_bytes().startswith(b"\x89PNG")


def test_compared_runs_are_chosen_by_the_legend(page: Any, root: Path, served: Served):
    runs = [make_run(root, "cod"), make_run(root, "eel")]
    named = "&".join(f"runs=runs/{run.id}" for run in runs)
    page.goto(f"{served.url}/compare?{named}")
    expect(plots(page)).to_have_count(3)
    first = page.get_by_role("button", name=runs[0].id, exact=True)
    expect(first).to_have_count(3)
    first.first.click()
    for at in range(3):
        expect(first.nth(at)).to_have_attribute("aria-pressed", "false")
    page.get_by_label("Axis").select_option("epochs")
    expect(plots(page)).to_have_count(2)
    expect(page.locator("#compared tbody tr")).to_have_count(2)


def test_logs_are_searched_in_place(page: Any, root: Path, served: Served):
    run = make_run(root, "fish")
    lines = b"".join(b"line %d <b>x</b>\n" % at for at in range(9000))
    run.folder.write("experiments/worker-1.log", lines)
    page.goto(f"{served.url}/runs/runs/{run.id}/logs")
    expect(page.locator("#lines")).to_contain_text("line 8999 <b>x</b>")
    before = page.locator("#lines li").count()
    find = page.get_by_label("Find")
    find.fill("LINE 12")
    expect(page.locator("#hits")).to_have_text("111 found")
    assert page.url.endswith("q=LINE+12")
    assert page.locator("#lines li").count() == before  # all lines stay
    find.press("Enter")
    expect(page.locator("#hits")).to_have_text("1 of 111")
    expect(page.locator("li.current")).to_contain_text("line 12 <b>")
    expect(page.locator("li.current mark")).to_have_text("line 12")
    find.press("Shift+Enter")
    expect(page.locator("#hits")).to_have_text("111 of 111")
    expect(page.locator("li.current")).to_contain_text("line 1299")
    find.press("Enter")
    expect(page.locator("#hits")).to_have_text("1 of 111")
    page.get_by_label("only these lines").check()
    expect(page.locator("#lines li:not(.hit)").first).to_be_hidden()
    find.fill("nowhere")
    expect(page.locator("#hits")).to_have_text("not found")


def test_new_lines_are_followed_at_the_end(page: Any, root: Path, served: Served):
    with begin(root) as run:
        path = run.log_path(0)
        assert path is not None
        path.write_text("".join(f"line {at}\n" for at in range(200)))
        page.goto(f"{served.url}/runs/runs/{run.id}/logs")
        expect(page.locator("#lines li").last).to_contain_text("line 199")
        with path.open("a") as file:
            file.write("ValueError: <i>bad</i>\n")
        last = page.locator("#lines li").last
        expect(last).to_contain_text("ValueError: <i>bad</i>")
        expect(last).to_have_class("bad")
        expect(last).to_be_in_viewport()
        page.locator("#log-box").evaluate("box => { box.scrollTop = 0; }")
        with path.open("a") as file:
            file.write("behind\n")
        expect(page.locator("#lines li").last).to_contain_text("behind")
        expect(page.locator("#lines li").first).to_be_in_viewport()
        run.finish("finished")
        expect(page.locator("#following")).to_have_text("The run has ended.")


def test_a_new_run_by_keyboard_alone(page: Any, root: Path, served: Served):
    (root.parent / "train.py").write_text("def make(): ...\n")
    (root.parent / "works").touch()
    page.goto(f"{served.url}/")
    page.get_by_role("link", name="New run").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("New run")
    page.wait_for_load_state()  # fields are checked by a script
    page.get_by_label("Script").focus()
    page.keyboard.type("none.py")
    page.keyboard.press("Tab")
    expect(page.locator("#script-error")).to_contain_text("there is no Python file")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type("train.py")
    page.keyboard.press("Tab")
    expect(page.locator("#script-error")).to_have_text("")
    page.keyboard.press("Enter")
    expect(page.locator("#plan")).to_contain_text("it failed")  # the stand-in's words
    page.get_by_role("button", name="Start it").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Not started")
    expect(page.locator("main")).to_contain_text("exit status 3")


def test_pages_without_uplot_have_pictures(page: Any, root: Path, serving: Serving):
    run = make_run(root, "fish")
    served = serving.start(root)
    context = page.context.browser.new_context()
    plain = context.new_page()
    plain.goto(f"{served.url}/runs/runs/{run.id}?token={TOKEN}")
    expect(plain.locator("svg.chart")).to_have_count(2)
    expect(plain.locator("svg .mark")).to_have_count(4)
    expect(plain.locator("body")).to_contain_text("is not installed here")
    context.close()


def test_a_server_that_restarts_is_found_again(
    browser: Any, root: Path, serving: Serving, held_port: int
):
    with begin(root) as run:
        first = Serving(root.parent)
        served = first.start(root, port=held_port)
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{served.url}/runs/runs/{run.id}?token={TOKEN}")
        expect(page.locator(".state")).to_contain_text("running")
        first.close()
        expect(page.locator("#link-state")).to_have_text("Reconnecting…")
        again = serving.start(root, port=held_port)
        assert again.port == served.port
        expect(page.locator("#link-state")).to_have_text("")
        run.event("worker_lost", rank=0, reason="killed")
        expect(page.locator(".moments")).to_contain_text("worker 0 lost")
        context.close()


@pytest.mark.parametrize("is_late", [False, True])
def test_the_page_of_a_removed_run_reports_it(
    browser: Any, root: Path, served: Served, is_late: bool
):
    """Also a page whose request for the stream comes after the run was removed."""
    run = make_run(root, "gone")
    context = browser.new_context()  # its console tells of an address that is gone
    page = context.new_page()

    def remove(route: Any) -> None:
        shutil.rmtree(root / run.id, ignore_errors=True)
        route.continue_()

    if is_late:
        page.route("**/events?**", remove)
    page.goto(f"{served.url}/runs/runs/{run.id}?token={TOKEN}")
    if not is_late:
        expect(plots(page)).to_have_count(2)
        shutil.rmtree(root / run.id)
    expect(page.locator("#link-state")).to_have_text("This run was removed.")
    context.close()


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
    page.goto(f"{served.url}/")
    theme = page.locator("#theme")
    theme.click()
    theme.click()
    expect(theme).to_have_text("Theme: dark")
    page.reload()
    expect(theme).to_have_text("Theme: dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_no_page_is_wider_than_the_window(page: Any, root: Path, served: Served):
    run = make_run(root, "a" * 120)
    run.folder.write("experiments/worker-0.log", b"x" * 1_000_000)
    own = f"/runs/runs/{run.id}"
    pages = ("/", own, f"{own}/logs", f"/compare?runs=runs/{run.id}", "/new", "/help")
    for path in pages:
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 740})
            if width == WIDTHS[0]:
                page.goto(f"{served.url}{path}")
            if path in (own, pages[3]):
                expect(plots(page).first).to_be_visible()
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, (path, width)


AXE = Path(__file__).parent / "packages" / "axe.js"


COLOURS = ("color-contrast", "link-in-text-block")
"""The rules of axe whose answer depends on colours."""


def violations(page: Any, *rules: str) -> list[str]:
    """What axe finds on a page, by its rules of WCAG 2.2 A and AA and best practice.

    Args:
        page: The page.
        rules: The rules, all of them without any.
    """
    # In the page's own world the policy would forbid it; a script of the tests may run.
    page.evaluate(
        f"typeof axe === 'undefined' ? (() => {{{AXE.read_text()}}})() : 0; 0"
    )
    options: dict[str, Any] = {"rules": {"target-size": {"enabled": True}}}
    if rules:
        options = {"runOnly": rules}
    options["resultTypes"] = ["violations"]
    found = page.evaluate("async how => (await axe.run(how)).violations", options)
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for one in found
        for node in one["nodes"]
    ]


def violations_of_themes(page: Any) -> list[str]:
    """What axe finds on a page in light, and of its colours in dark."""
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    found = violations(page)
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    return [*found, *violations(page, *COLOURS)]


@pytest.mark.parametrize("state", ["empty", "full", "failed"])
def test_axe_finds_nothing(state: str, page: Any, root: Path, served: Served):
    if not is_there(packages.AXE, AXE.parent):
        pytest.skip("needs axe-core: python hatch_build.py")
    paths, own = ["/"], ""
    if state == "empty":  # those without runs are the same later
        paths += ["/compare", "/new", "/help"]
    else:
        status = "failed" if state == "failed" else "finished"
        runs = [make_run(root, name, status=status) for name in ("cod", "eel")]
        runs[0].write_plan({"request": {"epochs": 2}})
        own = f"/runs/runs/{runs[0].id}"
        named = "&".join(f"runs=runs/{run.id}" for run in runs)
        if state == "full":  # these do not show how a run ended
            paths += [f"{own}?smooth=0.9", f"{own}?draw=svg"]
            paths += [f"{own}/logs?rank=0&q=hello"]
        paths += [own, f"{own}/logs", f"/compare?{named}"]
    for path in paths:
        page.goto(f"{served.url}{path}")
        if state != "empty" and path in (own, paths[-1]):
            expect(plots(page).first).to_be_visible()
        page.evaluate(
            "for (const one of document.querySelectorAll('details')) one.open = true"
        )
        assert violations_of_themes(page) == [], path


def test_the_keyboard_leads_from_the_list_to_a_stop(
    page: Any, root: Path, served: Served
):
    with begin(root) as run:
        page.goto(f"{served.url}/")
        for _ in range(40):
            page.keyboard.press("Tab")
            text = page.evaluate("document.activeElement.textContent")
            shown = page.evaluate(
                "getComputedStyle(document.activeElement).outlineStyle"
            )
            assert shown != "none"
            if text == run.id:
                break
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text(run.id)
        for _ in range(40):
            page.keyboard.press("Tab")
            text = page.evaluate("document.activeElement.textContent")
            if text == "Stop…":
                page.keyboard.press("Enter")
            if text == "Stop the run":
                break
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_contain_text("(shoal ui, process")
        assert read_stop(run.folder) is not None


def test_keys_are_listed(page: Any, served: Served):
    page.goto(f"{served.url}/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("this list")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_text_of_twice_the_size_fits(page: Any, root: Path, served: Served):
    run = make_run(root, "fish")
    page.set_viewport_size({"width": 1280, "height": 740})
    for path in ("/", f"/runs/runs/{run.id}", f"/runs/runs/{run.id}/logs", "/new"):
        page.goto(f"{served.url}{path}")
        page.evaluate("document.documentElement.style.fontSize = '200%'")
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 1280, path
