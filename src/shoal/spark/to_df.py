"""Frames that answer `toDF()` without names, as all did in 2016."""

from __future__ import annotations

from typing import Any


def with_to_df(frame: Any) -> Any:
    """Returns the frame itself, whose `toDF()` without names returns it again.

    Spark's raises an error today. With names, and on any frame that is made from this
    one, it is Spark's.
    """
    own = frame.toDF

    def to_df(*names: str) -> Any:
        """Returns the frame, with other names if some are given."""
        return own(*names) if names else frame

    frame.toDF = to_df
    return frame
