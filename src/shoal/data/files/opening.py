"""Opening files as a source: which are taken, how many rows they have, what is bad."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final, get_args

from shoal.data.files.format import PART_BYTES, Format, Part, Types
from shoal.data.files.formats import format_named, format_of
from shoal.data.files.listing import Listing, Urls, find_files
from shoal.data.files.preprocess import (
    Preprocess,
    PreprocessReader,
    entry_point,
    groups,
)
from shoal.data.files.reader import (
    ColumnReader,
    Reader,
    Sample,
    check_sample,
    in_parallel,
    sample_of,
)
from shoal.data.files.selection import Names, Selection, select
from shoal.data.files.source import FilePortion, FileSource, OnBadFile, row_bytes
from shoal.data.files.store import FileEntry, Store
from shoal.data.sources import default_floatx
from shoal.errors import ConfigError, DataError

FILES_PER_CHUNK = 256
"""For `preprocess=`, unless told otherwise."""


def open_files(  # noqa: PLR0913 - a front door, with a name for each wish
    url: Urls,
    *,
    features: Names | None = None,
    label: Names | None = None,
    weight: str | None = None,
    format: str | None = None,
    preprocess: Preprocess | None = None,
    files_per_chunk: int | None = None,
    on_bad_file: OnBadFile = "raise",
    image_size: tuple[int, int] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> FileSource:
    r"""Opens files as a source: lists them, and counts their rows once.

    Counting costs what the format needs: of Parquet the footers, of NumPy the headers,
    of images nothing; CSV and TFRecord files are read once, and so are those of
    `preprocess=`, which runs once for every chunk before training begins.

    Args:
        url: Path, folder, glob, any URL fsspec knows ("s3://bucket/prefix/"), or a
            list of these.
        features: Columns that are x: a name keeps the column as it is, a list of names
            gives one array of floats (rows, columns), a dict one of these for each
            input. Default None means all but label and weight; of images the image, of
            NPZ files the key "x".
        label: Columns that are y, in the same forms; () means none. Default None means
            the class of images and the key "y" of NPZ files; tables must name it.
        weight: Column of sample weights.
        format: "parquet", "csv", "npy", "npz", "images" or "tfrecord"; default None
            means by the names of the files.
        preprocess: Class, object or function that reads the files instead: it gets
            (keys, objects) and returns (inputs, outputs, train_size).
        files_per_chunk: Files, row groups or ranges that make a chunk, as long as they
            take less than 64 MB; default None means 1, or 256 for images and
            `preprocess`. A chunk is what is read at a time.
        on_bad_file: "raise", or "skip" to leave out files that turn out bad while they
            are counted; `FileSource.skipped` lists them. Images are all decoded once
            then. With `preprocess` a chunk's files are left out together.
        image_size: (height, width) that images are resized to.
        storage_options: For fsspec's file system; S3 needs none where boto would not.

    Raises:
        DataError: There are no files, one is bad, or a column is missing or text.
        ConfigError: An argument is wrong, or a library is not installed.

    Example:
        >>> import pathlib
        >>> _ = pathlib.Path("a.csv").write_text("a,b,c\n1,2,0\n3,4,1\n")
        >>> source = open_files("a.csv", features=["a", "b"], label="c")
        >>> source.take(slice(0, 1))
        (array([[1., 2.]], dtype=float32), array([0]))
    """
    if on_bad_file not in get_args(OnBadFile):
        raise ConfigError(
            f"on_bad_file={on_bad_file!r} is unknown. Expected 'raise' or 'skip'. "
            "Correct it."
        )
    if files_per_chunk is not None and files_per_chunk < 1:
        raise ConfigError(
            f"files_per_chunk={files_per_chunk} is below 1. Expected how many files "
            "are read at a time. Leave it out for the default."
        )
    store = Store(storage_options)
    listing = find_files(url, store)
    opening = _Opening(store=store, listing=listing, is_lenient=on_bad_file == "skip")
    if preprocess is not None:
        return opening.preprocessed(preprocess, files_per_chunk or FILES_PER_CHUNK)
    form, files = opening.format(format, image_size)
    known = opening.first_names(form, files)
    chosen = select(
        known,
        form,
        features=features,
        label=label,
        weight=weight,
        floatx=default_floatx(),
        where=files[0].url,
    )
    return opening.columns(form, files, chosen, files_per_chunk)


@final
@dataclass(kw_only=True)
class _Opening:
    """What is known so far of the files."""

    store: Store
    listing: Listing
    is_lenient: bool
    skipped: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def format(
        self, name: str | None, image_size: tuple[int, int] | None
    ) -> tuple[Format, tuple[FileEntry, ...]]:
        """The format, and the files that have it."""
        files = self.listing.files
        if name is None:
            name, files = format_of(files)
            own = {file.url for file in files}
            self.skipped.extend(
                (file.url, f"its name ends like no file of {name} data")
                for file in self.listing.files
                if file.url not in own
            )
        settings: dict[str, Any] = {}
        if name == "images":
            settings = {"image_size": image_size, "is_checked": self.is_lenient}
        elif image_size is not None:
            raise ConfigError(
                f"image_size={image_size} was passed, but the files are {name}. "
                "Expected it for images alone. Leave it out."
            )
        return format_named(name)(**settings).begin(files), files

    def first_names(self, form: Format, files: Sequence[FileEntry]) -> tuple[str, ...]:
        """Columns of the first file that can be read."""
        problem: DataError | None = None
        for file in files:
            try:
                return form.names(file, self.store)
            except DataError as error:
                if not self.is_lenient:
                    raise
                problem = problem or error  # it is found again when files are counted
        raise self._nothing_left() from problem

    def columns(
        self,
        form: Format,
        files: Sequence[FileEntry],
        chosen: Selection,
        files_per_chunk: int | None,
    ) -> FileSource:
        """Counts files that hold columns."""
        counted, empty = self._counted(form, files, chosen)
        form = form.settle([part.types for parts in counted for part in parts])
        reader = ColumnReader(form=form, store=self.store, selection=chosen)
        counted, sample = self._sampled(reader, counted)
        limit = files_per_chunk or form.parts_per_chunk
        portions = _portions(
            [part for parts in counted for part in parts], limit, row_bytes(sample)
        )
        return self._source(
            reader,
            portions,
            sample,
            kind=form.kind,
            empty=empty,
            classes=getattr(form, "classes", ()),
        )

    def _counted(
        self, form: Format, files: Sequence[FileEntry], chosen: Selection
    ) -> tuple[list[tuple[Part, ...]], list[str]]:
        """Parts of each good file, and the files without rows."""

        def count(file: FileEntry) -> tuple[Part, ...]:
            return form.count(file, self.store, chosen.columns)

        biggest = max(file.size_bytes for file in files)
        # Threads cost more than naming an image does.
        item_bytes = biggest if form.opens_to_count else 1 << 62
        found = in_parallel(count, files, item_bytes=item_bytes)
        counted: list[tuple[Part, ...]] = []
        empty: list[str] = []
        types: Types | None = None
        for file, parts in zip(files, found, strict=True):
            if isinstance(parts, DataError):
                self._leave_out(file.url, parts)
            elif not parts:
                empty.append(file.url)
            else:
                own = _kept(parts[0].types, chosen)
                types = own if types is None else types
                if form.agree(types, own):
                    counted.append(parts)
                else:
                    first = counted[0][0].file.url
                    self._leave_out(file.url, _differs(own, types, file.url, first))
        return counted, empty

    def _sampled(
        self, reader: Reader, counted: list[tuple[Part, ...]]
    ) -> tuple[list[tuple[Part, ...]], Sample]:
        """Reads the first part, to see what a row looks like."""
        for place, parts in enumerate(counted):
            try:
                return counted[place:], sample_of(reader.read(parts[:1]))
            except DataError as error:
                self._leave_out(parts[0].file.url, error)
        raise self._nothing_left()

    def preprocessed(self, preprocess: Preprocess, files_per_chunk: int) -> FileSource:
        """Runs the user's code for every chunk, to count its rows."""
        entry_point(preprocess)
        reader = PreprocessReader(
            preprocess=preprocess, store=self.store, floatx=default_floatx()
        )
        lock = threading.Lock()

        def count(files: Sequence[FileEntry]) -> tuple[int, Sample]:
            batch = reader.run(files, lock)
            first = batch
            while isinstance(first, (tuple, list, dict)):
                first = next(iter(first.values() if isinstance(first, dict) else first))
            return len(first), sample_of(batch)

        chunks = groups(self.listing.files, files_per_chunk)
        biggest = max(sum(file.size_bytes for file in files) for files in chunks)
        found = in_parallel(count, chunks, item_bytes=biggest)
        portions: list[FilePortion] = []
        empty: list[str] = []
        sample: Sample | None = None
        for files, result in zip(chunks, found, strict=True):
            if isinstance(result, DataError):
                for file in files:
                    self._leave_out(file.url, result)
                continue
            rows, own = result
            if not rows:
                empty.extend(file.url for file in files)
                continue
            parts = tuple(Part(file=file, rows=0) for file in files)
            portion = FilePortion(parts=parts, rows=rows)
            sample = own if sample is None else sample
            try:
                first = (portions or [portion])[0].url
                check_sample(own, sample, portion.url, first)
            except DataError as error:
                for file in files:
                    self._leave_out(file.url, error)
                continue
            portions.append(portion)
        if sample is None:
            raise self._nothing_left()
        return self._source(reader, portions, sample, kind="files", empty=empty)

    def _source(
        self,
        reader: Reader,
        portions: Iterable[FilePortion],
        sample: Sample,
        *,
        kind: str,
        empty: Sequence[str],
        classes: tuple[str, ...] = (),
    ) -> FileSource:
        return FileSource(
            reader=reader,
            portions=tuple(portions),
            sample=sample,
            kind=kind,
            skipped=tuple(sorted(self.skipped)),
            empty=tuple(sorted({*self.listing.empty, *empty})),
            classes=classes,
            on_bad_file="skip" if self.is_lenient else "raise",
        )

    def _leave_out(self, url: str, error: DataError) -> None:
        if not self.is_lenient:
            raise error
        self.skipped.append((url, str(error)))

    def _nothing_left(self) -> DataError:
        reason = self.skipped[0][1] if self.skipped else "none has rows"
        return DataError(
            f"none of {len(self.listing.files):,} files has rows that can be read; the "
            f"first reason: {reason} Expected at least one good file. "
            "Open them with on_bad_file='raise' to see what is wrong."
        )


def _kept(types: Types, chosen: Selection) -> Types:
    """Types of columns that are not made floats anyway."""
    if len(types) == 1 and types[0][0] not in chosen.columns:
        return types
    return tuple((n, t) for n, t in types if n in chosen.plain)


def _differs(types: Types, expected: Types, url: str, first: str) -> DataError:
    for (name, one), (_, other) in zip(types, expected, strict=True):
        if one != other:
            return DataError(
                f"column {name!r} of {url} holds {one}, but that of {first} {other}. "
                "Expected one type in all files. Write the file again with that type."
            )
    raise AssertionError("called for types that differ")


def _portions(
    parts: Sequence[Part], limit: int, bytes_of_row: int
) -> Iterable[FilePortion]:
    """Puts parts together: not more than so many, nor than fit 64 MB."""
    own: list[Part] = []
    rows = 0
    for part in parts:
        is_full = len(own) >= limit or (rows + part.rows) * bytes_of_row > PART_BYTES
        if own and is_full:
            yield FilePortion(parts=tuple(own), rows=rows)
            own, rows = [], 0
        own.append(part)
        rows += part.rows
    if own:
        yield FilePortion(parts=tuple(own), rows=rows)
