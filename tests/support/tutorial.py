"""Runs a page of the tutorial as a reader does: saves its files, types its commands.

A block with a file's name as title is saved. A block of `sh` is typed into a terminal.
The reader waits for its end, but in one with the title "Terminal 1". Comments above a
block say what a reader would see before going on, and are read here:

    <!-- when Terminal 1 shows: Epoch 2/ -->     wait for these words
    <!-- until it shows: http -->                do not wait for the end of the block
    <!-- not run: needs an account -->           leave it out
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import final

from tests.markdown import Block, blocks_of

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial"
TERMINAL = "Terminal 1"
LIMIT_S = 60.0
_WHEN = re.compile(r"<!-- when (Terminal \d) shows: (.+) -->")
_UNTIL = re.compile(r"<!-- until it shows: (.+) -->")
_END = "end of the block"
_FAILED = "failed with"


@final
class Terminal:
    """A shell that keeps its variables from block to block.

    Args:
        folder: Working folder.
        variables: Environment variables, besides those of this process.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.shown: list[str] = []
        """Lines that it has printed so far."""
        self.is_busy = False
        self.is_open = False
        """Whether its block ends only when the reader closes the terminal."""
        self._shell = subprocess.Popen(
            ["bash"], cwd=folder, env={**os.environ, **variables}, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        self._write(f"trap 'echo \"{_FAILED} $?: $BASH_COMMAND\"' ERR")

    def _write(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{text}\n")
        self._shell.stdin.flush()

    def type(self, text: str) -> None:
        """Starts a block; the one before must have ended."""
        if self.is_busy:
            self.wait_for(_END)
        self.is_busy = True
        # Commands must not take the blocks that follow for their input.
        self._write(f"{{ {text.strip()}\n}} </dev/null\necho '{_END}'")

    def wait_for(self, words: str) -> None:
        """Waits until it has shown words, which it may have done before."""
        assert self._shell.stdout is not None
        if words != _END and any(words in line for line in self.shown):
            return
        for line in self._shell.stdout:
            self.shown.append(line.rstrip("\n"))
            print(line, end="")  # pytest shows it if the test fails
            self.is_busy = self.is_busy and line.strip() != _END
            if words in line:
                return
        raise AssertionError(f"the terminal closed before it showed {words!r}")

    def finish(self) -> None:
        """Waits for the end of the block that runs."""
        if self.is_busy:
            self.wait_for(_END)

    def close(self) -> None:
        """Presses Ctrl-C if something runs, and ends the shell."""
        if self._shell.returncode is not None:
            return
        if self.is_busy:
            os.killpg(self._shell.pid, signal.SIGINT)
        with suppress(BrokenPipeError):
            self._shell.communicate(timeout=LIMIT_S)
        self.is_busy = False


@final
class Reader:
    """Follows a page; the terminals stay open from block to block.

    Args:
        folder: Working folder, where files are saved.
        variables: Environment variables of the terminals.
        replaced: What a reader replaces in files and commands, such as addresses.
    """

    def __init__(
        self,
        folder: Path,
        variables: Mapping[str, str] | None = None,
        replaced: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        own = Path(sys.executable).parent
        self._variables = {
            "BROWSER": "true", "PYTHONUNBUFFERED": "1",
            "KERAS_BACKEND": "jax",  # as part 1 has it set
            "PATH": f"{own}:{os.environ['PATH']}", **(variables or {}),
        }  # fmt: skip
        self._replaced = replaced or {}
        self._terminals: dict[str, Terminal] = {}

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for terminal in self._terminals.values():
            terminal.close()

    def save(self, page: Path) -> None:
        """Saves the files of a page that a reader has done before."""
        for block in blocks_of(page):
            if block.kind != "sh" and block.title:
                (self.folder / block.title).write_text(block.text)

    def terminal(self, name: str = TERMINAL) -> Terminal:
        """Returns a terminal, which is opened when it is first asked for."""
        if name not in self._terminals:
            self._terminals[name] = Terminal(self.folder, self._variables)
        return self._terminals[name]

    def read(self, page: Path) -> None:
        """Does what a page says, from its top to its end."""
        blocks = [block for block in blocks_of(page) if block.is_run]
        assert any(block.kind == "sh" for block in blocks), page
        for block in blocks:
            if found := _WHEN.search(block.above):
                self.terminal(found[1]).wait_for(found[2])
            text = block.text
            for old, new in self._replaced.items():
                text = text.replace(old, new)
            if block.kind == "sh":
                self._type(block, text)
            elif block.title:
                (self.folder / block.title).write_text(text)
        for terminal in self._terminals.values():
            if terminal.is_open:
                terminal.close()
            terminal.finish()

    def _type(self, block: Block, text: str) -> None:
        terminal = self.terminal(block.title or TERMINAL)
        terminal.type(text)
        if found := _UNTIL.search(block.above):
            terminal.is_open = True
            terminal.wait_for(found[1])
        elif block.title != TERMINAL:
            terminal.finish()

    def shown(self) -> str:
        """Returns what all terminals have shown."""
        lines = (line for one in self._terminals.values() for line in one.shown)
        return "\n".join(lines)

    def failures(self) -> list[str]:
        """Returns commands that ended with another status than 0."""
        return [line for line in self.shown().splitlines() if _FAILED in line]
