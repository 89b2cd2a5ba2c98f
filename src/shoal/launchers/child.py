"""What runs first in a process that `ProcessLauncher` starts."""

from __future__ import annotations

import faulthandler
import importlib
import io
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from typing import IO, Any

ORPHANED = 66  # exit status of a child whose parent is gone


def main() -> None:
    """Preloads modules, then runs the target on every argument that arrives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    pipe = os.fdopen(os.dup(0), "rb")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    _buffer_lines()
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, messages), daemon=True).start()
    first = pickle.loads(messages.get())
    _preload(first["preload"], first["without"])
    module, _, name = first["target"].partition(":")
    target = getattr(importlib.import_module(module), name)
    while True:
        message = pickle.loads(messages.get())
        if message["log"] is not None:
            _redirect(message["log"])
        target(pickle.loads(message["argument"]))
        sys.stdout.flush()


def _buffer_lines() -> None:
    """Whole lines reach the log at once: what a process that is killed said, too."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def _redirect(log: str) -> None:
    """Sends output to another file from now on."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _preload(modules: Sequence[str], without: Sequence[str]) -> None:
    """Imports modules as if some others were not installed, which saves their time."""
    absent: dict[str, Any] = {name: None for name in without if name not in sys.modules}
    sys.modules.update(absent)
    for module in modules:
        importlib.import_module(module)
    for name in absent:
        if sys.modules.get(name) is None:
            sys.modules.pop(name, None)


def _listen(pipe: IO[bytes], messages: queue.SimpleQueue[bytes]) -> None:
    """Reads messages until the parent closes the pipe or dies."""
    while True:
        size = pipe.read(8)
        data: Any = pipe.read(int.from_bytes(size, "big")) if len(size) == 8 else b""
        if not data:
            sys.stdout.flush()
            os._exit(0 if not size else ORPHANED)
        messages.put(data)
