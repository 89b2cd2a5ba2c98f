"""Checks that all workers read the same data set, by digests of their copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from shoal.errors import DataError

KEPT_EPOCHS = 4
"""Number of epochs whose digests are kept: a replacement may still read the last."""


@final
class Copies:
    """Compares the user's changes of each worker's copy, epoch by epoch.

    Example:
        >>> copies = Copies()
        >>> copies.take(epoch=1, digests={"self.order": "a"})
        >>> copies.take(epoch=1, digests={"self.order": "b"})
        Traceback (most recent call last):
        shoal.errors.DataError: self.order in one worker's copy of the data set is ...
    """

    def __init__(self) -> None:
        self._told: dict[int, dict[str, str]] = {}

    def take(self, *, epoch: int, digests: Mapping[str, str], **_: Any) -> None:
        """Adds the digests of one worker for an epoch.

        Raises:
            DataError: They differ from another worker's.
        """
        told = self._told.setdefault(epoch, dict(digests))
        names = [n for n, found in digests.items() if told.get(n, found) != found]
        if names:
            raise DataError(
                f"{', '.join(names[:3])} in one worker's copy of the data set is not "
                f"what it is in another's, in pass {epoch + 1} over the data. "
                "Expected code that does the same to every copy (on_epoch_begin, "
                "on_epoch_end, a sampler), or samples would be trained twice or "
                "never. Draw from a generator that __init__ makes with a seed, such "
                "as self.rng = np.random.default_rng(7), and let nothing depend on the "
                "clock, the process or what was read before."
            )
        told.update({**digests, **told})
        for old in sorted(self._told)[:-KEPT_EPOCHS]:
            del self._told[old]
