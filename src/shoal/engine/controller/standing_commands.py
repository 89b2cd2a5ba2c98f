"""Commands that are still in force. Pure.

This file decides what a server that takes over must be told again: the lost one may not
have handled it. Settings of callbacks are in `settings.py`.
"""

from __future__ import annotations

from typing import final

from shoal.engine.transport.messages.controller_to_server import (
    AskCenter,
    AskCheckpoint,
    AskState,
    Command,
    Expect,
    Halt,
    Proceed,
)


@final
class StandingCommands:
    """Commands to the server, as far as they are not answered or outdated.

    Attributes:
        is_halted: A callback wants the run to stop.

    Example:
        >>> standing = StandingCommands()
        >>> standing.note(Proceed(epoch=0))
        >>> standing.note(AskCheckpoint())
        >>> [command.kind for command in standing.of_run(next_epoch=0)]
        ['proceed']
        >>> [command.kind for command in standing.requests()]
        ['checkpoint']
        >>> standing.checkpoint_came()
        >>> standing.requests()
        []
    """

    def __init__(self) -> None:
        self.is_halted = False
        self._expected: Expect | None = None
        self._opened: int | None = None
        self._question: AskCenter | AskState | None = None
        self._wants_checkpoint = False

    def note(self, command: Command) -> None:
        """Records a command that is sent."""
        match command:
            case Expect():
                self._expected = command
            case Proceed(epoch=epoch):
                self._opened = epoch
            case AskCenter() | AskState():
                self._question = command
            case AskCheckpoint():
                self._wants_checkpoint = True
            case _:
                pass

    def answered(self) -> None:
        """Forgets a question: it was answered, or nobody waits any more."""
        self._question = None

    def checkpoint_came(self) -> None:
        """Forgets the request for a checkpoint, which has come."""
        self._wants_checkpoint = False

    def go_back(self, upcoming: int) -> None:
        """Continues from a checkpoint that may be older than a reported end.

        Args:
            upcoming: The first epoch that is not complete in it.
        """
        # An epoch whose end was reported is trained again if the checkpoint is older.
        if self._opened is not None:
            self._opened = min(self._opened, upcoming)

    def halts(self, next_epoch: int) -> list[Command]:
        """Returns `Halt` if a callback wants to stop and the server can be told.

        It waits while an epoch is trained again whose end was reported.

        Args:
            next_epoch: The first epoch whose end was not reported.
        """
        is_behind = self._opened is not None and self._opened < next_epoch
        return [Halt()] if self.is_halted and not is_behind else []

    def of_run(self, next_epoch: int) -> list[Command]:
        """Returns the commands that say how the run goes on; see `halts`."""
        found: list[Command] = []
        if self._expected is not None:
            found.append(self._expected)
        if self._opened is not None:
            found.append(Proceed(epoch=self._opened))
        return [*found, *self.halts(next_epoch)]

    def requests(self) -> list[Command]:
        """Returns the requests that were not answered."""
        found: list[Command] = []
        if self._question is not None:
            found.append(self._question)
        if self._wants_checkpoint:
            found.append(AskCheckpoint())
        return found
