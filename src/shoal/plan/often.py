"""The interval of checkpoints: a time or a number of samples."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import final

from shoal.errors import ConfigError

USUAL_S = 30.0


@final
@dataclass(frozen=True, kw_only=True)
class Often:
    """Limits between two checkpoints; the end of an epoch always makes one.

    Args:
        seconds: Approximate limit in seconds, None for none.
        samples: Approximate limit in samples, None for none.
    """

    seconds: float | None = USUAL_S
    samples: int | None = None

    def is_due(self, samples: int, since: float) -> bool:
        """Whether another checkpoint is due.

        Args:
            samples: Samples committed since the last one.
            since: Monotonic seconds of the last one.
        """
        if self.samples is not None and samples >= self.samples:
            return True
        return self.seconds is not None and time.monotonic() - since > self.seconds


def read_often(given: object) -> Often | None:
    """Reads `checkpoint_every`: seconds, "N samples", None for the usual, False never.

    Raises:
        ConfigError: The value is invalid.

    Example:
        >>> read_often("5000 samples")
        Often(seconds=None, samples=5000)
    """
    if given is None:
        return Often()
    if given is False:
        return None
    if isinstance(given, (int, float)) and given is not True and given > 0:
        return Often(seconds=float(given))
    if isinstance(given, str):
        number, _, unit = given.replace(",", "").replace("_", "").partition(" ")
        if unit == "samples" and number.isdecimal() and int(number) > 0:
            return Often(seconds=None, samples=int(number))
    raise ConfigError(
        f"checkpoint_every={given!r} cannot be used. "
        'Expected seconds above 0, "N samples", or False for no checkpoints. '
        f"Leave it out for one every {USUAL_S:.0f} s and at the end of each epoch."
    )
