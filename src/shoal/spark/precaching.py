"""A DataFrame whose written rows are kept for several trainings."""

from __future__ import annotations

from typing import Any

from shoal.data import kept_frames
from shoal.plan.request import require_whole


def precache(dataset: Any, num_workers: int = 1) -> Any:
    """Returns the DataFrame; the first training on it keeps the rows for all others.

    The rows are written once for each set of columns, and stay until `unpersist`, the
    end of the frame object or of the session. Frames that Spark has cached
    (`df.cache()`) are kept in the same way, as long as it is the same object.

    Args:
        dataset: The DataFrame.
        num_workers: Number of workers, at least 1, that should have enough groups of
            rows.

    Raises:
        ConfigError: The number is too small.
    """
    kept = dataset.select("*")
    kept_frames.keep(kept, require_whole("num_workers", num_workers, 1))
    return kept
