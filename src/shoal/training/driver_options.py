"""Arguments of Keras' `fit` that only the user's process needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from shoal.plan.often import Often
from shoal.training.resume_state import ResumeState
from shoal.training.validation import Validation


@final
@dataclass(frozen=True, kw_only=True)
class DriverOptions:
    """Arguments of Keras' `fit` for the user's process.

    Args:
        callbacks: The user's callbacks.
        validate: Evaluates the model, None without validation data.
        late: Validation data of the validation process, in place of `validate`.
        validation_freq: Epochs between validations, or a list of epochs.
        verbose: 0, 1, 2 or "auto".
        echo: Whether to print the workers' output.
        on_turn: Called while the run is followed; it may raise.
        often: Interval of checkpoints.
        keep: Stores a checkpoint, None for no checkpoints.
        resume_state: State of a resumed run, None for a new one.
    """

    callbacks: Any = None
    validate: Callable[..., dict[str, float]] | None = None
    late: Validation | None = None
    validation_freq: int | Sequence[int] = 1
    verbose: int | str = 0
    echo: bool = False
    on_turn: Callable[[], None] = lambda: None
    often: Often = field(default_factory=Often)
    keep: Callable[[ResumeState], None] | None = None
    resume_state: ResumeState | None = None
