"""Processes that score: started, replaced after a loss, and ended together.

`evaluate` and `predict` have several of them, `validation="async"` has one. This file
decides what follows the end of a process: an error of the model's code ends the whole
call, a killed process is replaced a few times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from shoal.errors import WorkerFailed, WorkerLost
from shoal.launchers.base import Exit, Role
from shoal.launchers.process import ProcessLauncher
from shoal.launchers.shared import SharedBlob
from shoal.training.early_start import preload_for

MOST_LOSSES = 3


@final
@dataclass(frozen=True, kw_only=True)
class Purpose:
    """The task of scoring processes, in the words of an error message.

    Args:
        target: "module:function" that they run.
        doing: Task of a process when it ended: "scored 'mlp'".
        must: Processes on which the model's code must run as it does here.
        instead: Advice if the code cannot run there.
        expected: Expected result.
        advice: Advice if memory is short.
    """

    target: str
    doing: str
    must: str
    instead: str
    expected: str
    advice: str


@final
class ScoringProcesses:
    """Processes of this machine that score with one backend.

    Args:
        purpose: Task of the processes.
        backend: Backend of Keras.
        threads: Compute threads of each process.
        shared: Descriptors that the processes inherit.
    """

    def __init__(
        self, purpose: Purpose, backend: str, threads: int, shared: Sequence[int]
    ) -> None:
        self._purpose, self._backend, self._threads = purpose, backend, threads
        self._launcher = ProcessLauncher(shared=tuple(shared))
        self._losses = 0

    def start(self, name: str, environment: Mapping[str, str] | None = None) -> str:
        """Starts a process; returns its token."""
        target = self._purpose.target
        role = Role(
            target=target,
            name=name,
            preload=preload_for(self._backend, target.partition(":")[0]),
            environment=environment,
            threads=self._threads,
        )
        return self._launcher.start(role)

    def give(self, token: str, message: Any) -> None:
        """Sends a process its task."""
        self._launcher.give(token, message)

    def pid(self, token: str) -> int:
        """Returns the id of a process."""
        return self._launcher.pid(token)

    def poll(self) -> list[Exit]:
        """Returns the processes that have ended since the last call."""
        return list(self._launcher.poll().values())

    def count_loss(self, gone: Exit, rank: int | None = None) -> None:
        """Counts a lost process; raises if it must not be replaced.

        Args:
            gone: Reason and output of the process.
            rank: Number of the process, if there are several.

        Raises:
            WorkerFailed: Code of the model raised.
            WorkerLost: Processes died too often.
        """
        purpose = self._purpose
        if gone.code > 0:
            raise WorkerFailed(
                f"{gone.name} {gone.reason} while it {purpose.doing}. Code of the "
                f"model, its layers, loss or metrics must run on {purpose.must} as it "
                f"does here. Its output follows; correct it, or {purpose.instead}.",
                rank=rank,
                traceback=gone.output,
            )
        self._losses += 1
        if self._losses > MOST_LOSSES:
            raise WorkerLost(
                f"{gone.name} {gone.reason}; {MOST_LOSSES} of {MOST_LOSSES} "
                f"replacements used. {purpose.expected}. {purpose.advice}. Its output:",
                rank=rank,
                traceback=gone.output,
            )

    def close(self) -> None:
        """Ends all processes."""
        self._launcher.close()


def shared_bytes(blob: SharedBlob, content: bytes) -> int:
    """Writes bytes to memory that processes can map; returns the descriptor."""
    with blob.allocate(len(content)) as memory:
        memory[:] = content
    return blob.descriptor
