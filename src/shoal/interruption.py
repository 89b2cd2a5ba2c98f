"""Ctrl-C and SIGTERM while Shoal works: noted at once, raised where that is safe.

Python raises KeyboardInterrupt between any two instructions of the main thread: also
between taking a lock and recording it, or in the middle of a clean-up.
So in an `undisturbed` block a signal only leaves a note and ends waits; `check`
raises it between two operations. The user's code, and long calls of libraries,
run `interruptible` within it: there it is raised at once, as Python does.

The first press ends the run with the results so far. The second one shortens every
remaining wait (`Deadline`). The third one ends all processes of the run by force,
removes temporary files, and ends this process; at a prompt or in a notebook, whose
process is more than this run, it skips the last step. SIGTERM and SIGHUP end a run
as Ctrl-C does if a program has no handler for them; then they end the process as
they would without Shoal.

The state of this module is like that of signals in Python: one for a process, used
by its main thread. Other threads are not affected; they may read `Deadline`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Protocol, final

from shoal.forks import Origin

HASTE_S = 0.3
"""Total seconds of waits after the second press."""

_ENDING = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_HARD, _ANYWHERE = 3, 6  # presses
_LIBRARIES = ("pyspark.",)
"""Libraries whose handler of Ctrl-C is left out while a run lasts: PySpark's cancels
all jobs of its session, the workers of the run among them, before it raises."""


class Terminated(KeyboardInterrupt):
    """A signal that ends the process came; the process ends after the clean-up."""


class _Ender(Protocol):
    def end_hard(self) -> None: ...


class _Scope:
    """The outermost `undisturbed` block of the main thread.

    Attributes:
        is_open: Whether the code that runs now is `interruptible`.
        raised: Whether a signal was raised at once since then.
        is_lost: Whether Python dropped a raised signal.
        pending: Signal that has not been raised yet, 0 for none.
        presses: Signals since the run began, or since the user's code handled them.
        hurried: Monotonic seconds of the second press, None before.
        ending: Signal that ends the process, 0 for none.
    """

    def __init__(self) -> None:
        self.is_active = True
        self.is_open = self.raised = self.is_lost = False
        self.pending = self.presses = self.ending = 0
        self.hurried: float | None = None
        self._before: dict[int, Any] = {}
        self._heeded: dict[int, Any] = {}
        self._hook: Callable[[Any], Any] | None = None

    # ---------------------------------------------------------------- handlers

    def install(self) -> None:
        """Installs the handlers; Ctrl-C first, so that it delays no other."""
        if callable(signal.getsignal(signal.SIGINT)):
            self._take(signal.SIGINT)
        for number in _ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._take(number)
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable

    def _take(self, number: int) -> None:
        self._before[number] = before = signal.getsignal(number)
        self._heeded[number] = _without_libraries(before)
        signal.signal(number, self._press)

    def uninstall(self) -> None:
        """Restores the handlers, except for those that other code has set since."""
        if self._hook is not None and sys.unraisablehook == self._unraisable:
            sys.unraisablehook = self._hook
        for number in reversed(self._before):  # Ctrl-C last: it is raised here then
            if signal.getsignal(number) == self._press:
                signal.signal(number, self._before[number])
        self.is_active = False

    def _press(self, number: int, frame: FrameType | None) -> None:
        if not self.is_active:  # other code kept this handler, and set it again
            self._pass_on(number, frame)
            return
        self.presses += 1
        if self.presses > 1 and self.hurried is None:
            self.hurried = time.monotonic()
        if number != signal.SIGINT:
            self.ending = number
        if self.is_open:
            # Closed before it is raised: unwinding is not disturbed again.
            self.is_open, self.raised = False, True
            self._deliver(number, frame)
            self._heard()
            self.is_open, self.raised = True, False
            return
        self.pending = number
        _wake()
        if self.presses >= _HARD and self._is_plain(number):
            _end_hard(number)
            if self.presses >= _ANYWHERE:
                self._deliver(number, frame)

    def _is_plain(self, number: int) -> bool:
        """Whether only Python has a handler, so that a third press ends by force."""
        return self._heeded.get(number) in (
            signal.default_int_handler,
            signal.SIG_DFL,
        )

    def _deliver(self, number: int, frame: FrameType | None) -> None:
        """Calls the previous handler; Python's own raises KeyboardInterrupt."""
        if number != signal.SIGINT:
            raise Terminated(signal.Signals(number).name)
        self._heeded[number](number, frame)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        before = self._before[number]
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, before)
            os.kill(os.getpid(), number)

    def _heard(self) -> None:
        """Notes that a program's handler has handled the signal and continues."""
        self.presses, self.hurried = 0, None

    def _unraisable(self, args: Any) -> None:
        """Handles exceptions that Python drops in its garbage collector."""
        kind: Any = args.exc_type
        if self.raised and kind is not None and issubclass(kind, KeyboardInterrupt):
            self.is_lost = True
        elif self._hook is not None:
            self._hook(args)

    # ------------------------------------------------------------- safe points

    def check(self) -> None:
        """Raises the pending signal."""
        number, self.pending = self.pending, 0
        if number:
            drain()
            self._deliver(number, inspect.currentframe())
            self._heard()

    def close_up(self, error: BaseException | None) -> None:
        """Closes the outermost block: raises the pending signal, or ends the process.

        Args:
            error: Exception that ends the block, None for a normal end.
        """
        self.uninstall()
        drain()
        if self.ending:
            os.kill(os.getpid(), self.ending)
        number, self.pending = self.pending, 0
        if number and not isinstance(error, KeyboardInterrupt):
            self._pass_on(number, inspect.currentframe())


def _without_libraries(found: Any) -> Any:
    """Returns a handler; Python's own in the place of a library's.

    Example:
        >>> def handle(number, frame): ...
        >>> handle.__module__ = "pyspark.core.context"
        >>> _without_libraries(handle) is signal.default_int_handler
        True
    """
    module = getattr(found, "__module__", None) or ""
    is_library = module.startswith(_LIBRARIES)
    return signal.default_int_handler if is_library else found


@final
class _Undisturbed:
    """See `undisturbed`."""

    def __init__(self) -> None:
        self._scope: _Scope | None = None
        self._is_outermost = self._was_open = False

    def __enter__(self) -> None:
        global _scope
        if threading.current_thread() is not threading.main_thread():
            return
        if _scope is not None:
            self._scope, self._was_open = _scope, _scope.is_open
            _scope.is_open = False
            return
        scope = _Scope()
        scope.install()
        self._scope = _scope = scope
        self._is_outermost = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _scope
        scope = self._scope
        if scope is None or not scope.is_active:  # another thread, or a fork
            return
        if self._is_outermost:
            _scope = None
            scope.close_up(error)
        elif self._was_open and not isinstance(error, KeyboardInterrupt):
            scope.is_open = True
            scope.check()


@final
class _Interruptible:
    """See `interruptible`."""

    def __init__(self) -> None:
        self._scope: _Scope | None = None
        self._was_open = False
        self._origin = Origin()

    def __enter__(self) -> None:
        scope = self._scope = _here()
        if scope is not None:
            scope.check()
            self._was_open = scope.is_open
            scope.raised = scope.is_lost = False
            scope.is_open = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        scope = self._scope
        if scope is None:
            return
        if self._origin.is_forked:
            if error is None:
                raise SystemExit(
                    "code of the user has forked this process during a run and has "
                    "returned from there. A fork was expected to end by os._exit"
                )
            return
        scope.is_open = False
        if scope.raised:
            scope.raised = False
            # Libraries turn it into an error of theirs that contains its name.
            is_error = isinstance(error, Exception)
            if scope.is_lost or (is_error and "KeyboardInterrupt" in str(error)):
                scope.is_lost, scope.pending = False, scope.pending or signal.SIGINT
                scope.check()
            if isinstance(error, KeyboardInterrupt):
                return
            scope.presses, scope.hurried = 0, None  # the user's code handled it
        if scope.ending and not isinstance(error, KeyboardInterrupt):
            scope.pending = scope.ending
        scope.is_open = self._was_open
        if error is None:
            scope.check()


_scope: _Scope | None = None
_enders: dict[int, weakref.ref[_Ender]] = {}
_pipe: tuple[int, int] | None = None


def undisturbed() -> _Undisturbed:
    """Context in which Ctrl-C, SIGTERM and SIGHUP only leave a note.

    The outermost one sets the handlers; it restores the former ones at the end, and
    raises the pending signal. Handlers of the program are called at the next safe point
    instead of at once, and their exceptions are raised. Blocks may be nested.

    Example:
        >>> try:
        ...     with undisturbed():
        ...         signal.raise_signal(signal.SIGINT)
        ...         print("cleaned up")
        ... except KeyboardInterrupt:
        ...     print("interrupted")
        cleaned up
        interrupted
    """
    return _Undisturbed()


def interruptible() -> _Interruptible:
    """Context inside an `undisturbed` one whose code may be interrupted anywhere.

    It is for the user's code and for long calls of libraries. Elsewhere it has no
    effect.

    Example:
        >>> with undisturbed():
        ...     try:
        ...         with interruptible():
        ...             signal.raise_signal(signal.SIGINT)
        ...             print("never printed")
        ...     except KeyboardInterrupt:
        ...         print("interrupted")
        interrupted
    """
    return _Interruptible()


def check() -> None:
    """Raises the pending signal: a safe point of an `undisturbed` block.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    scope = _here()
    if scope is not None:
        scope.check()


def _here() -> _Scope | None:
    """Returns the scope of this thread."""
    if _scope is None or threading.current_thread() is not threading.main_thread():
        return None
    return _scope


@final
class Deadline:
    """A limit in seconds that the second press of Ctrl-C shortens.

    Args:
        limit_s: Seconds from now.

    Example:
        >>> Deadline(0.0).left_s
        0.0
    """

    def __init__(self, limit_s: float) -> None:
        self._until = time.monotonic() + limit_s

    @property
    def left_s(self) -> float:
        """Returns the remaining seconds, at least 0."""
        scope, until = _scope, self._until
        if scope is not None and scope.hurried is not None:
            until = min(until, scope.hurried + HASTE_S)
        return max(0.0, until - time.monotonic())

    def wait(self, is_done: Callable[[float], bool], step_s: float = 0.05) -> bool:
        """Waits in small steps until something is done; returns whether it is.

        Args:
            is_done: Waits at most so many seconds, and returns whether it is done.
            step_s: Seconds of each step.
        """
        while not is_done(min(step_s, self.left_s)):
            if self.left_s <= 0:
                return is_done(0.0)
        return True


def pause(seconds: float) -> None:
    """Sleeps, unless Ctrl-C is pressed; a safe point.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    wake = descriptor()
    if wake is None:
        time.sleep(seconds)
    else:
        select.select([wake], [], [], seconds)
        check()


def descriptor() -> int | None:
    """Returns a descriptor that is readable after a signal, for waits of this thread.

    None outside of `undisturbed` blocks, where the signal itself ends the wait.
    """
    return None if _here() is None else _open_pipe()[0]


def drain() -> None:
    """Empties the pipe after a wait: the next one waits again; `check` still raises."""
    if _pipe is not None:
        with contextlib.suppress(OSError):
            os.read(_pipe[0], 4096)


def _open_pipe() -> tuple[int, int]:
    """Opens a pipe for the process's life: its number must never be another file's."""
    global _pipe
    if _pipe is None:
        found = os.pipe()
        for end in found:
            os.set_blocking(end, False)
        _pipe = found
    return _pipe


def _wake() -> None:
    with contextlib.suppress(OSError):  # a full pipe has the same effect
        os.write(_open_pipe()[1], b"\0")


# ------------------------------------------------------------------- the third press


def ends_hard(ender: _Ender) -> None:
    """Calls `end_hard` of an object when a run is ended by force.

    It is called in a signal handler: it must take no lock, must not wait, and may find
    the object in any state.
    """
    key = id(ender)
    _enders[key] = weakref.ref(ender, lambda _: _enders.pop(key, None))


def _end_hard(number: int) -> None:
    for known in _enders.copy().values():  # other threads add theirs
        ender = known()
        if ender is not None:
            with contextlib.suppress(Exception):
                ender.end_hard()
    if number == signal.SIGINT and hasattr(sys, "ps1"):
        return  # a prompt or a notebook: its variables must survive
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        os.write(2, b"\nEnded at once, with all processes of the run.\n")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # process 1 of a container ignores its own signals


def _forget() -> None:
    """Forgets the run in a forked child: handlers are as they were before."""
    global _scope, _pipe
    scope, _scope = _scope, None
    ends, _pipe = _pipe, None
    _enders.clear()
    if scope is not None:
        scope.uninstall()
    for end in ends or ():
        os.close(end)


os.register_at_fork(after_in_child=_forget)
