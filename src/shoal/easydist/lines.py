"""Progress lines: step, loss and elapsed time, every few seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, final

import keras

from shoal.training.progress import Display, minutes

PACE_S = 5.0


@final
class StepLines(keras.callbacks.Callback):
    """Prints a line with the first exchange of each epoch, and then every few seconds.

    Args:
        began: Monotonic seconds of the start.

    Example:
        >>> lines = StepLines(began=time.monotonic())
        >>> lines.set_params({"steps": 8, "epochs": 2})
        >>> lines.on_epoch_begin(0)
        >>> lines.on_train_batch_end(3, {"loss": 0.5})
        step 4/8 of epoch 1/2  loss 0.5000  0:00 elapsed
    """

    def __init__(self, *, began: float) -> None:
        super().__init__()
        self._began = began
        self._display = Display(is_live=False)
        self._epoch = 0
        self._said: float | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Resets the count of steps."""
        del logs
        self._epoch, self._said = epoch, None

    def on_train_batch_end(
        self, batch: int, logs: Mapping[str, Any] | None = None
    ) -> None:
        """Prints the progress when a line is due."""
        now = time.monotonic()
        if self._said is not None and now - self._said < PACE_S:
            return
        self._said = now
        params: Mapping[str, Any] = self.params or {}
        steps, epochs = params.get("steps"), params.get("epochs")
        loss = (logs or {}).get("loss")
        parts = [
            f"step {batch + 1}{f'/{steps}' if steps else ''} "
            f"of epoch {self._epoch + 1}{f'/{epochs}' if epochs else ''}",
            *([] if loss is None else [f"loss {float(loss):.4f}"]),
            f"{minutes(now - self._began)} elapsed",
        ]
        self._display.say("  ".join(parts))
