"""Settings that callbacks change during a run, on their way to the server.

This file decides which command tells the server of a change, and what another server
has to be told again. Workers get the settings with their next answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import final

from shoal.engine.controller.observer import Observer
from shoal.engine.server.spec import ServerSpec
from shoal.engine.transport.changes import Changes
from shoal.engine.transport.messages.controller_to_server import (
    ChangeModel,
    Command,
    Pace,
    SetLearningRate,
)


@final
class CallbackSettings:
    """The learning rate, changes of the model, and the pace of the steps.

    Args:
        observer: Observer of the run, whose callbacks set them.
        command: Sends a command and its body to the server.
    """

    def __init__(
        self, observer: Observer, command: Callable[[Command, bytes], None]
    ) -> None:
        self._observer, self._command = observer, command
        self._learning_rate: float | None = None
        self._changes = Changes()
        self._most_bytes = 0
        self._version = -1  # of the newest reported exchange; -1 for unknown
        self._is_in_step = False

    def begin(self, server: ServerSpec) -> None:
        """Begins with the settings that the first server knows from its spec."""
        self._learning_rate = server.learning_rate
        self._changes = Changes(dict(server.changes.found))
        self._most_bytes = server.sizes.frame_bytes

    def written_to(self, server: ServerSpec) -> ServerSpec:
        """Returns the spec of another server, with the settings as they are now."""
        return replace(server, learning_rate=self._learning_rate, changes=self._changes)

    def repeat(self) -> None:
        """Sends all of them again, as a lost server may not have handled the last."""
        self._command(SetLearningRate(value=self._learning_rate), b"")
        if self._changes:
            self._command(ChangeModel(), self._changes.pack())
        if self._is_in_step:
            self._command(Pace(after=self._version), b"")

    def tell(self) -> None:
        """Sends what callbacks have set since the last call."""
        changes = self._observer.changes
        if changes.serial > self._changes.serial:
            self._tell_changes(changes)
        value = self._observer.learning_rate
        if value is not None and value != self._learning_rate:
            self._learning_rate = value
            self._command(SetLearningRate(value=value), b"")

    def _tell_changes(self, changes: Changes) -> None:
        """Sends a callback's changes of the model."""
        body = changes.after(self._changes.serial).pack()
        # Too large ones count as sent: they would be too large the next time as well.
        self._changes = Changes(dict(changes.found))
        if len(body) <= self._most_bytes:
            self._command(ChangeModel(), body)
            return
        text = (
            f"callbacks changed {len(body):,} bytes of the model at once, and at most "
            f"{self._most_bytes:,} travel; workers go on without. Change less in one "
            "hook"
        )
        self._observer.on_event("warning", text=text)

    # ---------------------------------------------------------------- the pace

    def pace(self) -> None:
        """Lets workers take one more step, if callbacks see each step."""
        before, self._is_in_step = self._is_in_step, self._observer.is_in_step
        if self._is_in_step:
            self._command(Pace(after=self._version), b"")
        elif before:
            self._command(Pace(after=None), b"")

    def reached(self, version: int) -> None:
        """Records the newest version that was reported, -1 for unknown."""
        self._version = version

    def roll_back(self) -> None:
        """Continues after a rollback: versions may be counted again."""
        self._version = -1
        if self._is_in_step:
            self._command(Pace(after=-1), b"")
