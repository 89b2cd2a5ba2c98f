"""Errors about stores that refuse, and about files that are damaged."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from shoal.errors import ConfigError, DataError, StoreFailed

EXPIRED = ("has expired", "ExpiredToken", "RequestTimeTooSkewed")


@contextmanager
def reading(url: str, kind: str) -> Generator[None]:
    """Turns any error about a file into a `DataError` that names it.

    Args:
        url: URL of the file.
        kind: Expected kind: "Parquet file".
    """
    try:
        yield
    except (DataError, ConfigError):
        raise
    except Exception as error:
        raise as_data_error(error, url, kind) from error


@contextmanager
def fetching(url: str) -> Generator[None]:
    """Turns any error of a store into a `DataError` that names the file.

    Raises:
        StoreFailed: The store, the network or the credentials are at fault.
        DataError: The file is gone, or reading is not allowed.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise as_store_error(error, url) from error


def as_store_error(error: Exception, url: str) -> DataError:
    """Returns the error about bytes of a file that could not be fetched.

    Example:
        >>> print(as_store_error(OSError(121, "InternalError"), "s3://bucket/a.csv"))
        the storage failed while s3://bucket/a.csv was read (OSError: [Errno 121] ...
    """
    why = _why(error)
    if any(word in why for word in EXPIRED):
        return StoreFailed(
            f"the credentials for {url} have expired ({why}). Expected ones that "
            "last as long as the run. Renew them (aws sso login, a new session token), "
            "and start again or resume."
        )
    known = _known(error, url, "file")
    if known is None:
        return StoreFailed(
            f"the storage failed while {url} was read ({why}). Expected the bytes of "
            "the file. Try again; if it fails again, check the storage and the network "
            "to it."
        )
    return known


def as_data_error(error: Exception, url: str, kind: str = "") -> DataError:
    """Returns the error about a URL, with the remedy.

    Args:
        error: Error of fsspec, of a store's library, or of a parser.
        url: URL that was listed or read.
        kind: Expected kind of the file; "" while files are listed.

    Example:
        >>> print(as_data_error(PermissionError("403"), "s3://bucket/a.csv"))
        access to s3://bucket/a.csv is denied (PermissionError: 403). Expected ...
    """
    if isinstance(error, DataError):
        return error
    known = _known(error, url, kind)
    if known is not None:
        return known
    why = _why(error)
    if not kind:
        return DataError(
            f"{url} cannot be listed ({why}). Expected a file, a folder, a glob or a "
            "URL that fsspec can list. Check it with: python -c "
            f"\"import fsspec; print(fsspec.open_files('{url}'))\""
        )
    return DataError(
        f"{url} is not a readable {kind} ({why}). Expected a whole one, as its writer "
        "closed it. Write it again, or pass on_bad_file='skip' to leave such files "
        "out when data is opened."
    )


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _known(error: Exception, url: str, kind: str) -> DataError | None:
    """Returns errors that neither file nor parser caused; None for others."""
    why = _why(error)
    names = " ".join(cls.__name__ for cls in type(error).__mro__)
    if isinstance(error, FileNotFoundError):
        return _gone(url, why) if kind else _nowhere(url, why)
    if "Credentials" in names or "TokenRetrieval" in names:
        return StoreFailed(
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
        return StoreFailed(
            f"the store of {url} does not answer ({why}). Expected it to be reachable "
            "from this machine. Check the network, the region, and AWS_ENDPOINT_URL."
        )
    return None


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
