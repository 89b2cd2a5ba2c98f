"""Progress of many hosts: a live line for each, or one line after the other."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from typing import final

from rich.console import Console
from rich.progress import (
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from shoal.terminal import one_line, say

ENDS = ("runs", "ran already", "failed", "ended")


@final
class Steps:
    """Shows steps on standard error, while its `with` lasts.

    A host, or another resource, has a line from its first step on.
    """

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._shown = Progress(
            SpinnerColumn(), TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(), TextColumn("{task.fields[step]}", markup=False),
            console=Console(stderr=True),
        )  # fmt: skip
        self._tasks: dict[str, TaskID] = {}

    def tell(self, name: str, step: str) -> None:
        """Shows the present step of a host; may be called from any thread."""
        first = one_line(step.partition("\n")[0])
        if not self._is_live:
            say(f"{name} {first}", err=True)
            return
        if name not in self._tasks:
            self._tasks[name] = self._shown.add_task(one_line(name), total=1, step="")
        done = 1 if step.startswith(ENDS) else 0
        self._shown.update(self._tasks[name], step=first, completed=done)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Keeps the lines still, for a question."""
        if self._is_live:
            self._shown.stop()
        yield
        if self._is_live:
            self._shown.start()

    def __enter__(self) -> Steps:
        if self._is_live:
            self._shown.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_live:
            self._shown.stop()
