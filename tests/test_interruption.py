"""Signals while Shoal works: noted, raised at safe points, and given back."""

# What is not to happen after a press stands in the block that raises.
# ruff: noqa: PT012

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from shoal import interruption
from shoal.interruption import (
    HASTE_S,
    Deadline,
    Terminated,
    check,
    interruptible,
    pause,
    undisturbed,
)

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def _handlers_are_given_back() -> Iterator[None]:
    before = [signal.getsignal(number) for number in NUMBERS]
    hook = sys.unraisablehook
    yield
    assert [signal.getsignal(number) for number in NUMBERS] == before
    assert sys.unraisablehook == hook


@contextmanager
def handled(handler: Any) -> Iterator[None]:
    """A program with a handler of its own."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
        assert signal.getsignal(signal.SIGINT) == handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_press_waits_for_the_next_safe_point() -> None:
    done: list[str] = []
    with undisturbed():
        press()
        done.append("the rest of the change")
        with pytest.raises(KeyboardInterrupt):
            check()
        check()
    assert done


def test_a_press_waits_for_the_end_where_there_is_no_safe_point() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        with undisturbed():
            press()
            done.append("the rest of the change")
        done.append("never")
    assert done == ["the rest of the change"]


def test_code_of_the_user_is_interrupted_at_once() -> None:
    with undisturbed():
        with pytest.raises(KeyboardInterrupt), interruptible():
            press()
            pytest.fail("went on")
        press()  # what is unwound is not
        with pytest.raises(KeyboardInterrupt):
            check()


def test_a_press_before_code_of_the_user_keeps_it_from_beginning() -> None:
    with undisturbed():
        press()
        with pytest.raises(KeyboardInterrupt), interruptible():
            pytest.fail("began")


def test_blocks_within_code_of_the_user_delay_ctrl_c() -> None:
    done: list[str] = []
    with undisturbed():
        with pytest.raises(KeyboardInterrupt), interruptible():
            with undisturbed():
                press()
                done.append("put back")
            done.append("never")
        assert done == ["put back"]


def test_code_of_the_user_may_catch_ctrl_c_and_continue() -> None:
    with undisturbed():
        for _ in range(4):  # each is the first press again
            with interruptible(), suppress(KeyboardInterrupt):
                press()
        check()
        assert Deadline(60.0).left_s > 2 * HASTE_S


def test_an_exception_that_the_garbage_collector_drops_is_raised_later() -> None:
    """Python drops what is raised in a callback of it, and JAX has one."""

    def collected(phase: str, _info: object) -> None:
        if phase == "stop" and not done:
            done.append(phase)
            press()

    done: list[str] = []
    gc.callbacks.append(collected)
    try:
        with undisturbed(), pytest.raises(KeyboardInterrupt), interruptible():
            gc.collect()
            done.append("went on")
    finally:
        gc.callbacks.remove(collected)
    assert done == ["stop", "went on"]


def test_an_error_that_a_library_makes_of_ctrl_c_is_raised_as_ctrl_c() -> None:
    with undisturbed(), pytest.raises(KeyboardInterrupt), interruptible():
        try:
            press()
        except KeyboardInterrupt as error:
            raise RuntimeError("internal: KeyboardInterrupt: <no text>") from error


def test_a_handler_of_the_program_is_called_at_safe_points() -> None:
    heard: list[int] = []
    with handled(lambda number, _frame: heard.append(number)), undisturbed():
        for _ in range(5):  # it may mean anything: nothing is ended by force
            press()
        assert not heard
        check()
        with interruptible():
            press()
            press()
        assert heard == [signal.SIGINT] * 3
        assert Deadline(60.0).left_s > 2 * HASTE_S


def test_exceptions_of_a_handler_of_the_program_are_raised() -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    with handled(stop):
        with pytest.raises(Stop), undisturbed():
            press()
        with undisturbed(), pytest.raises(Stop), interruptible():
            press()


def test_a_program_that_ignores_sigint_still_ignores_it() -> None:
    with handled(signal.SIG_IGN), undisturbed():
        press()
        check()


def test_a_handler_that_is_set_within_stays() -> None:
    heard: list[int] = []

    def own(number: int, _frame: object) -> None:
        heard.append(number)

    before = signal.getsignal(signal.SIGINT)
    try:
        with undisturbed():
            ours = signal.signal(signal.SIGINT, own)
        assert signal.getsignal(signal.SIGINT) is own
        signal.signal(signal.SIGINT, ours)  # as it puts back what it has found
        with pytest.raises(KeyboardInterrupt):
            press()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_coroutine_is_cancelled_as_ever() -> None:
    async def train() -> str:
        with undisturbed():
            press()
            check()  # asyncio's first handler raises nothing: it cancels the task
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "cancelled"
        return "slept"

    async def main() -> None:
        assert await train() == "cancelled"

    with suppress(KeyboardInterrupt):
        asyncio.run(main())


def test_the_second_press_shortens_waits() -> None:
    with undisturbed():
        deadline = Deadline(60.0)
        press()
        assert deadline.left_s > 2 * HASTE_S
        press()
        assert deadline.left_s <= HASTE_S
        assert not deadline.wait(lambda limit_s: time.sleep(limit_s) is not None)
        with pytest.raises(KeyboardInterrupt):
            check()


def from_another_thread(number: int = signal.SIGINT) -> None:
    """Sends this thread a signal, sooner or later."""
    main = threading.main_thread().ident
    assert main is not None
    sender = threading.Thread(target=signal.pthread_kill, args=(main, number))
    sender.start()
    sender.join()


def test_a_press_ends_a_wait() -> None:
    with undisturbed(), pytest.raises(KeyboardInterrupt):
        from_another_thread()
        pause(600.0)


def test_a_press_ends_a_wait_that_has_begun() -> None:
    """The signal comes while the thread waits: it is sent when its pipe is read."""
    with undisturbed():
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            pause(600.0)
        timer.join()


def test_a_press_ends_the_wait_for_a_frame() -> None:
    from shoal.wire.frames import Link

    ours, theirs = socket.socketpair()
    link = Link.__new__(Link)
    link.socket, link.is_closing = ours, False
    link._ahead, link._room = memoryview(b""), memoryview(bytearray(64))
    link._max_body_bytes = 1 << 20
    with ours, theirs, undisturbed():
        from_another_thread()
        with pytest.raises(KeyboardInterrupt):
            link.receive()
        from_another_thread()
        assert not link.has_input(600.0)
        with pytest.raises(KeyboardInterrupt):
            check()


def test_another_thread_installs_nothing() -> None:
    found: list[Any] = []

    def work() -> None:
        with undisturbed(), interruptible():
            found.append(signal.getsignal(signal.SIGINT))
            check()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # of JAX
def test_a_fork_has_the_handlers_of_before() -> None:
    with undisturbed():
        child = os.fork()
        if not child:
            is_plain = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            os._exit(0 if is_plain else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        press()
        with pytest.raises(KeyboardInterrupt):
            check()


PROGRAM = """
import os, signal, sys
from shoal.interruption import *
from shoal.interruption import ends_hard
class Ender:
    def end_hard(self):
        os.write(1, b"ended hard\\n")
"""


def _program(text: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + text],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_the_third_press_ends_the_process_with_nothing_left() -> None:
    code, said = _program("""
ender = Ender(); ends_hard(ender)
with undisturbed():
    for _ in range(3):
        print("press", flush=True)
        signal.raise_signal(signal.SIGINT)
    print("went on")
""")
    assert code == -signal.SIGINT
    assert said == "press\n" * 3 + "ended hard\n"


def test_at_a_prompt_the_third_press_leaves_the_process() -> None:
    code, said = _program("""
sys.ps1 = ">>> "
ender = Ender(); ends_hard(ender)
try:
    with undisturbed():
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        check()
except KeyboardInterrupt:
    print("at the prompt again")
""")
    assert (code, said) == (0, "ended hard\nat the prompt again\n")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_ends_the_process_is_cleaned_up_after(name: str) -> None:
    # A shell may have it ignored, as `nohup` does.
    code, said = _program(f"""
signal.signal(signal.{name}, signal.SIG_DFL)
with undisturbed():
    try:
        with interruptible():
            signal.raise_signal(signal.{name})
            print("went on")
    except KeyboardInterrupt as error:
        print("cleaned up after", error, flush=True)
print("went on")
""")
    assert code == -signal.Signals[name]
    assert said == f"cleaned up after {name}\n"


def test_sigterm_is_a_keyboard_interrupt_to_cleanup_code() -> None:
    assert issubclass(Terminated, KeyboardInterrupt)


def _lines_of(block: Callable[[], None]) -> int:
    """Lines of `interruption.py` that a block runs."""
    counted = [0]

    def trace(frame: Any, event: str, _: object) -> Any:
        if frame.f_code.co_filename != interruption.__file__:
            return None
        counted[0] += event == "line"
        return trace

    sys.settrace(trace)
    try:
        block()
    finally:
        sys.settrace(None)
    return counted[0]


def _pressed_at(wanted: int, block: Callable[[], None]) -> None:
    """Runs a block, and presses before one of its lines of `interruption.py`."""
    counted = [0]

    def trace(frame: Any, event: str, _: object) -> Any:
        if frame.f_code.co_filename != interruption.__file__:
            return None
        if event == "line":
            counted[0] += 1
            if counted[0] == wanted:
                sys.settrace(None)
                frame.f_trace = None
                press()
        return trace

    sys.settrace(trace)
    try:
        block()
    finally:
        sys.settrace(None)


def test_ctrl_c_at_any_line_is_raised_once() -> None:
    """Whichever line is interrupted: it is raised once, and nothing stays behind."""

    def block() -> None:
        with undisturbed():
            with interruptible():
                sum(range(3))
            with undisturbed():
                check()

    before = [signal.getsignal(number) for number in NUMBERS]
    count = _lines_of(block)
    assert count > 50
    for line in range(1, count + 1):
        with pytest.raises(KeyboardInterrupt):
            _pressed_at(line, block)
        assert [signal.getsignal(number) for number in NUMBERS] == before, line
        assert interruption._scope is None, line
        block()
