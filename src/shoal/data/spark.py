"""A Spark DataFrame as data of `fit`: columns become arrays in files.

This file decides which expression of the JVM makes numbers of a column, where files
go, and what is believed: only files that tasks which ended well have named.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from shoal.data.files.arrow import Arrow
from shoal.data.files.format import Part, Types
from shoal.data.files.reader import ColumnReader, sample_of
from shoal.data.files.selection import Selection, select
from shoal.data.files.source import FilePortion, FileSource, head_of, row_bytes
from shoal.data.files.store import FileEntry, Store
from shoal.data.frame_folders import FrameFolder, in_scratch, in_store, of_driver
from shoal.data.frame_server import FrameServer
from shoal.data.frame_stores import StoreFolder
from shoal.data.frame_writing import Written
from shoal.data.frames import FrameSource, portions_of
from shoal.data.kept_frames import FrameCopy, copy_of, shares_of
from shoal.data.located import FileArguments
from shoal.data.reading import Reading
from shoal.data.sources import default_floatx
from shoal.data.spark_writing import WritingTask
from shoal.errors import ConfigError, DataError
from shoal.host.scratch import Scratch, planned_scratch
from shoal.spark_versions import refuse_old_pyspark

WHERE = "the DataFrame"
DRIVER = "driver"
"""The `store` of rows that are kept on the disk of the driver."""
ONE_MACHINE = ("local", "local[", "local-cluster[")
WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.BooleanType)
FLOATS = (T.FloatType, T.DoubleType, T.DecimalType)


def open_frame(
    x: Any, y: Any, sample_weight: Any, arguments: FileArguments, reading: Reading
) -> FrameSource:
    """Has the columns of a frame written, and opens the files.

    Args:
        x: The frame.
        y: Must be None: the frame holds the targets.
        sample_weight: Name of a column, or None.
        arguments: Names of columns.
        reading: Where files may go, and how many workers read them.

    Raises:
        ConfigError: An argument is wrong, or this kind of frame cannot be used.
        DataError: A column is missing, or holds no numbers.
    """
    frame = _checked(x, y, sample_weight, arguments, reading)
    floatx = reading.floatx or default_floatx()
    chosen = select(
        frame.columns,
        Arrow(),
        features=arguments.features,
        label=arguments.label,
        weight=sample_weight,
        floatx=floatx,
        where=WHERE,
    )
    asked = (chosen.columns, chosen.floatx, reading.store)
    copy, is_kept = copy_of(
        frame, asked, partial(_write, frame, chosen, reading), is_plan=reading.is_plan
    )
    try:
        files = _files(copy, frame, chosen, shares_of(frame, reading.workers))
    except BaseException:
        if not is_kept:
            copy.folder.close()
        raise
    return FrameSource(
        files, copy.folder, is_kept=is_kept, notes=copy.notes,
        travels_alone=copy.is_far or not reading.is_away,
    )  # fmt: skip


def _checked(
    x: Any, y: Any, sample_weight: Any, arguments: FileArguments, reading: Reading
) -> DataFrame:
    """Refuses arguments that do not go with a frame, and frames of other kinds."""
    refuse_old_pyspark()
    if ".connect." in type(x).__module__:
        raise ConfigError(
            f"x is a DataFrame of Spark Connect ({reading.where}). Expected one of a "
            "classic session. Create the session with .master(...), or pass the path "
            "of Parquet files that it wrote."
        )
    if x.isStreaming:
        raise ConfigError(
            f"x is a stream ({reading.where}). Expected a DataFrame with an end. Write "
            "the stream to files, and pass their folder."
        )
    if y is not None or not isinstance(sample_weight, str | None):
        raise DataError(
            f"y or sample_weight is given beside a DataFrame ({reading.where}). "
            "Expected names of its columns. Pass label='a column' and "
            "sample_weight='a column'."
        )
    usual = FileArguments(features=arguments.features, label=arguments.label)
    if arguments != usual:
        raise ConfigError(
            "preprocess or on_bad_file was passed, but x is a DataFrame "
            f"({reading.where}). Expected them for files alone. Leave them out."
        )
    return x


def _write(frame: DataFrame, chosen: Selection, reading: Reading) -> FrameCopy:
    """Has executors write the chosen columns, or send them to this machine.

    Raises:
        DataError: Rows cannot be used, or files are not seen here.
    """
    columns = [column_of(frame.schema, name, chosen) for name in chosen.columns]
    task = WritingTask(frame, columns, chosen.columns, reading.progress)
    store, notes = reading.store, list[str]()
    if store is None and not _is_one_machine(frame):
        store = DRIVER
        notes.append(
            "rows of the DataFrame pass through the driver, one partition after the "
            "other: no folder is known that all machines see. Pass cluster=shoal."
            "clusters.Spark(store='s3://bucket/prefix') to have executors write them."
        )
    task.check_room(store)
    if store == DRIVER:
        copy = _fetch(task, frame, reading)
    elif store:
        place = StoreFolder.new(store)
        copy = _by_executors(task, place.url, in_store(place), is_far=True)
    else:
        scratch = Scratch(planned_scratch("frame"))
        rows = str(scratch.path / "rows")
        copy = _by_executors(task, rows, in_scratch(scratch), is_far=False)
    return replace(copy, notes=(*notes, *_strange(copy.told)))


def _by_executors(
    task: WritingTask, url: str, folder: FrameFolder, *, is_far: bool
) -> FrameCopy:
    """Has executors write into a folder.

    Args:
        task: The columns.
        url: URL that they write to.
        folder: Its folder.
        is_far: Whether other machines see it.
    """
    try:
        told = _checked_rows(task.write(url))
        for one in told:
            _check_seen(one)
    except BaseException:
        folder.close()
        raise
    return FrameCopy(told, folder, is_far=is_far)


def _fetch(task: WritingTask, frame: DataFrame, reading: Reading) -> FrameCopy:
    """Fetches the rows, and serves them from this machine's disk."""
    conf = frame.sparkSession.sparkContext.getConf()
    host = conf.get("spark.driver.host") or "127.0.0.1"
    host = "127.0.0.1" if _is_one_machine(frame) else host
    host = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    scratch = Scratch(planned_scratch("frame"))
    try:
        folder = scratch.make_folder()
        told = _checked_rows(task.fetch(folder))
        server = FrameServer(folder, host, reading.port)
    except BaseException:
        scratch.close()
        raise

    def remove() -> None:
        server.close()
        scratch.close()

    told = tuple(replace(one, url=f"{server.root}/{one.url}") for one in told)
    folder = of_driver(server.root, remove)
    return FrameCopy(told, folder, is_far=True, options=server.options)


def _is_one_machine(frame: DataFrame) -> bool:
    master = frame.sparkSession.sparkContext.master or ""
    return master == "local" or master.startswith(ONE_MACHINE[1:])


def _checked_rows(told: Sequence[Written]) -> tuple[Written, ...]:
    """Returns what tasks have written that had rows.

    Raises:
        DataError: Rows cannot be used.
    """
    for one in told:
        if one.error:
            raise DataError(one.error)
    full = tuple(one for one in told if one.rows)
    if not full:
        raise DataError(
            "the DataFrame has no rows. Expected at least one. Check how it was "
            "loaded or filtered."
        )
    for one in full:
        _check_alike(one, full[0])
    return full


def _files(
    copy: FrameCopy, frame: DataFrame, chosen: Selection, workers: int
) -> FileSource:
    """Makes a source of what was written."""
    kinds = types_of(frame.schema, chosen)
    parts = [
        Part(
            file=FileEntry(url=one.url, size_bytes=one.size_bytes),
            rows=rows, start=number, stop=number + 1, types=kinds,
        )
        for one in copy.told
        for number, rows in enumerate(one.rows)
    ]  # fmt: skip
    settled = chosen.settle([kinds])
    reader = ColumnReader(form=Arrow(), store=Store(copy.options), selection=settled)
    first = reader.read(parts[:1])
    sample = sample_of(first)
    portions: tuple[FilePortion, ...] = portions_of(parts, workers, row_bytes(sample))
    return FileSource(
        reader=reader, portions=portions, sample=sample, kind="Spark DataFrame",
        head=head_of(first),
    )  # fmt: skip


def _check_alike(one: Written, first: Written) -> None:
    for name, shape in one.shapes.items():
        if shape != first.shapes[name]:
            raise DataError(
                f"column {name!r} of the DataFrame has rows of shape "
                f"{first.shapes[name]} in partition {first.partition:,} and of shape "
                f"{shape} in partition {one.partition:,}. Expected the same in all "
                "rows. Pad the lists, or drop those of another length."
            )


def _check_seen(one: Written) -> None:
    store = Store()
    if not store.filesystem(one.url).exists(store.path(one.url)):
        raise DataError(
            f"{one.url}, which an executor on {one.host} has written, is not seen "
            "here. Expected a folder that all machines share. Pass another store to "
            "shoal.clusters.Spark, such as 's3://bucket/prefix'."
        )


def _strange(told: Sequence[Written]) -> tuple[str, ...]:
    """Returns sentences about columns with NaN or infinity."""
    counts: dict[str, int] = {}
    for one in told:
        for name, count in one.strange.items():
            counts[name] = counts.get(name, 0) + count
    return tuple(
        f"column {name!r} of the DataFrame has {count:,} values that are NaN or "
        "infinite."
        for name, count in counts.items()
    )


def column_of(schema: T.StructType, name: str, chosen: Selection) -> Column:
    """Returns the expression that makes numbers, or lists of them, of a column.

    Args:
        schema: Schema of the frame.
        name: Name of the column.
        chosen: Roles of the columns; floats are written as they are read.

    Raises:
        DataError: It holds text, a map, a date, or another type.
    """
    kind = schema[name].dataType
    column = F.col(f"`{name}`")
    floatx = "float64" if chosen.floatx == "float64" else "float32"
    if isinstance(kind, VectorUDT | OldVectorUDT):
        # The function itself fails on a null, and does not say where.
        return F.when(column.isNotNull(), vector_to_array(column, floatx))
    return column.cast(_as_read(kind, name, floatx))


def _as_read(kind: T.DataType, name: str, floatx: str) -> T.DataType:
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_as_read(kind.elementType, name, floatx), kind.containsNull)
    if isinstance(kind, FLOATS):
        return T.DoubleType() if floatx == "float64" else T.FloatType()
    if isinstance(kind, WHOLE):
        return kind
    raise DataError(
        f"column {name!r} of the DataFrame holds {kind.simpleString()}. Expected "
        "numbers, booleans, vectors or arrays of them. Encode it first "
        "(pyspark.ml.feature.StringIndexer, casts), or leave it out with features=."
    )


def types_of(schema: T.StructType, chosen: Selection) -> Types:
    """Returns the types of the chosen columns, as formats of files name them."""
    found: list[tuple[str, str]] = []
    for name in chosen.columns:
        kind, lists = schema[name].dataType, ""
        while isinstance(kind, T.ArrayType):
            kind, lists = kind.elementType, lists + " of a list"
        is_whole = isinstance(kind, WHOLE)
        found.append(
            (name, (_WHOLE_NAMES[type(kind)] if is_whole else "float") + lists)
        )
    return tuple(found)


_WHOLE_NAMES: dict[type[T.DataType], str] = {
    T.ByteType: "int8",
    T.ShortType: "int16",
    T.IntegerType: "int32",
    T.LongType: "int64",
    T.BooleanType: "bool",
}
