"""The list of runs in a real browser: its address, live rows, what is chosen."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.runs.events import encode, segment_name, segment_numbers
from shoal.runs.outlines import OUTLINE
from shoal.runs.store import StoredRun, open_run
from shoal.ui.pages import list_changes
from tests.s3 import Bucket, s3, s3_endpoint
from tests.ui.conftest import TOKEN, Served, Serving, make_run
from tests.ui.test_browser import _no_leaks, expect, page, served, violations

__all__ = ["_no_leaks", "page", "s3", "s3_endpoint", "served"]
pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.timeout(300)]


def rows(page: Any) -> Any:
    return page.locator("#runs tbody tr:visible")


def tick(page: Any, name: str) -> Any:
    return page.get_by_label(re.compile(f"^Choose .*-{name}-"))


@pytest.fixture
def other(browser: Any) -> Iterator[Any]:
    """A page of a server that a test starts itself."""
    context = browser.new_context()
    yield context.new_page()
    context.close()


def begun(page: Any) -> None:
    """Waits until changes of the list are told."""
    expect(page.locator("#news")).to_have_attribute("data-begun", "yes")


def test_what_is_found_and_chosen_is_in_the_address(
    page: Any, root: Path, served: Served
):
    for name in ("cod", "eel", "ray"):
        make_run(root, name)
    page.goto(f"{served.url}/")
    told = page.locator("#chosen")
    tick(page, "cod").check()
    tick(page, "eel").check()
    expect(told).to_have_text("2 chosen.")
    find = page.get_by_label("Find")
    find.fill("eel")
    expect(rows(page)).to_have_count(1)
    expect(told).to_have_text("2 chosen, 1 of them not shown.")
    page.get_by_role("link", name="Took").click()
    expect(page).to_have_url(re.compile("order=took"))
    page.reload()
    expect(find).to_have_value("eel")
    expect(tick(page, "eel")).to_be_checked()
    expect(told).to_have_text("2 chosen, 1 of them not shown.")
    find.fill("loss")  # is in a cell, and not among what is searched
    expect(rows(page)).to_have_count(0)
    find.fill("")  # brings what the server had left out
    expect(rows(page)).to_have_count(3)
    expect(page.locator("#count")).to_have_text("3 of 3 runs")
    expect(tick(page, "cod")).to_be_checked()
    expect(find).to_be_focused()
    page.get_by_label("State").select_option("finished")
    page.get_by_role("button", name="Show").click()
    expect(page).to_have_url(re.compile("state=finished"))
    expect(told).to_have_text("2 chosen.")
    assert violations(page) == []
    page.get_by_role("link", name="Untick all").click()
    expect(tick(page, "cod")).not_to_be_checked()
    expect(told).to_have_text("")
    page.go_back()
    expect(tick(page, "cod")).to_be_checked()
    page.get_by_role("button", name="Compare chosen").click()
    expect(page.locator("#compared tbody tr")).to_have_count(2)


def go_on(run: StoredRun) -> None:
    """Writes what another process does that resumes a run."""
    folder = run.folder
    event = {"v": 1, "kind": "run_resumed", "time": 1.8e9, "t": 60.0}
    number = segment_numbers(folder)[-1] + 1
    folder.write(segment_name(number), encode(event))
    folder.fs.rm(folder.where(OUTLINE))  # changes the folder, as a new one does


def test_a_run_of_a_bucket_that_goes_on_elsewhere_is_shown(
    other: Any, serving: Serving, s3: Bucket, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(list_changes, "REST_S", 0.2)
    place = f"{s3.url}/runs"
    run = make_run(place, "cod", status="interrupted")
    s3.make_older(f"runs/{run.id}/{OUTLINE}", 3600.0)
    served = serving.start(place)
    other.goto(f"{served.url}/?token={TOKEN}")
    begun(other)
    expect(rows(other)).to_contain_text("interrupted")
    with open_run(run.folder.url) as again:
        again.event("run_resumed", workers=2)
        expect(rows(other)).to_contain_text("running")


@pytest.fixture
def interrupted(
    page: Any, root: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> StoredRun:
    """The only run of an open list, whose changes are told at once."""
    monkeypatch.setattr(list_changes, "LOOK_S", 0.2)
    run = make_run(root, "cod", status="interrupted")
    page.goto(f"{served.url}/")
    begun(page)
    return run


def test_a_run_that_goes_on_elsewhere_is_shown_and_found(
    page: Any, interrupted: StoredRun
):
    go_on(interrupted)
    expect(rows(page)).to_contain_text("running")
    find = page.get_by_label("Find")
    find.fill("running")
    expect(rows(page)).to_have_count(1)
    find.fill("interrupted")
    expect(rows(page)).to_have_count(0)
    expect(page.locator("#count")).to_have_text("0 of 1 run")


def test_a_row_keeps_its_latest_answer(page: Any, root: Path, interrupted: StoredRun):
    """An answer that was asked for before, and comes after, changes nothing."""
    held: list[Any] = []

    def hold(route: Any) -> None:
        answer = route.fetch()
        held.append(lambda: route.fulfill(response=answer))
        if len(held) == 2:
            held.pop()()

    page.route("**/?part=rows&**", hold)
    os.utime(root / interrupted.id, (2e9, 2e9))  # as a file is made in it
    while not held:
        page.wait_for_timeout(10)
    go_on(interrupted)
    expect(rows(page)).to_contain_text("running")
    held[0]()
    page.unroute("**/?part=rows&**")
    with page.expect_response("**/?part=rows&**"):  # a later look at what is running
        pass
    expect(rows(page)).to_contain_text("running")


def test_counts_follow_what_is_gone(page: Any, root: Path, served: Served):
    gone = make_run(root, "gone")
    make_run(root, "kept")
    page.goto(f"{served.url}/")
    begun(page)
    tick(page, "gone").check()
    new = make_run(root, "new")
    expect(page.locator("#news")).to_have_text("1 new run: show it")
    expect(page).to_have_title("3 runs · Shoal")
    expect(page.locator("#count")).to_have_text("2 of 3 runs")
    for run in (new, gone):
        shutil.rmtree(root / run.id)
    expect(page).to_have_title("1 run · Shoal")
    expect(page.locator("#news")).to_have_text("")
    expect(page.locator("#count")).to_have_text("1 of 1 run")
    expect(page.locator("#chosen")).to_have_text("")
    assert "chosen" not in page.url


def test_new_runs_are_announced_now_and_then(page: Any, root: Path, served: Served):
    make_run(root, "kept")
    page.clock.install()
    page.goto(f"{served.url}/")
    begun(page)
    page.clock.pause_at(page.evaluate("Date.now() + 60_000") / 1000)
    news, told = page.locator("#news"), page.locator("#news-told")
    make_run(root, "one")
    expect(news).to_have_text("1 new run: show it")
    expect(told).to_have_text("1 new run: show it")
    make_run(root, "two")
    expect(news).to_have_text("2 new runs: show them")
    expect(told).to_have_text("1 new run: show it")
    page.clock.run_for(5100)
    expect(told).to_have_text("2 new runs: show them")


def test_the_list_finds_its_server_again(
    browser: Any,
    root: Path,
    serving: Serving,
    held_port: int,
    monkeypatch: pytest.MonkeyPatch,
):
    make_run(root, "cod")
    first = Serving(root.parent)
    served = first.start(root, port=held_port)
    context = browser.new_context()
    page = context.new_page()
    link = page.locator("#link-state")
    monkeypatch.setattr(list_changes, "MOST_STREAMS", 0)  # it is refused at first
    page.goto(f"{served.url}/?token={TOKEN}")
    expect(link).to_have_text("Reconnecting…")
    monkeypatch.undo()
    begun(page)
    expect(link).to_have_text("")
    first.close()
    expect(link).to_have_text("Reconnecting…")
    make_run(root, "new")
    serving.start(root, port=held_port)
    expect(link).to_have_text("")
    expect(page.locator("#news")).to_have_text("The list has changed: show it")
    context.close()


def test_a_removal_is_told_once(page: Any, root: Path, served: Served):
    make_run(root, "gone")
    make_run(root, "kept")
    page.goto(f"{served.url}/")
    tick(page, "gone").check()
    page.get_by_role("button", name="Remove chosen…").click()
    page.get_by_role("button", name="Remove 1").click()
    expect(page.locator("main")).to_contain_text("1 run was removed.")
    expect(page).to_have_url(f"{served.url}/")
    page.reload()
    expect(rows(page)).to_have_count(1)
    expect(page.locator("main")).not_to_contain_text("was removed")
