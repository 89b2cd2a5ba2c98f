"""The format of a file, by its name. A new format is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from shoal.data.files.format import Format, extension
from shoal.data.files.store import FileEntry
from shoal.errors import ConfigError, DataError
from shoal.registry import did_you_mean

FORMATS: Mapping[str, str] = {
    "parquet": "shoal.data.files.parquet:Parquet",
    "arrow": "shoal.data.files.arrow:Arrow",
    "csv": "shoal.data.files.csv:Csv",
    "npy": "shoal.data.files.numpy:Npy",
    "npz": "shoal.data.files.numpy:Npz",
    "images": "shoal.data.files.images:Images",
    "tfrecord": "shoal.data.files.tfrecord:TfRecord",
}


def format_named(name: str) -> Callable[..., Format]:
    """Returns the class of a format.

    Raises:
        ConfigError: The name is unknown.

    Example:
        >>> format_named("csv")().kind
        'CSV files'
    """
    if name not in FORMATS:
        raise ConfigError(did_you_mean("format", name, FORMATS))
    module, _, attribute = FORMATS[name].partition(":")
    return getattr(import_module(module), attribute)


def format_of(files: Sequence[FileEntry]) -> tuple[str, tuple[FileEntry, ...]]:
    """Finds the one format of files; returns it, and the files that have it.

    Files of unknown formats (a README beside the data) are not returned.

    Raises:
        DataError: They have several formats, or only unknown ones.

    Example:
        >>> files = [FileEntry(url=name, size_bytes=1) for name in ("a.csv", "b.md")]
        >>> name, found = format_of(files)
        >>> name, [file.url for file in found]
        ('csv', ['a.csv'])
    """
    owners = {e: name for name in FORMATS for e in format_named(name)().extensions}
    found: dict[str, list[FileEntry]] = {}
    for file in files:
        owner = owners.get(extension(file.name))
        if owner:
            found.setdefault(owner, []).append(file)
    if len(found) == 1:
        name, own = next(iter(found.items()))
        return name, tuple(own)
    if not found:
        raise DataError(
            f"{files[0].url} and {len(files) - 1:,} other files have no ending that "
            f"is known. Expected one of {', '.join(sorted(owners))}. "
            f"Pass format= ({', '.join(FORMATS)}), or read them with preprocess=."
        )
    shown = ", ".join(f"{own[0].url} ({name})" for name, own in found.items())
    raise DataError(
        f"files of {len(found)} formats lie together: {shown}. Expected one format. "
        "Pass a glob that takes one of them, for example '.../*.parquet'."
    )
