"""The program that runs first in a process of `ProcessLauncher`."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import pickle
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import IO, Any

from shoal.launchers.output import keep_what_has_room
from shoal.launchers.parent import Watch
from shoal.launchers.titles import title

ORPHANED = 66  # exit status of a child whose parent has ended
LOOK_S = 0.5  # between checks of the parent


def main(numbers: Mapping[int, int]) -> None:
    """Preloads modules, then runs the target on every argument that arrives.

    Args:
        numbers: Wanted numbers of shared descriptors -> their present numbers.
    """
    _renumber(numbers)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    pipe = os.fdopen(os.dup(0), "rb")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    keep_what_has_room()
    home = os.dup(1)  # target of output that is not kept
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, messages), daemon=True).start()
    first = pickle.loads(messages.get())
    parent = Watch(first["parent"])
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    title(first["title"])
    module, _, name = first["target"].partition(":")
    _preload((*first["modules"], module), first["without"], first["later"])
    target = getattr(importlib.import_module(module), name)
    while True:
        message = pickle.loads(messages.get())
        _redirect(message["log"], home)
        # Popped: the argument is as large as a model, and so are its parts.
        target(pickle.loads(message.pop("argument")))
        sys.stdout.flush()
        title(first["title"])  # it waits for its next role


def _renumber(numbers: Mapping[int, int]) -> None:
    """Renumbers descriptors; no other open file can have a wanted number yet."""
    for wanted, found in numbers.items():
        if wanted != found:
            os.dup2(found, wanted)
            os.close(found)


def _redirect(log: str | None, home: int) -> None:
    """Sends output to another file from now on, or back to the first target."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    descriptor = _open(log, home) if log else os.dup(home)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _open(log: str, home: int) -> int:
    """Opens a log to write; if that fails, output goes to the first target."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        return os.open(log, flags, 0o600)
    except OSError:  # its folder was removed, or its disk is full
        return os.dup(home)


def _preload(
    modules: Sequence[str], without: Sequence[str], later: Sequence[str]
) -> None:
    """Imports modules as if some others were not installed, which saves their time."""
    absent: dict[str, Any] = {name: None for name in without if name not in sys.modules}
    sys.modules.update(absent)
    finder = _Later(later)
    sys.meta_path.insert(0, finder)
    gc.disable()  # collections would find nothing, and cost a sixth of the time
    try:
        for module in modules:
            importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()
        sys.meta_path.remove(finder)
    for name in absent:
        if sys.modules.get(name) is None:
            sys.modules.pop(name, None)


class _Later(MetaPathFinder):
    """Finds modules that are loaded on their first use.

    Args:
        names: Names of modules.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Returns the spec of a module, None for any other."""
        if fullname not in self._names:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            inner = spec.loader
            is_package = spec.submodule_search_locations is not None
            spec.loader = (
                _LaterPackage(inner, self._names) if is_package else LazyLoader(inner)
            )
        return spec


class _LaterPackage(Loader):
    """Loads a package when a part other than its waiting modules is used.

    Args:
        inner: The package's own loader.
        names: Names of the waiting modules.
    """

    def __init__(self, inner: Loader, names: frozenset[str]) -> None:
        self._inner, self._names = inner, names

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Returns the module without executing it."""
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Gives the package a `__getattr__` that executes it."""

        def load(name: str) -> Any:
            # A module of the package needs no more of it: it may be the one that a
            # waiting module imports while that is being loaded.
            path = f"{module.__name__}.{name}"
            if path in self._names or PathFinder.find_spec(path, module.__path__):
                return importlib.import_module(path)
            del vars(module)["__getattr__"]
            self._inner.exec_module(module)
            return getattr(module, name)

        vars(module)["__getattr__"] = load


def _end_with(parent: Watch) -> None:
    """Ends this process after its parent; the pipe tells sooner, without forks."""
    while not parent.is_over:
        time.sleep(LOOK_S)
    sys.stdout.flush()
    os._exit(ORPHANED)


def _listen(pipe: IO[bytes], messages: queue.SimpleQueue[bytes]) -> None:
    """Reads messages until the parent closes the pipe or dies."""
    while True:
        size = pipe.read(8)
        data: Any = pipe.read(int.from_bytes(size, "big")) if len(size) == 8 else b""
        if not data:
            sys.stdout.flush()
            os._exit(0 if not size else ORPHANED)
        messages.put(data)
        del data  # or it would stay in memory until the next message
