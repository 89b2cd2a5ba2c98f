"""The folder of compiled programs, which later runs need not compile again.

It is JAX's own cache, and holds programs that workers load and run: a folder that
another user may write to is not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from collections.abc import Generator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

MAX_BYTES = 1 << 30  # the oldest are removed first
TURNS = "turns"
OURS = "xla-"
LONGEST_TURN_S = 600.0
CPU_FACTS = Path("/proc/cpuinfo")


def cache_variables(
    backend: str, folder: str | None, variables: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the environment of workers that keep compiled programs in a folder.

    A program is compiled for one kind of processor, so each kind has its own folder:
    home directories are shared. A user's own setting beats this. Nothing is kept in a
    folder that this user cannot write to, or that another user can.

    Args:
        backend: Name of the Keras backend.
        folder: Cache folder for all kinds of machines; None keeps nothing.
        variables: Environment of the parent; default None means of this process.

    Example:
        >>> cache_variables("jax", None)
        {}
    """
    given = os.environ if variables is None else variables
    if backend != "jax" or not folder or "JAX_COMPILATION_CACHE_DIR" in given:
        return {}
    if find_spec("filelock") is None:  # JAX needs it to limit the folder's size
        return {}
    place = Path(folder).expanduser() / f"{OURS}{_machine()}"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_own = _is_own(place)
    except OSError:
        return {}
    if not is_own:
        return {}
    return {
        "JAX_COMPILATION_CACHE_DIR": str(place),
        "JAX_COMPILATION_CACHE_MAX_SIZE": str(MAX_BYTES),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }


@contextlib.contextmanager
def turn(folder: str | None, program: str) -> Generator[None]:
    """Lets processes on one machine compile a program one after the other.

    The first compiles it with all cores and leaves it in the folder; the others find it
    there in their turns. A process that dies frees its turn, and a turn that lasts too
    long delays no other process.

    Args:
        folder: Folder of compiled programs; None means no turns.
        program: Text of the program.
    """
    if not folder or find_spec("filelock") is None:
        yield
        return
    filelock = import_module("filelock")
    turns = Path(folder) / TURNS
    name = hashlib.sha256(program.encode()).hexdigest()[:32]
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, filelock.Timeout, NotImplementedError):
            turns.mkdir(mode=0o700, exist_ok=True)
            lock = filelock.FileLock(
                turns / name, timeout=LONGEST_TURN_S, poll_interval=0.01
            )
            stack.enter_context(lock)
            _complete(Path(folder))
        yield
        with contextlib.suppress(OSError):
            (turns / name).unlink(missing_ok=True)


def _is_own(place: Path) -> bool:
    """Whether only this user, and root, can write to a folder."""
    found = place.stat()
    is_ours = found.st_uid in (os.geteuid(), 0) and not found.st_mode & 0o022
    return is_ours and os.access(place, os.W_OK | os.X_OK)


def _complete(place: Path) -> None:
    """Removes unfinished entries, left by a process that died or by a full disk.

    JAX notes beside each program when it was last used. While that note is missing
    it stores no other program in the folder, and never replaces a partial program.
    """
    if place.name.startswith(OURS) and _incomplete(place):
        filelock = import_module("filelock")
        # JAX holds this lock while it writes.
        with filelock.FileLock(place / ".lockfile", timeout=1.0, poll_interval=0.01):
            for name in _incomplete(place):
                (place / f"{name}-cache").unlink(missing_ok=True)


def _incomplete(place: Path) -> set[str]:
    names = os.listdir(place)
    programs, used = (
        {n.removesuffix(end) for n in names if n.endswith(end)}
        for end in ("-cache", "-atime")
    )
    return programs - used


def _machine() -> str:
    """Returns a name for this kind of processor."""
    facts = [platform.machine(), platform.system()]
    if CPU_FACTS.is_file():
        names = ("flags", "Features", "model name")
        lines = CPU_FACTS.read_text(errors="replace").splitlines()
        facts += sorted({line for line in lines if line.startswith(names)})
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
