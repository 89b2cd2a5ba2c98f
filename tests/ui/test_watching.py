"""Waiting for changes: told by the disk, or looked for where nothing tells them."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

import pytest

from shoal.runs.folder import Folder
from shoal.runs.summary import WriterState
from shoal.ui import live, watching
from shoal.ui.live import RunView
from shoal.ui.watching import Watcher
from tests.ui.conftest import make_run

LONG_S = 50.0


def test_changes_of_a_folder_wake_all_who_wait(tmp_path: Path):
    async def waits() -> None:
        folder, watcher = Folder.at(tmp_path), Watcher()
        async with watcher.watching([folder]) as one, watcher.watching([folder]) as two:
            assert one.is_told
            before = time.monotonic()
            (tmp_path / "file").write_text("x")
            await one.wait(LONG_S)
            await two.wait(LONG_S)
            assert min(one.woken, two.woken) >= before
        async with watcher.watching([folder]) as again:
            before = time.monotonic()
            (tmp_path / "file").unlink()
            await again.wait(LONG_S)
            assert again.woken >= before
        watcher.close()

    asyncio.run(waits())


def test_reading_wakes_nobody(tmp_path: Path):
    async def waits() -> None:
        watcher = Watcher()
        (tmp_path / "file").write_text("x")
        async with watcher.watching([Folder.at(tmp_path)]) as waker:
            (tmp_path / "file").read_text()
            await waker.wait(0.2)
            assert waker.is_told
            assert waker.woken == float("-inf")
        watcher.close()

    asyncio.run(waits())


def test_who_rests_is_told_nothing_until_the_rest_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def waits() -> None:
        folder, watcher = Folder.at(tmp_path), Watcher()
        rests, is_over = asyncio.Event(), asyncio.Event()

        async def rest(seconds: float) -> None:
            assert seconds == LONG_S
            rests.set()
            await is_over.wait()

        async with watcher.watching([folder]) as one, watcher.watching([folder]) as two:
            monkeypatch.setattr(one, "rest", rest)
            task = asyncio.create_task(watcher.rest(one, LONG_S))
            await rests.wait()
            # One event, not the three of a file: none is left to come after the rest.
            (tmp_path / "folder").mkdir()
            await two.wait(LONG_S)
            is_over.set()
            await task
            assert one.woken == float("-inf")
            assert one.is_told
            assert one.since > two.since  # what came before that is looked for
            monkeypatch.undo()
            (tmp_path / "file").write_text("y")
            await one.wait(LONG_S)
            assert one.woken > float("-inf")
        watcher.close()

    asyncio.run(waits())


def test_time_wakes_where_nothing_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def waits() -> None:
        watcher = Watcher()
        for place in ("memory://test-watching", tmp_path / "none"):
            async with watcher.watching([Folder.at(place)]) as waker:
                assert not waker.is_told
                await waker.wait(0.01)
        monkeypatch.setattr(watching, "tells_changes", lambda _: False)
        async with watcher.watching([Folder.at(tmp_path)]) as waker:
            assert not waker.is_told
        watcher.close()

    asyncio.run(waits())


def test_the_end_of_the_server_ends_all_waits(tmp_path: Path):
    async def waits() -> None:
        watcher = Watcher()
        async with watcher.watching([Folder.at(tmp_path)]) as waker:
            asyncio.get_running_loop().call_soon(watcher.end_waits)
            await waker.wait(math.inf, math.inf)
            await waker.wait(math.inf, math.inf)
        watcher.close()

    asyncio.run(waits())


def test_a_change_that_was_told_is_read_at_once(tmp_path: Path):
    run = make_run(tmp_path / "runs", "fish", status="running")
    view = RunView(run.folder, clock=lambda: 10.0)
    first = view.advance()
    run.folder.write("events/000009.jsonl", b'{"kind":"note","text":"x"}\n')
    assert view.advance() == first  # a poll was a moment ago
    assert view.advance(told=9.0) == first  # and began after that change was told
    assert view.advance(told=10.5) > first


def test_an_event_is_a_sign_of_life_if_the_poll_before_was_a_moment_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = make_run(tmp_path / "runs", "fish", status="running")
    monkeypatch.setattr(live, "look_at_writer", lambda *_: WriterState(may_live=False))
    now = 10.0
    view = RunView(run.folder, clock=lambda: now)

    def status_after(seconds: float, number: int | None = None) -> str:
        nonlocal now
        now += seconds
        if number is not None:
            name = f"events/{number:06d}.jsonl"
            run.folder.write(name, b'{"kind":"note","text":"x"}\n')
        view.advance()
        return view.summary().status

    assert status_after(0) == "lost"  # a run that is read at once may be old
    assert status_after(1, 10) == "running"
    assert status_after(1) == "lost"  # nothing new: its process is looked for
    assert status_after(live.HEARD_S, 11) == "lost"  # written at any time since then
