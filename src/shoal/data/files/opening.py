"""Opens files as a source: selects them, counts their rows, finds bad ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from shoal.data.files.counting import Counting
from shoal.data.files.format import Format, extension
from shoal.data.files.formats import format_named, format_of
from shoal.data.files.listing import Urls, find_files
from shoal.data.files.preprocess import Preprocess
from shoal.data.files.selection import Names, select
from shoal.data.files.source import FileSource, OnBadFile
from shoal.data.files.store import FileEntry, Store
from shoal.data.sources import default_floatx
from shoal.errors import ConfigError

FILES_PER_CHUNK = 256
"""Default number of files of a chunk with `preprocess=`."""


def open_files(  # noqa: PLR0913 - a public function with one argument for each option
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
    floatx: str | None = None,
) -> FileSource:
    r"""Opens files as a source: lists them, and counts their rows once.

    The cost of counting depends on the format: Parquet reads the footers, NumPy the
    headers, images nothing; CSV and TFRecord files are read once, and so are those of
    `preprocess=`, which runs once for every chunk before training begins.

    Args:
        url: Path, folder, glob, any URL fsspec knows ("s3://bucket/prefix/"), or a
            list of these.
        features: Columns that are x: a name keeps the column as it is, a list of names
            gives one array (rows, columns), of whole numbers if all columns hold such
            in all files and of floats if not; a dict one of these for each input.
            Default None means all but label and weight; of images the image, of
            NPZ files the key "x".
        label: Columns that are y, in the same forms; () means none. Default None means
            the class of images and the key "y" of NPZ files; tables must name it.
        weight: Column of sample weights.
        format: "parquet", "arrow", "csv", "npy", "npz", "images" or "tfrecord"; None
            decides by the names of the files.
        preprocess: Class, object or function that reads the files instead: it gets
            (keys, objects) and returns (inputs, outputs, train_size).
        files_per_chunk: Files, row groups or ranges that make a chunk, as long as they
            take less than 64 MB; default None means 1, or 256 for images and
            `preprocess`. A chunk is what is read at a time.
        on_bad_file: "raise", or "skip" to leave out files that turn out bad while they
            are counted; `FileSource.skipped` lists them. Images are all decoded once
            then. With `preprocess` a chunk's files are left out together.
        image_size: (height, width) that images are resized to.
        storage_options: Options of fsspec's file system; S3 needs none if boto needs
            none.
        floatx: Dtype in which floats are read; default None means Keras' floatx. Whole
            numbers keep their dtype.

    Raises:
        DataError: There are no files, one is bad, or a column is missing or text.
        ConfigError: An argument is wrong, or a library is not installed.

    Example:
        >>> import pathlib
        >>> _ = pathlib.Path("a.csv").write_text("a,b,c\n1.5,2,0\n3,4,1\n")
        >>> source = open_files("a.csv", features=["a", "b"], label="c")
        >>> source.take(slice(0, 1))
        (array([[1.5, 2. ]], dtype=float32), array([0]))
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
    floatx = floatx or default_floatx()
    store = Store(storage_options)
    listing = find_files(url, store)
    counting = Counting(store=store, listing=listing, is_lenient=on_bad_file == "skip")
    if preprocess is not None:
        given = {
            "features": features,
            "label": label,
            "weight": weight,
            "format": format,
            "image_size": image_size,
        }
        _refuse([name for name, value in given.items() if value is not None])
        return counting.preprocessed(
            preprocess, files_per_chunk or FILES_PER_CHUNK, floatx
        )
    has_targets = label is None or len(label) > 0
    form, files = _format(counting, format, image_size, has_targets=has_targets)
    known = counting.first_names(form, files)
    chosen = select(
        known,
        form,
        features=features,
        label=label,
        weight=weight,
        floatx=floatx,
        where=files[0].url,
    )
    return counting.columns(form, files, chosen, files_per_chunk)


def _refuse(names: Sequence[str]) -> None:
    if names:
        raise ConfigError(
            f"{names[0]}= was passed together with preprocess=. Expected preprocess "
            "alone: it decides what inputs and outputs are. Leave "
            f"{', '.join(names)} out."
        )


def _format(
    counting: Counting,
    name: str | None,
    image_size: tuple[int, int] | None,
    *,
    has_targets: bool,
) -> tuple[Format, tuple[FileEntry, ...]]:
    """Returns the format, and the files that have it."""
    files, is_named = counting.listing.files, name is not None
    if name is None:
        name, files = format_of(files)
        own = {file.url for file in files}
        counting.skipped.extend(
            (file.url, f"its name has no ending of {name} data")
            for file in counting.listing.files
            if file.url not in own
        )
    settings: dict[str, Any] = {}
    if name == "images":
        settings = {"image_size": image_size, "is_checked": counting.is_lenient}
    elif image_size is not None:
        raise ConfigError(
            f"image_size={image_size} was passed, but the files are {name}. "
            "Expected it for images alone. Leave it out."
        )
    form = format_named(name)(**settings)
    _note_empty(counting, form, is_named=is_named)
    misplaced = form.misplaced(files) if has_targets else {}
    for url, error in misplaced.items():
        counting.leave_out(url, error)
    files = tuple(file for file in files if file.url not in misplaced)
    return form.begin(files), files


def _note_empty(counting: Counting, form: Format, *, is_named: bool) -> None:
    """Notes files of 0 bytes, in formats whose writers never leave such files.

    They hold no rows; but a file whose copy was interrupted looks the same.

    Args:
        counting: Object that notes them.
        form: Format of the files.
        is_named: Whether the user named the format, so that all files count as such.
    """
    for url in counting.listing.empty:
        is_ours = is_named or extension(url) in form.extensions
        is_whole = form.allows_nothing and not url.lower().endswith((".gz", ".gzip"))
        if is_ours and not is_whole:
            counting.skipped.append((url, f"it has 0 bytes, and is not a {form.one}"))
