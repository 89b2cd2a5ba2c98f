"""Carries out the sequencer's instructions.

A server (`engine/server/replica.py`), `cluster="inline"` (`training/inline.py`) and the
server of the simulation (`tests/simulation/protocol/server.py`) each do their own work
for an instruction. Which method belongs to which instruction is decided here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from shoal.engine.coordination.instructions import (
    Apply,
    EpochDone,
    Instruction,
    Merge,
    Refuse,
    Respond,
    Rollback,
    Ungroup,
)
from shoal.strategies.base import Facts


class Interpreter(ABC):
    """Does one thing for each kind of instruction."""

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        """Carries out instructions in their order."""
        for place, instruction in enumerate(instructions):
            match instruction:
                case Apply(rank, facts):
                    self._apply(rank, facts)
                case Merge(facts, is_grouped):
                    later = instructions[place + 1 :]
                    self._merge(facts, _replied_to(later), is_grouped=is_grouped)
                case Respond():
                    self._respond(instruction)
                case Refuse(rank, incarnation, reason):
                    self._refuse(rank, incarnation, reason)
                case EpochDone(epoch):
                    self._end_epoch(epoch)
                case Rollback(lineage):
                    self._roll_back(lineage)
                case Ungroup():
                    self._ungroup()

    @abstractmethod
    def _apply(self, rank: int, facts: Facts) -> None:
        """Applies a worker's message to the center."""

    @abstractmethod
    def _merge(
        self, facts: dict[int, Facts], replied_to: Sequence[int], *, is_grouped: bool
    ) -> None:
        """Merges the messages of a round.

        Args:
            facts: Facts of each message, by the rank of its worker, in rank order.
            replied_to: Ranks of the workers that get the merged reply.
            is_grouped: The workers have averaged their vectors.
        """

    @abstractmethod
    def _respond(self, answer: Respond) -> None:
        """Answers a worker that waits."""

    @abstractmethod
    def _refuse(self, rank: int, incarnation: int, reason: str) -> None:
        """Refuses a message of a worker, if that incarnation is still connected."""

    @abstractmethod
    def _end_epoch(self, epoch: int) -> None:
        """Ends an epoch whose samples are all committed."""

    @abstractmethod
    def _roll_back(self, lineage: int) -> None:
        """Continues from the last published center, in a new lineage."""

    @abstractmethod
    def _ungroup(self) -> None:
        """Notes that the server averages from now on."""


def _replied_to(instructions: Sequence[Instruction]) -> list[int]:
    """Returns the ranks of the workers that get a reply with a vector."""
    answers = (one for one in instructions if isinstance(one, Respond))
    return [answer.rank for answer in answers if answer.body == "reply"]
