"""Times of preprocessing, measured in the workers.

This file decides what is counted: the time inside the user's code, chunk by chunk.
Workers write one line a call into a file of the experiment; fetching is not counted.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast, final

from shoal.data.files.preprocess import Preprocess, PreprocessReader, entry_point
from shoal.data.files.source import FileSource
from shoal.terminal import say

LINES = "preprocessing.csv"
HEADER = "process,seconds,files,rows\n"


@final
@dataclass(frozen=True, kw_only=True)
class Timed:
    """A user's preprocessing that records the time of each call.

    Args:
        user: Class, object or function that reads files.
        path: File that gets a line a call.
        driver: Id of the process that called `fit`; others are workers.

    Example:
        >>> path = Path("times.csv")
        >>> timed = Timed(user=lambda k, o: ([1], [2], 1), path=path, driver=0)
        >>> timed.preprocess(["a.txt"], [])
        preprocessing: 1 file, 1 rows, 0.000 s
        ([1], [2], 1)
        >>> spent(path, driver=0).calls
        1
    """

    user: Preprocess
    path: Path
    driver: int

    def preprocess(self, keys: list[str], objects: list[BinaryIO]) -> Any:
        """Calls the user's code."""
        began = time.perf_counter()
        found = entry_point(self.user)(keys, objects)
        seconds = time.perf_counter() - began
        rows = cast("tuple[Any, ...]", found)[-1] if isinstance(found, tuple) else 0
        # A missing file costs a number, not the run.
        with suppress(OSError), self.path.open("a") as file:
            file.write(f"{os.getpid()},{seconds:.6f},{len(keys)},{rows}\n")
        if os.getpid() != self.driver:  # in the console of the worker
            files = f"{len(keys)} file{'s'[: len(keys) != 1]}"
            say(f"preprocessing: {files}, {rows} rows, {seconds:.3f} s")
        return found


class Spent(NamedTuple):
    """Total cost of timed preprocessing.

    Args:
        seconds: Seconds in the user's code, of all workers together.
        calls: Chunks of files.
        workers: Processes that preprocessed.
        before_s: Seconds in the process that called `fit`, for the first samples.
    """

    seconds: float
    calls: int
    workers: int
    before_s: float = 0.0


def timed(source: FileSource, path: Path) -> FileSource:
    """Returns the same source with timed preprocessing.

    Args:
        source: Source that was opened with `preprocess=`.
        path: File that gets a line a call; it is created here.
    """
    path.write_text(HEADER)
    reader = cast(PreprocessReader, source.reader)
    own = Timed(user=reader.preprocess, path=path, driver=os.getpid())
    return replace(source, reader=replace(reader, preprocess=own))


def spent(path: Path, driver: int) -> Spent:
    """Adds up the recorded times; zero if there is no such file.

    Args:
        path: File of the times.
        driver: Id of the process that called `fit`.
    """
    before_s, times, workers = 0.0, list[float](), set[str]()
    text = path.read_text() if path.is_file() else ""
    for line in text.splitlines():
        process, _, rest = line.partition(",")
        with suppress(ValueError):  # the header, or a partial line of a killed worker
            seconds = float(rest.split(",")[0])
            if int(process) == driver:
                before_s += seconds
            else:
                times.append(seconds)
                workers.add(process)
    return Spent(sum(times), len(times), len(workers), before_s)
