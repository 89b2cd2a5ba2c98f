"""What is said when a store refuses, or a file is not what it should be."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from shoal.data.files.store import FileEntry
from shoal.errors import ConfigError, DataError


@contextmanager
def reading(file: FileEntry, kind: str) -> Generator[None]:
    """Turns whatever goes wrong with a file into a `DataError` that names it.

    Args:
        file: That is read.
        kind: What it should be: "Parquet file".
    """
    try:
        yield
    except (DataError, ConfigError):
        raise
    except Exception as error:
        raise as_data_error(error, file.url, kind) from error


def as_data_error(error: Exception, url: str, kind: str = "") -> DataError:
    """Says what went wrong with a URL, and what to do.

    Args:
        error: Of fsspec, of a store's library, or of a parser.
        url: That was listed or read.
        kind: What a file should be; "" while files are listed.

    Example:
        >>> print(as_data_error(PermissionError("403"), "s3://bucket/a.csv"))
        access to s3://bucket/a.csv is denied (PermissionError: 403). Expected ...
    """
    if isinstance(error, DataError):
        return error
    why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    names = " ".join(cls.__name__ for cls in type(error).__mro__)
    if isinstance(error, FileNotFoundError):
        return _gone(url, why) if kind else _nowhere(url, why)
    if "Credentials" in names or "TokenRetrieval" in names:
        return DataError(
            f"there are no usable credentials for {url} ({why}). Expected those of "
            "boto: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile in ~/.aws, "
            "or the role of the machine. Set them, or pass storage_options="
            "{'anon': True} for a public bucket."
        )
    if isinstance(error, PermissionError) or "Forbidden" in why:
        return DataError(
            f"access to {url} is denied ({why}). Expected permission to list the "
            "folder and to read its files (on S3: s3:ListBucket and s3:GetObject). "
            "Check which user or role is in use (aws sts get-caller-identity)."
        )
    if any(word in names for word in ("Connect", "Endpoint", "Timeout", "DNS")):
        return DataError(
            f"the store of {url} does not answer ({why}). Expected it to be reachable "
            "from this machine. Check the network, the region, and AWS_ENDPOINT_URL."
        )
    if not kind:
        return DataError(
            f"{url} cannot be listed ({why}). Expected a file, a folder, a glob or a "
            "URL that fsspec can list. Check it with: python -c "
            f"\"import fsspec; print(fsspec.open_files('{url}'))\""
        )
    return DataError(
        f"{url} is no readable {kind} ({why}). Expected a whole one, as its writer "
        "closed it. Write it again, or pass on_bad_file='skip' to leave such files "
        "out when data is opened."
    )


def _gone(url: str, why: str) -> DataError:
    return DataError(
        f"{url} is gone: it was there when the files were listed ({why}). Expected "
        "files that stay as they are while they are read. Put it back and resume, "
        "or start again to train on what is there."
    )


def _nowhere(url: str, why: str) -> DataError:
    return DataError(
        f"there is nothing at {url} ({why}). Expected an existing file, folder, glob "
        "or bucket. Check the spelling, and for S3 the account and the region."
    )
