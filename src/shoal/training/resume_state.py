"""The state of a resumed run, and its form in a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shoal.engine.coordination.skipped import Skipped
from shoal.engine.server.checkpoint import OptimizerSnapshot, ServerCheckpoint
from shoal.errors import CheckpointError
from shoal.runs.checkpoints import Checkpoint

OPTIMIZER, CALLBACKS, CHANGES = "optimizer", "callbacks", "changes"
WRONG = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors that a document of another kind causes."""


@final
@dataclass(frozen=True, kw_only=True)
class Diary:
    """State of the user's process, besides that of the server.

    Args:
        epoch: The next epoch whose end callbacks will see.
        history: Name -> one number an epoch.
        epochs: Epochs of the numbers in `history`.
        best: Score of the best model, None before there is one.
        learning_rate: Learning rate of the optimizer, None under a schedule.
        is_stopped: Whether a callback ends the run with this epoch.
        callbacks: Result of `CallbackStates.take`.
        unscored: Epochs whose validation was pending.
        changes: Callbacks' changes of the model, as `Changes.pack` returns them.
        kept: States of metrics that no reset changes, at the beginning of this epoch.
        samples: Samples whose exchanges were reported; 0 in older checkpoints.
    """

    epoch: int
    history: dict[str, list[Any]]
    epochs: list[int]
    best: float | None
    learning_rate: float | None
    is_stopped: bool
    callbacks: bytes
    unscored: Sequence[int] = ()
    changes: bytes = b""
    kept: Sequence[float] = ()
    samples: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class ResumeState:
    """The state of a run on the server, and in the user's process."""

    server: ServerCheckpoint
    diary: Diary

    def to_checkpoint(self) -> Checkpoint:
        """Returns this as plain values."""
        server = self.server
        diary = dict(vars(self.diary))
        diary["history"] = {
            name: [np.asarray(value).tolist() for value in values]
            for name, values in self.diary.history.items()
        }
        blobs = {OPTIMIZER: server.blob, CALLBACKS: diary.pop("callbacks")}
        blobs[CHANGES] = diary.pop("changes")
        snapshots = server.snapshots.items()
        blobs |= {_name(rank): snapshot.blob for rank, snapshot in snapshots}
        return Checkpoint(
            number=0,
            document={
                "sequencer": server.sequencer,
                "left_out": server.left_out.to_json(),
                "snapshots": [[r, s.incarnation, s.sequence] for r, s in snapshots],
                "diary": diary,
                "changes": server.changes,
            },
            arrays=server.arrays,
            blobs=blobs,
        )

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> ResumeState:
        """The inverse of `to_checkpoint`.

        Raises:
            CheckpointError: The content is invalid, in spite of correct checksums.
        """
        try:
            return cls(server=_server(checkpoint), diary=_diary(checkpoint))
        except WRONG as error:
            raise CheckpointError(
                f"checkpoint {checkpoint.number} does not hold what a run needs to go "
                f"on ({type(error).__name__}: {error!s:.200}). Expected one that this "
                "version of Shoal wrote. Resume with the version that wrote it, or "
                "remove it to go on from the one before."
            ) from error


def _server(checkpoint: Checkpoint) -> ServerCheckpoint:
    document = checkpoint.document
    return ServerCheckpoint(
        sequencer=dict(document["sequencer"]),
        arrays=dict(checkpoint.arrays),
        blob=checkpoint.blobs[OPTIMIZER],
        changes=int(document.get("changes", 0)),
        left_out=Skipped.from_json(document["left_out"]),
        snapshots={
            rank: OptimizerSnapshot(
                incarnation, sequence, checkpoint.blobs[_name(rank)]
            )
            for rank, incarnation, sequence in document["snapshots"]
        },
    )


def _diary(checkpoint: Checkpoint) -> Diary:
    diary = Diary(
        callbacks=checkpoint.blobs[CALLBACKS],
        changes=checkpoint.blobs.get(CHANGES, b""),
        **checkpoint.document["diary"],
    )
    # Needed by metrics before anything is trained.
    if not isinstance(diary.epoch, int) or diary.epoch < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"epoch={diary.epoch!r:.40}")
    diary.history.items()
    return diary


def _name(rank: int) -> str:
    """Returns the name of the blob with a worker's own state."""
    return f"{OPTIMIZER}-{rank}"
