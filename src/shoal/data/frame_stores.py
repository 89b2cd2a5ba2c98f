"""Folders in a store that executors write rows to, and the end of those left behind.

A folder says when its driver was last alive. What a killed driver has left stays for
`shoal.resume` for a week; after that the next run that uses the store removes it.
Clocks of drivers may differ by hours, and no lock works on every store.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from contextlib import suppress
from typing import final

from shoal.data.files.store import Store

PREFIX = "shoal-frame-"
OWNER = "owner.json"
REFRESH_S = 3600.0
LEFT_S = 7 * 24 * 3600.0


@final
class StoreFolder:
    """A folder in a store; its driver keeps it fresh until `leave` or `remove`.

    Args:
        url: URL of the folder.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        with suppress(Exception):  # executors say what is wrong with the store
            touch(url)
        self._is_left = threading.Event()
        self._thread = threading.Thread(
            target=self._keep_fresh, name="shoal-frame-owner", daemon=True
        )
        self._thread.start()

    @classmethod
    def new(cls, store: str) -> StoreFolder:
        """Makes a folder, and removes old ones.

        Args:
            store: URL of the store, or a path.
        """
        root = store.rstrip("/")
        with suppress(Exception):  # it can wait
            sweep(root)
        return cls(f"{root}/{PREFIX}{secrets.token_hex(8)}")

    @classmethod
    def take_over(cls, url: str) -> StoreFolder | None:
        """Keeps a folder fresh that a broken-off run has left; None if it is gone.

        Args:
            url: URL of the folder.
        """
        with suppress(Exception):  # reading a file raises it again
            system, path = Store().filesystem(url), Store().path(url)
            return cls(url) if system.exists(path) else None
        return None

    def _keep_fresh(self) -> None:
        while not self._is_left.wait(REFRESH_S):
            with suppress(Exception):
                touch(self.url)

    def leave(self) -> None:
        """Leaves the files there."""
        self._is_left.set()
        self._thread.join()

    def remove(self) -> None:
        """Removes the folder."""
        self.leave()
        _remove(self.url)


def touch(url: str) -> None:
    """Says that the driver of a folder is alive.

    Args:
        url: URL of the folder.
    """
    system, path = Store().filesystem(url), Store().path(url)
    system.makedirs(path, exist_ok=True)
    system.pipe_file(f"{path}/{OWNER}", json.dumps({"seen": time.time()}).encode())


def sweep(store: str, now: float | None = None) -> list[str]:
    """Removes what drivers left that were not alive for a week; returns their paths.

    Args:
        store: URL of the store.
        now: Unix seconds; default None: the time now.
    """
    now = time.time() if now is None else now
    system, path = Store().filesystem(store), Store().path(store)
    system.invalidate_cache()
    found: list[str] = []
    for folder in system.ls(path, detail=False):
        if not str(folder).rstrip("/").rpartition("/")[2].startswith(PREFIX):
            continue
        with suppress(Exception):  # none of ours, or its owner is removing it now
            seen = float(json.loads(system.cat_file(f"{folder}/{OWNER}"))["seen"])
            if now - seen > LEFT_S:
                system.rm(folder, recursive=True)
                found.append(str(folder))
    return found


def _remove(url: str) -> None:
    system, path = Store().filesystem(url), Store().path(url)
    if system.exists(path):
        system.rm(path, recursive=True)
