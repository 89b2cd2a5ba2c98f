"""What an executor does with its part of a DataFrame: checks it, and writes it.

Rows become Arrow IPC files, lists of one length in them without a mark for each. What
was written is told in one line of JSON, which is all that the driver goes by: files of
attempts that failed are named by nobody.
"""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, final

import pyarrow as pa
import pyarrow.compute as compute

from shoal.data.files.store import Store
from shoal.errors import DataError

PART_BYTES = 1 << 17
"""Size up to which rows are written as one record batch."""
LEAST_ROWS = 1024
PIECE_BYTES = 4 << 20
"""Size of the pieces in which rows go to the driver."""
BYTES = "bytes"
TOLD = "told"
"""The column that says what a task has written."""


@final
@dataclass(frozen=True, kw_only=True)
class Written:
    """What one task has written, or why it did not.

    Args:
        url: The file, "" for no rows.
        size_bytes: Its size.
        rows: Rows of each record batch.
        shapes: Column -> shape of its rows.
        strange: Column -> number of its values that are NaN or infinite.
        error: Why the rows cannot be used, "" if they can.
        host: Host of the executor.
        partition: Number of the partition.
    """

    url: str = ""
    size_bytes: int = 0
    rows: tuple[int, ...] = ()
    shapes: dict[str, tuple[int, ...]] = field(
        default_factory=dict[str, tuple[int, ...]]
    )
    strange: dict[str, int] = field(default_factory=dict[str, int])
    error: str = ""
    host: str = ""
    partition: int = 0

    def to_text(self) -> str:
        """Returns it as a line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Written:
        """Reads what `to_text` has written.

        Example:
            >>> one = Written(url="a", rows=(2, 3), shapes={"x": (4,)})
            >>> Written.from_text(one.to_text()) == one
            True
        """
        fields: dict[str, Any] = json.loads(text)
        fields["rows"] = tuple(fields["rows"])
        fields["shapes"] = {n: tuple(shape) for n, shape in fields["shapes"].items()}
        return cls(**fields)


@final
@dataclass(frozen=True)
class Amount:
    """What was written so far.

    Args:
        files: Number of files.
        rows: Number of rows.
        size_bytes: Bytes of the files.
    """

    files: int = 0
    rows: int = 0
    size_bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.files + other.files,
            self.rows + other.rows,
            self.size_bytes + other.size_bytes,
        )

    def shown(self, seconds: float) -> str:
        """Returns it in words.

        Args:
            seconds: Seconds since the beginning.

        Example:
            >>> Amount(3, 12000, 4_600_000).shown(2.5)
            'DataFrame: 12,000 rows in 3 files written, 4.6 MB, 2 s'
        """
        size = self.size_bytes / 1e6
        return (
            f"DataFrame: {self.rows:,} rows in {self.files:,} files written, "
            f"{size:,.1f} MB, {seconds:.0f} s"
        )


@final
@dataclass(frozen=True)
class Writer:
    """Function of a task, for `DataFrame.mapInArrow`.

    Args:
        folder: URL of the folder that all files go to.
        names: Names of the columns in the files.
        note: Told of what each task has written.
    """

    folder: str
    names: tuple[str, ...]
    note: Callable[[Amount], object]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes the rows of a partition; yields what was written."""
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        partition = context.partitionId()
        name = f"{partition}-{context.taskAttemptId()}-{uuid.uuid4().hex[:8]}.arrow"
        named = (
            pa.RecordBatch.from_arrays(batch.columns, names=list(self.names))
            for batch in batches
        )
        told = write_part(named, f"{self.folder}/{name}", partition)
        self.note(Amount(int(bool(told.url)), sum(told.rows), told.size_bytes))
        yield pa.RecordBatch.from_pydict({TOLD: [told.to_text()]})


@final
@dataclass(frozen=True)
class Packer:
    """Function of a task whose rows go to the driver, for `DataFrame.mapInArrow`.

    It yields the bytes of a file, piece by piece, and then what the file has.

    Args:
        names: Names of the columns in the file.
    """

    names: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the bytes of a partition, and what they are."""
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        named = (
            pa.RecordBatch.from_arrays(batch.columns, names=list(self.names))
            for batch in batches
        )
        for piece, told in pack_part(named, context.partitionId()):
            yield pa.RecordBatch.from_pydict(
                {TOLD: [told], BYTES: pa.array([piece], pa.binary())}
            )


def pack_part(
    batches: Iterable[pa.RecordBatch], partition: int = 0
) -> Iterator[tuple[bytes, str]]:
    """Yields the bytes of an Arrow file in pieces, and in the end what was written.

    Args:
        batches: Rows of a partition, as Spark gives them.
        partition: Number of the partition.
    """
    host, sink = socket.gethostname(), _Sink()
    rows: list[int] = []
    strange: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    writer: Any = None
    try:
        for batch in _groups(_dense(batches, partition, shapes, strange)):
            if writer is None:
                writer = pa.ipc.new_file(pa.PythonFile(sink, mode="w"), batch.schema)
            writer.write_batch(batch)
            rows.append(batch.num_rows)
            if sink.size >= PIECE_BYTES:
                yield sink.take(), ""
        if writer is not None:
            writer.close()
    except DataError as error:
        told = Written(error=str(error), host=host, partition=partition)
        yield b"", told.to_text()
        return
    told = Written(
        rows=tuple(rows), shapes=shapes, host=host, partition=partition,
        strange={name: count for name, count in strange.items() if count},
    )  # fmt: skip
    yield sink.take(), told.to_text()


@final
class _Sink:
    """A file in memory whose bytes are taken out while it grows."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = self._place = 0

    def write(self, data: Any) -> int:
        """Appends bytes."""
        part = bytes(data)
        self._parts.append(part)
        self.size, self._place = self.size + len(part), self._place + len(part)
        return len(part)

    def tell(self) -> int:
        """Returns the bytes that were ever written."""
        return self._place

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing: the rest is taken afterwards."""

    def take(self) -> bytes:
        """Returns the bytes since the last time."""
        found, self._parts, self.size = b"".join(self._parts), [], 0
        return found


def write_part(
    batches: Iterable[pa.RecordBatch], url: str, partition: int = 0
) -> Written:
    """Writes record batches to a file, which is whole or not there.

    Args:
        batches: Rows of a partition, as Spark gives them.
        url: URL of the file.
        partition: Number of the partition, for messages.

    Raises:
        OSError: The store does not take it.
    """
    host = socket.gethostname()
    system = Store().filesystem(url)
    path = Store().path(url)
    rows: list[int] = []
    strange: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    writer: Any = None
    stream: Any = None
    try:
        for batch in _groups(_dense(batches, partition, shapes, strange)):
            if writer is None:
                system.makedirs(path.rpartition("/")[0], exist_ok=True)
                stream = system.open(path, "wb")
                writer = pa.ipc.new_file(stream, batch.schema)
            writer.write_batch(batch)
            rows.append(batch.num_rows)
        if writer is None:
            return Written(host=host, partition=partition)
        writer.close()
        stream.close()
    except BaseException as error:
        if stream is not None:
            with suppress(Exception):
                stream.close()
            with suppress(Exception):
                system.rm_file(path)
        if isinstance(error, DataError):
            return Written(error=str(error), host=host, partition=partition)
        raise
    return Written(
        url=url, size_bytes=int(system.size(path)), rows=tuple(rows), shapes=shapes,
        strange={name: count for name, count in strange.items() if count},
        host=host, partition=partition,
    )  # fmt: skip


def _dense(
    batches: Iterable[pa.RecordBatch],
    partition: int,
    shapes: dict[str, tuple[int, ...]],
    strange: dict[str, int],
) -> Iterator[pa.RecordBatch]:
    """Yields batches whose lists have a fixed length; notes shapes and odd values."""
    first = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        arrays: list[pa.Array] = []
        for name in batch.schema.names:
            place = _Place(name, partition, first)
            array, flat = fixed(batch.column(name), place)
            shape = _shape(array.type)
            if shapes.setdefault(name, shape) != shape:
                raise _ragged(place, [shapes[name], shape])
            strange[name] = strange.get(name, 0) + _not_finite(flat)
            arrays.append(array)
        yield pa.RecordBatch.from_arrays(arrays, names=list(batch.schema.names))
        first += batch.num_rows


@final
@dataclass(frozen=True)
class _Place:
    """Rows of a column, for messages."""

    name: str
    partition: int
    first: int

    def row(self, offset: int) -> str:
        return f"row {self.first + offset:,} of partition {self.partition:,}"


def fixed(array: Any, place: Any) -> tuple[Any, Any]:
    """Returns an array with lists of a fixed length, and its values in one row.

    Args:
        array: Column of numbers, or of lists of them.
        place: Where it is, for messages.

    Raises:
        DataError: A cell or a value is null, or lists differ in length.
    """
    if array.null_count:
        offset = compute.index(array.is_null(), value=True).as_py()
        raise DataError(
            f"column {place.name!r} of the DataFrame has {array.null_count:,} nulls, "
            f"the first in {place.row(offset)}. Expected a number in every cell. Fill "
            "them, or drop the rows: df.na.drop()."
        )
    if not pa.types.is_list(array.type) and not pa.types.is_large_list(array.type):
        return array, array
    lengths = compute.unique(compute.list_value_length(array)).to_pylist()
    if len(lengths) > 1:
        raise _ragged(place, [(length,) for length in sorted(lengths)])
    values = array.flatten()
    if values.null_count:
        offset = compute.index(values.is_null(), value=True).as_py() // lengths[0]
        raise DataError(
            f"lists in column {place.name!r} of the DataFrame have "
            f"{values.null_count:,} nulls, the first in {place.row(offset)}. Expected "
            "a number in every place. Fill them (pyspark.sql.functions.transform)."
        )
    inner, flat = fixed(values, place)
    return pa.FixedSizeListArray.from_arrays(inner, lengths[0]), flat


def _ragged(place: Any, shapes: Any) -> DataError:
    shown = " and ".join(str(tuple(shape)) for shape in shapes[:3])
    return DataError(
        f"column {place.name!r} of the DataFrame has rows of shapes {shown}, by "
        f"{place.row(0)}. Expected the same shape in all rows. Pad the lists, or drop "
        "those of another length."
    )


def _shape(kind: Any) -> tuple[int, ...]:
    if pa.types.is_fixed_size_list(kind):
        return (kind.list_size, *_shape(kind.value_type))
    return ()


def _not_finite(flat: Any) -> int:
    if not pa.types.is_floating(flat.type):
        return 0
    return len(flat) - int(compute.sum(compute.is_finite(flat)).as_py() or 0)


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cuts and joins batches to a common size; Spark's setting decides theirs."""
    waiting: list[pa.RecordBatch] = []
    count = limit = 0
    for batch in batches:
        limit = limit or max(LEAST_ROWS, PART_BYTES * batch.num_rows // batch.nbytes)
        start = 0
        while start < batch.num_rows:
            piece = batch.slice(start, limit - count)
            waiting.append(piece)
            start, count = start + piece.num_rows, count + piece.num_rows
            if count >= limit:
                yield _joined(waiting)
                waiting, count = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches).combine_chunks()
    return table.to_batches()[0]
