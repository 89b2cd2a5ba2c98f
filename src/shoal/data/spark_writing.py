"""The Spark jobs that write a DataFrame, or send it to the driver.

A job runs in a thread of its own, so that Ctrl-C ends it and progress is shown while it
lasts. What successful tasks return is what was written.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from pyspark import InheritableThread
from pyspark.accumulators import AccumulatorParam
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame

from shoal.data.frame_writing import (
    BYTES,
    TOLD,
    Amount,
    Packer,
    Writer,
    Written,
)
from shoal.data.reading import Tell
from shoal.errors import DataError
from shoal.interruption import check
from shoal.jvm_errors import cause
from shoal.paths import one_inside

LOOK_S = 0.05  # between checks for Ctrl-C
END_S = 10.0  # for Spark to end a cancelled job
WIDE = 1000
"""Width of vectors from which their size is computed before they are written."""


class _Amounts(AccumulatorParam[Amount]):
    """Sums what tasks have written."""

    def zero(self, value: Amount) -> Amount:
        """Returns nothing written."""
        return Amount()

    def addInPlace(self, value1: Amount, value2: Amount) -> Amount:
        """Returns the sum."""
        return value1 + value2


@final
class WritingTask:
    """Columns of a frame, to be written.

    Args:
        frame: The frame.
        columns: Expressions of the columns.
        names: Their names in the files.
        tell: Told of the progress; None shows none.
    """

    def __init__(
        self,
        frame: DataFrame,
        columns: Sequence[Column],
        names: tuple[str, ...],
        tell: Tell | None,
    ) -> None:
        # Names of columns with dots would be taken apart by `mapInArrow`.
        self._asked = frame.select(*(c.alias(f"c{n}") for n, c in enumerate(columns)))
        self._frame, self._names, self._tell = frame, names, tell
        self._widths = {name: width_of(frame.schema[name]) for name in names}
        self._context = frame.sparkSession.sparkContext

    def write(self, folder: str) -> list[Written]:
        """Has executors write into a folder; returns what they told, in order.

        Args:
            folder: URL of the folder.

        Raises:
            DataError: They could not.
        """
        amount = self._context.accumulator(Amount(), _Amounts())
        writer = Writer(folder, self._names, amount.add)
        asked = self._asked.mapInArrow(writer, f"{TOLD} string")  # pyright: ignore
        rows: list[Any] = []
        self._run(lambda: rows.extend(asked.collect()), lambda: amount.value)
        told = [Written.from_text(row[TOLD]) for row in rows]
        return sorted(told, key=lambda one: one.partition)

    def fetch(self, folder: Path) -> list[Written]:
        """Writes all rows into a folder of this machine, a partition at a time.

        Args:
            folder: The folder.

        Returns:
            What was written; `url` is the name of a file there.

        Raises:
            DataError: Executors could not read the rows.
        """
        packer, schema = Packer(self._names), f"{TOLD} string, {BYTES} binary"
        asked = self._asked.mapInArrow(packer, schema)  # pyright: ignore
        told: list[Written] = []
        amount = [Amount()]

        def fetch() -> None:
            for row in asked.toLocalIterator():
                path = one_inside(folder, f"{len(told)}.arrow")
                with open(path, "ab") as file:
                    file.write(row[BYTES])
                if row[TOLD]:  # the last of its partition
                    one = Written.from_text(row[TOLD])
                    size = path.stat().st_size
                    told.append(replace(one, url=path.name, size_bytes=size))
                    amount[0] += Amount(1, sum(one.rows), size)

        self._run(fetch, lambda: amount[0])
        return told

    def check_room(self, store: str | None) -> None:
        """Says how large wide vectors become; sparse ones are written with all zeros.

        Rows are counted for that alone: the width of such vectors is known from their
        column.

        Args:
            store: Where they go; None and "driver" are this machine's disk.

        Raises:
            DataError: The disk has less room.
        """
        widths = {n: w for n, w in self._widths.items() if w >= WIDE}
        if not widths:
            return
        counts: list[int] = []
        self._run(lambda: counts.append(self._frame.count()), None)
        size = 4 * counts[0] * sum(self._widths.values())
        wide = ", ".join(f"{n!r} of {w:,}" for n, w in widths.items())
        what = f"{counts[0]:,} rows with vectors {wide} numbers"
        if self._tell is not None:
            zeros = "sparse ones with all their zeros"
            self._tell(f"DataFrame: {what} take {size / 1e9:,.2f} GB, {zeros}", True)
        refuse_size(what, size, free_bytes(store))

    def _run(
        self, job: Callable[[], object], amount: Callable[[], Amount] | None
    ) -> None:
        """Runs a job of Spark in a thread; Ctrl-C cancels it."""
        context, tag = self._context, f"shoal-{secrets.token_hex(8)}"
        errors: list[Exception] = []

        def run() -> None:
            context.addJobTag(tag)
            try:
                job()
            except Exception as error:
                errors.append(error)

        # A call to the JVM that Ctrl-C breaks off would leave its answer to the next.
        thread = InheritableThread(run, name="shoal-frame", daemon=True)
        began = time.monotonic()
        thread.start()
        try:
            while thread.is_alive():
                thread.join(LOOK_S)
                self._show(amount, began, is_over=False)
                check()
        except KeyboardInterrupt:
            context.cancelJobsWithTag(tag)
            thread.join(END_S)
            raise
        for error in errors:
            raise DataError(
                "executors could not write the rows of the DataFrame: "
                f"{cause(str(error))}. Expected a frame that can be computed, "
                "executors with Shoal and pyarrow, and a folder that they can write "
                "to. Correct that, and call fit again."
            ) from error
        self._show(amount, began, is_over=True)

    def _show(
        self, amount: Callable[[], Amount] | None, began: float, *, is_over: bool
    ) -> None:
        if self._tell is not None and amount is not None:
            self._tell(amount().shown(time.monotonic() - began), is_over)


def refuse_size(what: str, size_bytes: int, free: int | None) -> None:
    """Refuses rows for which there is no room.

    Args:
        what: The rows, in words.
        size_bytes: Their size.
        free: Free bytes, None if they are not known.

    Raises:
        DataError: There are fewer.
    """
    if free is not None and size_bytes > free:
        raise DataError(
            f"{what} take {size_bytes / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are "
            "free. Expected room for vectors with all their zeros. Select fewer "
            "features (pyspark.ml.feature.ChiSqSelector), or pass a larger store to "
            "shoal.clusters.Spark."
        )


def width_of(field: Any) -> int:
    """Returns the numbers of a vector, as Spark ML notes them; 0 if it did not.

    Args:
        field: Field of a schema.
    """
    if not isinstance(field.dataType, VectorUDT):
        return 0
    noted: Any = field.metadata.get("ml_attr") or {}
    kinds: Any = noted.get("attrs") or {}
    listed = sum(len(attributes) for attributes in kinds.values())
    return int(noted.get("num_attrs") or listed)


def free_bytes(store: str | None) -> int | None:
    """Returns the free bytes of a disk; None for a store that does not say.

    Args:
        store: Path or URL; None and "driver" are this machine's disk.
    """
    here = store is None or store == "driver"
    path = tempfile.gettempdir() if here else str(store)
    with suppress(OSError):
        return shutil.disk_usage(path).free
    return None
