"""Waits for changes of run folders, without looking at them all the time.

Disks of this machine tell of changes. Network file systems and object storage do not:
there, and where the system has no watch left, time alone wakes those who wait.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import final

import anyio
from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

from shoal.host.file_systems import tells_changes
from shoal.runs.folder import Folder

MOST_STREAMS = 64
"""Answers that may wait for changes at the same time."""

# Not what reading causes: a look would be followed by the next one.
KINDS: list[type[FileSystemEvent]] = [
    DirCreatedEvent, DirDeletedEvent, DirMovedEvent, FileClosedEvent, FileCreatedEvent,
    FileDeletedEvent, FileModifiedEvent, FileMovedEvent,
]  # fmt: skip


def _is_no_late_change(record: logging.LogRecord) -> bool:
    return "when the thread is inactive" not in record.getMessage()


# A change that is read as its watch ends is no error, but watchdog tells it as one.
logging.getLogger("watchdog.observers.inotify").addFilter(_is_no_late_change)


@final
class Waker(FileSystemEventHandler):
    """Wakes one coroutine, from any thread.

    Args:
        places: Paths of the folders whose changes wake it; none where none are told.

    Attributes:
        is_told: Whether changes wake it. Otherwise it looks as often as it can afford.
        since: Monotonic seconds since when changes wake it.
        woken: Monotonic seconds when it was woken last.
    """

    def __init__(self, places: Sequence[str] = ()) -> None:
        self.places, self.is_told = places, False
        self.since = self.woken = float("-inf")
        self._loop = asyncio.get_running_loop()
        self._changed, self._over = asyncio.Event(), asyncio.Event()
        self._waited = float("-inf")

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Wakes the coroutine, as a file has changed."""
        del event
        self.woken = time.monotonic()
        self._call(self._changed)

    def end(self) -> None:
        """Ends this wait and all later ones."""
        self._call(self._over)
        self._call(self._changed)

    def _call(self, event: asyncio.Event) -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody waits
            self._loop.call_soon_threadsafe(event.set)

    async def wait(self, most_s: float, least_s: float = 0.0) -> None:
        """Waits for a change.

        Args:
            most_s: Seconds that it waits at most.
            least_s: Seconds that two waits end apart at least, however many changes
                there are.
        """
        with anyio.move_on_after(most_s):
            await self._changed.wait()
        await self.rest(self._waited + least_s - time.monotonic())

    async def rest(self, seconds: float) -> None:
        """Waits, whatever changes meanwhile."""
        if seconds > 0:
            with anyio.move_on_after(seconds):
                await self._over.wait()
        if not self._over.is_set():
            self._changed.clear()
        self._waited = time.monotonic()


@final
class Watcher:
    """Watches local folders for all who wait; close it at the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._observer: BaseObserver | None = None
        self._watches: dict[str, tuple[ObservedWatch, set[Waker]]] = {}
        self._wakers: set[Waker] = set()

    @property
    def count(self) -> int:
        """How many wait."""
        return len(self._wakers)

    @asynccontextmanager
    async def watching(self, folders: Sequence[Folder]) -> AsyncGenerator[Waker]:
        """Yields what waits for changes directly in some folders, not below them."""
        places = [folder.path for folder in folders if folder.is_local]
        are_told = len(places) == len(folders) and await anyio.to_thread.run_sync(
            lambda: all(map(tells_changes, places))
        )
        waker = Waker(places if are_told else [])
        self._wakers.add(waker)
        try:
            await self._watch_for(waker)
            yield waker
        finally:
            self._wakers.discard(waker)
            self._remove(waker)

    async def rest(self, waker: Waker, seconds: float) -> None:
        """Has a coroutine wait without being told of changes.

        Each change that is told costs about 1 ms of processor time, though nobody waits
        for it.
        """
        await anyio.to_thread.run_sync(self._remove, waker)
        await waker.rest(seconds)
        await self._watch_for(waker)

    async def _watch_for(self, waker: Waker) -> None:
        if waker.places:
            waker.is_told = await anyio.to_thread.run_sync(self._add, waker)
        waker.since = time.monotonic()

    def end_waits(self) -> None:
        """Ends all waits, as the server ends."""
        for waker in self._wakers.copy():
            waker.end()

    def close(self) -> None:
        """Ends the thread that watches."""
        with self._lock:
            observer, self._observer = self._observer, None
            self._watches.clear()
        if observer is not None:
            observer.stop()
            observer.join()

    def _add(self, waker: Waker) -> bool:
        """Watches folders; returns whether changes of all of them are told."""
        try:
            with self._lock:
                for place in waker.places:
                    self._watch(place, waker)
        except OSError:  # a folder is gone, or the system has no watch left
            return False
        return True

    def _watch(self, place: str, waker: Waker) -> None:
        if self._observer is None:
            observer = Observer()
            observer.start()
            self._observer = observer
        watch = self._observer.schedule(waker, place, event_filter=KINDS)
        self._watches.setdefault(place, (watch, set()))[1].add(waker)

    def _remove(self, waker: Waker) -> None:
        with self._lock:
            for place in waker.places:
                watch, wakers = self._watches.get(place, (None, set[Waker]()))
                if self._observer is None or watch is None or waker not in wakers:
                    continue
                wakers.discard(waker)
                self._observer.remove_handler_for_watch(waker, watch)
                if not wakers:
                    del self._watches[place]
                    self._observer.unschedule(watch)
