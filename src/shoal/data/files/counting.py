"""Counts files when they are opened: parts, rows, types, and bad files."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import final

from shoal.data import trees
from shoal.data.files.format import HOLES, PART_BYTES, Format, Part, Types
from shoal.data.files.listing import Listing
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
from shoal.data.files.selection import Selection
from shoal.data.files.source import (
    FilePortion,
    FileSource,
    Search,
    head_of,
    row_bytes,
)
from shoal.data.files.store import FileEntry, Store
from shoal.data.sources import Batch
from shoal.errors import DataError, StoreFailed


@final
@dataclass(kw_only=True)
class Counting:
    """Counts listed files once, and makes a source of them.

    Args:
        store: Store of the files.
        listing: The listed files.
        is_lenient: Whether bad files are left out, and noted in `skipped`.
        skipped: (URL, reason) of files that are left out.

    Example:
        >>> counting = Counting(
        ...     store=Store(), listing=Listing(files=()), is_lenient=True
        ... )
        >>> counting.leave_out("a.csv", DataError("it is bad."))
        >>> counting.skipped
        [('a.csv', 'it is bad.')]
    """

    store: Store
    listing: Listing
    is_lenient: bool
    skipped: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def leave_out(self, url: str, error: DataError) -> None:
        """Notes a bad file, or raises its error; a store's error is always raised."""
        if not self.is_lenient or isinstance(error, StoreFailed):
            raise error
        self.skipped.append((url, str(error)))

    def first_names(self, form: Format, files: Sequence[FileEntry]) -> tuple[str, ...]:
        """Returns the columns of the first file that can be read."""
        problem: DataError | None = None
        for file in files:
            try:
                names = form.names(file, self.store)
                if names:
                    return names
            except DataError as error:
                if not self.is_lenient or isinstance(error, StoreFailed):
                    raise
                problem = problem or error  # counting the files finds it again
        raise self._nothing_left(problem) from problem

    def columns(
        self,
        form: Format,
        files: Sequence[FileEntry],
        chosen: Selection,
        files_per_chunk: int | None,
    ) -> FileSource:
        """Counts files that hold columns."""
        counted, empty = self._counted(form, files, chosen)
        types = [part.types for parts in counted for part in parts]
        form, chosen = form.settle(types), chosen.settle(types)
        reader = ColumnReader(form=form, store=self.store, selection=chosen)
        counted, head = self._sampled(reader, counted)
        sample = sample_of(head)
        limit = files_per_chunk or form.parts_per_chunk
        portions = _portions(
            [part for parts in counted for part in parts], limit, row_bytes(sample)
        )
        return self._source(
            reader,
            portions,
            sample,
            head,
            kind=form.kind,
            empty=empty,
            classes=getattr(form, "classes", ()),
        )

    def _counted(
        self, form: Format, files: Sequence[FileEntry], chosen: Selection
    ) -> tuple[list[tuple[Part, ...]], list[str]]:
        """Returns the parts of each good file, and the files without rows."""

        def count(file: FileEntry) -> tuple[Part, ...]:
            return form.count(file, self.store, chosen.columns)

        biggest = max(file.size_bytes for file in files)
        # Threads cost more than counting an image by its name.
        item_bytes = biggest if form.opens_to_count else 1 << 62
        found = in_parallel(
            count, files, item_bytes=item_bytes, is_lenient=self.is_lenient
        )
        good: list[tuple[Part, ...]] = []
        empty: list[str] = []
        for file, parts in zip(files, found, strict=True):
            if isinstance(parts, DataError):
                self.leave_out(file.url, parts)
            elif not parts:
                empty.append(file.url)
            elif holed := _holed(parts, chosen):
                self.leave_out(file.url, holed)
            else:
                good.append(parts)
        return self._alike(form, good, chosen), empty

    def _alike(
        self, form: Format, good: Sequence[tuple[Part, ...]], chosen: Selection
    ) -> list[tuple[Part, ...]]:
        """Returns the files that agree with most others; the rest are bad."""
        kinds = [_kept(parts[0].types, chosen) for parts in good]
        many = Counter(kinds)
        common = max(
            many,
            key=lambda one: sum(n for kind, n in many.items() if form.agree(one, kind)),
            default=(),
        )
        alike: list[tuple[Part, ...]] = []
        for parts, own in zip(good, kinds, strict=True):
            if form.agree(common, own):
                alike.append(parts)
            else:
                other = good[kinds.index(common)][0].file.url
                url = parts[0].file.url
                self.leave_out(url, _differs(own, common, url, other))
        return alike

    def _sampled(
        self, reader: Reader, counted: list[tuple[Part, ...]]
    ) -> tuple[list[tuple[Part, ...]], Batch]:
        """Reads the first part, to find the types of a row; returns a few rows."""
        for place, parts in enumerate(counted):
            try:
                return counted[place:], head_of(reader.read(parts[:1]))
            except DataError as error:
                self.leave_out(parts[0].file.url, error)
        raise self._nothing_left()

    def preprocessed(
        self, preprocess: Preprocess, files_per_chunk: int, floatx: str
    ) -> FileSource:
        """Runs the user's code for every chunk, to count its rows."""
        entry_point(preprocess)
        reader = PreprocessReader(
            preprocess=preprocess, store=self.store, floatx=floatx
        )
        lock = threading.Lock()

        heads: list[tuple[int, Batch]] = []

        def count(numbered: tuple[int, Sequence[FileEntry]]) -> tuple[int, Sample]:
            number, files = numbered
            batch = reader.run(files, lock)
            rows = len(trees.leaves(batch)[0])
            with lock:  # only the first of all chunks may stay in memory
                if rows and not (heads and heads[0][0] < number):
                    heads[:] = [(number, head_of(batch))]
            return rows, sample_of(batch)

        chunks = groups(self.listing.files, files_per_chunk)
        biggest = max(sum(file.size_bytes for file in files) for files in chunks)
        found = in_parallel(
            count,
            list(enumerate(chunks)),
            item_bytes=biggest,
            is_lenient=self.is_lenient,
        )
        portions: list[FilePortion] = []
        empty: list[str] = []
        sample: Sample | None = None
        for files, result in zip(chunks, found, strict=True):
            if isinstance(result, DataError):
                for file in files:
                    self.leave_out(file.url, result)
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
                    self.leave_out(file.url, error)
                continue
            portions.append(portion)
        if sample is None:
            raise self._nothing_left()
        return self._source(
            reader, portions, sample, heads[0][1], kind="files", empty=empty
        )

    def _source(
        self,
        reader: Reader,
        portions: Iterable[FilePortion],
        sample: Sample,
        head: Batch,
        *,
        kind: str,
        empty: Sequence[str],
        classes: tuple[str, ...] = (),
    ) -> FileSource:
        portions = tuple(portions)
        read = {part.file.url for portion in portions for part in portion.parts}
        unread = tuple(f for f in self.listing.files if f.url not in read)
        return FileSource(
            reader=reader,
            portions=portions,
            sample=sample,
            head=head,
            kind=kind,
            skipped=tuple(sorted(self.skipped)),
            empty=tuple(sorted({*self.listing.empty, *empty})),
            classes=classes,
            on_bad_file="skip" if self.is_lenient else "raise",
            search=Search(urls=self.listing.asked, unread=unread),
        )

    def _nothing_left(self, problem: DataError | None = None) -> DataError:
        first = self.skipped[-1][1] if self.skipped else "there are none in them."
        reason = str(problem or first)
        advice = (
            "Open them with on_bad_file='raise' to see the fault."
            if self.is_lenient
            else "Check that it is the right folder."
        )
        return DataError(
            f"none of {len(self.listing.files):,} files has rows that can be read: "
            f"{reason} Expected at least one good file. {advice}"
        )


def _holed(parts: Sequence[Part], chosen: Selection) -> DataError | None:
    """Returns the error about targets that are missing."""
    for name, kind in (pair for part in parts for pair in part.types):
        if name in chosen.targets and kind.endswith(HOLES):
            return DataError(
                f"column {name!r} of {parts[0].file.url} has empty cells, and is the "
                "label. Expected a number in each of them. Fill them, or "
                "leave such rows out; weight= takes a column of zeros and ones."
            )
    return None


def _kept(types: Types, chosen: Selection) -> Types:
    """Returns the types of columns that do not become floats anyway."""
    return tuple((n, t) for n, t in types if n in chosen.plain)


def _differs(types: Types, expected: Types, url: str, first: str) -> DataError:
    for (name, one), (_, other) in zip(types, expected, strict=True):
        if one != other:
            return DataError(
                f"column {name!r} of {url} holds {one}, but that of {first} {other}. "
                "Expected the same in all files. Write the file again like the others."
            )
    raise AssertionError("called for types that differ")


def _portions(
    parts: Sequence[Part], limit: int, bytes_of_row: int
) -> Iterable[FilePortion]:
    """Joins parts: at most a number of them, and at most 64 MB."""
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
