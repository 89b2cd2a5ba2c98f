"""Ctrl-C and SIGTERM while Shoal works: noted at once, raised where that is safe.

Python raises KeyboardInterrupt between any two instructions of the main thread: also
where a lock was taken a moment ago and is not noted yet, or in the middle of cleaning
up. So in an `undisturbed` block a signal only leaves a note and ends waits; `check`
raises it where nothing is half done. Code of the user, and long calls of libraries,
run `interruptible` within it: there it is raised at once, as Python does.

The first press ends the run with what can be had of it. The second one shortens every
wait that is left (`Patience`). The third one ends all processes of the run by force,
removes what was temporary, and ends this process; at a prompt or in a notebook, whose
process is more than this run, it does all but the last. SIGTERM and SIGHUP end a run
as Ctrl-C does where a program has no handler for them; then they end the process as
they would have.

The state of this module is that of signals in Python: one for a process, and of its
main thread. In other threads nothing here has an effect; they may read `Patience`.
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
"""Seconds that waits may last after the second press, all together."""

_ENDING = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_HARD, _ANYWHERE = 3, 6  # presses


class Terminated(KeyboardInterrupt):
    """A signal that ends the process came; the process ends when all is cleaned up."""


class _Ender(Protocol):
    def end_hard(self) -> None: ...


class _Scope:
    """The outermost `undisturbed` block of the main thread.

    Attributes:
        is_open: Whether what runs now is `interruptible`.
        raised: Whether a signal was raised at once since that began.
        is_lost: Whether Python dropped what was raised.
        pending: The signal that nobody has heard of yet, 0 for none.
        presses: Signals since the run began, or since the user's code took them.
        hurried: Monotonic seconds of the second press, None before.
        ending: The signal that ends the process, 0 for none.
    """

    def __init__(self) -> None:
        self.is_active = True
        self.is_open = self.raised = self.is_lost = False
        self.pending = self.presses = self.ending = 0
        self.hurried: float | None = None
        self._before: dict[int, Any] = {}
        self._hook: Callable[[Any], Any] | None = None

    # ---------------------------------------------------------------- handlers

    def install(self) -> None:
        """Takes the signals; Ctrl-C first, so that no other is held when it raises."""
        if callable(signal.getsignal(signal.SIGINT)):
            self._take(signal.SIGINT)
        for number in _ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._take(number)
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable

    def _take(self, number: int) -> None:
        self._before[number] = signal.getsignal(number)
        signal.signal(number, self._press)

    def uninstall(self) -> None:
        """Gives the handlers back, but for those that somebody else has set since."""
        if self._hook is not None and sys.unraisablehook == self._unraisable:
            sys.unraisablehook = self._hook
        for number in reversed(self._before):  # Ctrl-C last: then it is raised here
            if signal.getsignal(number) == self._press:
                signal.signal(number, self._before[number])
        self.is_active = False

    def _press(self, number: int, frame: FrameType | None) -> None:
        if not self.is_active:  # somebody kept this handler, and has set it again
            self._pass_on(number, frame)
            return
        self.presses += 1
        if self.presses > 1 and self.hurried is None:
            self.hurried = time.monotonic()
        if number != signal.SIGINT:
            self.ending = number
        if self.is_open:
            # Closed before it is raised: whatever is unwound is not disturbed again.
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
        """Whether nobody but Python has a handler, so that three presses mean: end."""
        return self._before.get(number) in (
            signal.default_int_handler,
            signal.SIG_DFL,
        )

    def _deliver(self, number: int, frame: FrameType | None) -> None:
        """What the handler of before does; Python's own raises KeyboardInterrupt."""
        if number != signal.SIGINT:
            raise Terminated(signal.Signals(number).name)
        self._before[number](number, frame)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        before = self._before[number]
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, before)
            os.kill(os.getpid(), number)

    def _heard(self) -> None:
        """The handler of a program has taken the signal and goes on."""
        self.presses, self.hurried = 0, None

    def _unraisable(self, args: Any) -> None:
        """Python drops what is raised in a callback of its garbage collector."""
        kind: Any = args.exc_type
        if self.raised and kind is not None and issubclass(kind, KeyboardInterrupt):
            self.is_lost = True
        elif self._hook is not None:
            self._hook(args)

    # ------------------------------------------------------------- safe points

    def check(self) -> None:
        """Raises what is pending."""
        number, self.pending = self.pending, 0
        if number:
            drain()
            self._deliver(number, inspect.currentframe())
            self._heard()

    def close_up(self, error: BaseException | None) -> None:
        """The outermost block is over: what is pending is raised, or ends the process.

        Args:
            error: What ends the block, None where it came to its end.
        """
        self.uninstall()
        drain()
        if self.ending:
            os.kill(os.getpid(), self.ending)
        number, self.pending = self.pending, 0
        if number and not isinstance(error, KeyboardInterrupt):
            self._pass_on(number, inspect.currentframe())


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
            # Libraries turn it into an error of theirs, which has its name.
            is_error = isinstance(error, Exception)
            if scope.is_lost or (is_error and "KeyboardInterrupt" in str(error)):
                scope.is_lost, scope.pending = False, scope.pending or signal.SIGINT
                scope.check()
            if isinstance(error, KeyboardInterrupt):
                return
            scope.presses, scope.hurried = 0, None  # code of the user took it
        if scope.ending and not isinstance(error, KeyboardInterrupt):
            scope.pending = scope.ending
        scope.is_open = self._was_open
        if error is None:
            scope.check()


_scope: _Scope | None = None
_enders: dict[int, weakref.ref[_Ender]] = {}
_pipe: tuple[int, int] | None = None


def undisturbed() -> _Undisturbed:
    """A block in which Ctrl-C, SIGTERM and SIGHUP only leave a note.

    The outermost one has the handlers; it gives them back as they were, and what is
    pending then is raised. Handlers of the program are called at the safe points in
    place of the moment itself, and what they raise is raised. Blocks may be nested.

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
    """A block of an `undisturbed` one whose code may be interrupted anywhere.

    For code of the user and for long calls of libraries. Elsewhere it has no effect.

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
    """Raises what is pending: a safe point of an `undisturbed` block.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    scope = _here()
    if scope is not None:
        scope.check()


def _here() -> _Scope | None:
    """The scope of this thread."""
    if _scope is None or threading.current_thread() is not threading.main_thread():
        return None
    return _scope


@final
class Patience:
    """A limit in seconds that the second press of Ctrl-C shortens.

    Args:
        limit_s: Seconds from now.

    Example:
        >>> Patience(0.0).left_s
        0.0
    """

    def __init__(self, limit_s: float) -> None:
        self._until = time.monotonic() + limit_s

    @property
    def left_s(self) -> float:
        """Seconds that are left, at least 0."""
        scope, until = _scope, self._until
        if scope is not None and scope.hurried is not None:
            until = min(until, scope.hurried + HASTE_S)
        return max(0.0, until - time.monotonic())

    def wait(self, is_done: Callable[[float], bool], step_s: float = 0.05) -> bool:
        """Waits until something is done, in small steps; whether it is.

        Args:
            is_done: Waits so many seconds at most, and says whether it is done.
            step_s: Of each step.
        """
        while not is_done(min(step_s, self.left_s)):
            if self.left_s <= 0:
                return is_done(0.0)
        return True


def pause(seconds: float) -> None:
    """Sleeps, unless Ctrl-C is pressed; a safe point.

    Raises:
        KeyboardInterrupt: It was pressed.
    """
    wake = descriptor()
    if wake is None:
        time.sleep(seconds)
    else:
        select.select([wake], [], [], seconds)
        check()


def descriptor() -> int | None:
    """What can be read when a signal has come, for waits of this thread.

    None where no block is `undisturbed`, and the signal would end the wait itself.
    """
    return None if _here() is None else _open_pipe()[0]


def drain() -> None:
    """A wait has ended by it: the next one waits again, and `check` still raises."""
    if _pipe is not None:
        with contextlib.suppress(OSError):
            os.read(_pipe[0], 4096)


def _open_pipe() -> tuple[int, int]:
    """Open as long as the process: a handler must not meet a number of another file."""
    global _pipe
    if _pipe is None:
        found = os.pipe()
        for end in found:
            os.set_blocking(end, False)
        _pipe = found
    return _pipe


def _wake() -> None:
    with contextlib.suppress(OSError):  # full is as good
        os.write(_open_pipe()[1], b"\0")


# ------------------------------------------------------------------- the third press


def ends_hard(ender: _Ender) -> None:
    """Has `end_hard` of something called when a run is ended by force.

    It is called in a signal handler: it takes no lock, waits for nothing, and may meet
    the object in any state.
    """
    key = id(ender)
    _enders[key] = weakref.ref(ender, lambda _: _enders.pop(key, None))


def _end_hard(number: int) -> None:
    for known in list(_enders.values()):
        ender = known()
        if ender is not None:
            with contextlib.suppress(Exception):
                ender.end_hard()
    if number == signal.SIGINT and hasattr(sys, "ps1"):
        return  # a prompt or a notebook: its variables are worth more than this run
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        os.write(2, b"\nEnded at once, with all processes of the run.\n")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # process 1 of a container does not end by a signal


def _forget() -> None:
    """A forked child has no run: handlers are as they were before."""
    global _scope, _pipe
    scope, _scope = _scope, None
    ends, _pipe = _pipe, None
    _enders.clear()
    if scope is not None:
        scope.uninstall()
    for end in ends or ():
        os.close(end)


os.register_at_fork(after_in_child=_forget)
