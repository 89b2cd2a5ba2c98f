"""Credentials of storage with runs: the profile that the file of a cluster names.

`up` and `connect` of a cluster with a profile note it for the bucket of its runs, and
whatever opens a run there on this machine uses it, also after `down`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from shoal.host.private import make_private

SCHEMES = ("s3", "s3a")


def profile_of(url: str) -> str:
    """Returns the profile for a URL of storage; "" for the environment's credentials.

    Example:
        >>> profile_of("memory://runs"), profile_of("./shoal-runs")
        ('', '')
    """
    scheme, colon, rest = url.partition("://")
    if not colon or scheme not in SCHEMES:
        return ""
    return _read().get(rest.partition("/")[0], "")


def note_profile(bucket: str, profile: str | None) -> None:
    """Notes the profile of a bucket; None for the environment's credentials.

    Args:
        bucket: Name of the bucket.
        profile: Name of the profile.
    """
    known = _read()
    if known.get(bucket) == profile:
        return
    known.pop(bucket, None)
    if profile is not None:
        known[bucket] = profile
    path = _path()
    make_private(path.parent)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(json.dumps(known), encoding="utf-8")
    new.replace(path)


def _path() -> Path:
    return Path.home() / ".shoal" / "profiles.json"


def _read() -> dict[str, str]:
    try:
        found: object = json.loads(_path().read_bytes())
    except (OSError, ValueError):
        return {}
    known: dict[object, object] = found if isinstance(found, dict) else {}
    return {str(name): str(value) for name, value in known.items()}
