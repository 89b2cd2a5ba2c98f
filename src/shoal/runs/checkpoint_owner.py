"""The right to write the checkpoints of a run: the last process to claim it has it."""

from __future__ import annotations

import json
import re
import secrets
import time
from dataclasses import dataclass
from typing import Any, final

from shoal.errors import CheckpointError
from shoal.host.processes import Process
from shoal.runs.checkpoint_files import Damage, read_whole, remove, storage
from shoal.runs.folder import Folder

OWNERS = "owners"
TRIES = 64

_TOKEN = re.compile(r"(\d{6,})\.json")


@final
@dataclass(frozen=True, kw_only=True)
class Ownership:
    """A writer's claim on a folder, which ends with the next claim.

    Args:
        folder: The folder of checkpoints.
        generation: Grows with every claim.
        writer: Random id, so that two claims are never confused.
        token: Content of this writer's file in the folder.
    """

    folder: Folder
    generation: int
    writer: str
    token: bytes

    @classmethod
    def claim(cls, folder: Folder, *, above: int = 0) -> Ownership:
        """Claims a folder from its present owner.

        Args:
            folder: The folder of checkpoints.
            above: A generation that is certainly in use.

        Raises:
            OSError: The storage cannot be reached or takes no files.
            CheckpointError: Others claimed it faster, 64 times in a row.
        """
        writer = secrets.token_hex(8)
        for _ in range(TRIES):
            generation = max([above, *_generations(folder)]) + 1
            token = _token(generation, writer)
            owner = cls(
                folder=folder, generation=generation, writer=writer, token=token
            )
            try:
                with storage(folder):
                    folder.create(_name(generation), token)
            except FileExistsError:
                continue
            if owner._has_token():
                return owner
        raise CheckpointError(
            f"the checkpoints in {folder.url} cannot be claimed: {TRIES} other "
            "processes came first. Expected one process that goes on with a run. "
            "Stop the others and resume again."
        )

    def check(self) -> None:
        """Checks that the claim still holds.

        Raises:
            CheckpointError: Another process has taken over.
            OSError: The storage or the folder cannot be reached.
        """
        newest = max(_generations(self.folder), default=0)
        if newest > self.generation:
            raise self._lost(newest)
        if newest < self.generation:
            raise FileNotFoundError(f"{self.folder.where(_name(self.generation))}")
        if not self._has_token():
            raise self._lost(newest)

    @staticmethod
    def check_unclaimed(folder: Folder) -> None:
        """Checks that no process has claimed a folder.

        Raises:
            CheckpointError: One has.
            OSError: The storage cannot be reached.
        """
        newest = max(_generations(folder), default=0)
        if newest:
            raise CheckpointError(
                f"another process writes the checkpoints in {folder.url} now: "
                f"generation={newest} ({_who(folder, newest)}). This process has "
                "written none yet. Expected one process for each run. "
                "Stop one of the two; resuming the run takes it over again."
            )

    def forget_others(self) -> None:
        """Removes the tokens of earlier writers."""
        for generation in _generations(self.folder):
            if generation < self.generation:
                remove(self.folder, _name(generation))

    def _has_token(self) -> bool:
        # Not every storage can create exclusively: of two simultaneous writers, the one
        # whose token remains has won.
        try:
            return read_whole(self.folder, _name(self.generation)) == self.token
        except Damage:
            return False

    def _lost(self, newest: int) -> CheckpointError:
        return CheckpointError(
            f"another process writes the checkpoints in {self.folder.url} now: "
            f"generation={newest} ({_who(self.folder, newest)}) has taken over from "
            f"generation={self.generation}, which is this process. "
            "Expected one process for each run. "
            "Stop one of the two; resuming the run takes it over again."
        )


def _token(generation: int, writer: str) -> bytes:
    head = {"generation": generation, "writer": writer, "time": time.time()}
    return json.dumps({**head, **Process.here().fields}).encode() + b"\n"


def _name(generation: int) -> str:
    return f"{OWNERS}/{generation:06}.json"


def _generations(folder: Folder) -> list[int]:
    with storage(folder):
        found = (_TOKEN.fullmatch(name) for name in folder.names(OWNERS))
    return [int(match[1]) for match in found if match]


def _who(folder: Folder, generation: int) -> str:
    try:
        token: dict[str, Any] = json.loads(read_whole(folder, _name(generation)))
        return f"host={token['host']!r}, pid={token['pid']!r}"
    except (Damage, OSError, ValueError, LookupError, TypeError):
        return "it does not say which"
