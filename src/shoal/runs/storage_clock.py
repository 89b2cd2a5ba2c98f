"""The age of an object by the clock of its storage.

Storage says when it wrote an object, and its answer says when it answered: both by one
clock. fsspec shows the first time only, so that each library is asked in its own way.
This file decides which storages tell their time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeAlias

from shoal.runs.folder import Folder

Times: TypeAlias = tuple[str, datetime]
"""Header `Date` of an answer, and when the storage wrote the object."""


def has_clock(folder: Folder) -> bool:
    """Returns whether the storage of a folder tells the age of its objects.

    Example:
        >>> has_clock(Folder.at("memory://doctest-clock"))
        False
    """
    return not folder.is_local and _asking(folder) is not None


def age_s(folder: Folder, name: str) -> float:
    """Returns the seconds since an object was written; its library may raise anything.

    Args:
        folder: A folder whose storage tells it.
        name: Name of the object in the folder.
    """
    ask = _asking(folder)
    if ask is None:
        raise OSError(f"the storage of {folder.url} does not tell its time")
    now, written = ask(folder.fs, folder.where(name))
    return max(0.0, (parsedate_to_datetime(now) - written).total_seconds())


def _ask_s3(fs: Any, path: str) -> Times:
    bucket, key, _ = fs.split_path(path)
    found = fs.call_s3("head_object", Bucket=bucket, Key=key)
    return found["ResponseMetadata"]["HTTPHeaders"]["date"], found["LastModified"]


def _ask_google(fs: Any, path: str) -> Times:
    bucket, key, _ = fs.split_path(path)
    headers, content = fs.call("GET", "b/{}/o/{}", bucket, key)
    return headers["Date"], datetime.fromisoformat(json.loads(content)["updated"])


def _ask_azure(fs: Any, path: str) -> Times:
    from fsspec.asyn import sync  # pyright: ignore[reportUnknownVariableType]

    container, key, _ = fs.split_path(path)
    answers: list[Any] = []

    async def ask() -> Any:
        async with fs.service_client.get_blob_client(container, key) as blob:
            return await blob.get_blob_properties(raw_response_hook=answers.append)

    found: Any = sync(fs.loop, ask)
    return answers[-1].http_response.headers["Date"], found.last_modified


_ASK: Mapping[str, Callable[[Any, str], Times]] = {
    **dict.fromkeys(("s3", "s3a"), _ask_s3),
    **dict.fromkeys(("gs", "gcs"), _ask_google),
    **dict.fromkeys(("abfs", "abfss", "az"), _ask_azure),
}
"""By protocol: those of s3fs, gcsfs and adlfs."""


def _asking(folder: Folder) -> Callable[[Any, str], Times] | None:
    return next((_ASK[name] for name in folder.protocols if name in _ASK), None)
