"""Secrets of those who may send jobs to this machine, and one job at a time for each.

The file holds digests alone: who reads it cannot send a job.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from shoal.errors import ConfigError
from shoal.host.private import make_private
from shoal.paths import one_inside
from shoal.plan import environment

FILE = "secrets.json"
OTHERS = 0o077


def secrets_file() -> Path:
    """Returns the file on this machine, beside the descriptions of clusters."""
    return Path(environment().clusters).expanduser().parent / FILE


def add_secret(path: Path, identity: str) -> str:
    """Makes a secret, which replaces the one that the identity had.

    Args:
        path: The file.
        identity: Name of a person or a program.

    Returns:
        The secret, which is kept nowhere.

    Raises:
        ConfigError: The file is of others, or is damaged.
    """
    known = _read(path) if path.exists() else {}
    secret = secrets.token_urlsafe(32)
    known[identity] = _digest(secret)
    make_private(path.parent)
    new = one_inside(path.parent, f"{path.name}.{secrets.token_hex(4)}")
    with open(new, "x", opener=_private) as file:
        json.dump(known, file, indent=1)
    new.replace(path)
    return secret


def identity_of(path: Path, secret: str) -> str:
    """Returns who has a secret.

    Raises:
        ConfigError: Nobody has it.
    """
    digest, found = _digest(secret), ""
    for identity, one in _read(path).items() if path.exists() else ():
        if hmac.compare_digest(digest, one):
            found = identity
    if not found:
        raise ConfigError(
            f"the secret of the job is not in {path}. Expected one that was made on "
            "that machine. Make one there: shoal spark secret --identity NAME."
        )
    return found


@contextmanager
def one_job(path: Path, identity: str) -> Generator[None]:
    """Context of a job, of which an identity has one at a time.

    Raises:
        ConfigError: Another one runs.
    """
    lock = one_inside(path.parent, f"job-{_digest(identity)[:16]}.lock")
    with open(lock, "a", opener=_private) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"a job of {identity!r} runs already. Expected one at a time. Wait for "
                "its end, or cancel it: shoal jobs."
            ) from None
        yield


def _read(path: Path) -> dict[str, str]:
    mode = path.stat().st_mode & OTHERS
    if mode:
        raise ConfigError(
            f"{path} can be read or changed by other users (mode "
            f"{path.stat().st_mode & 0o777:o}). Expected mode 600. Run: "
            f"chmod 600 {path}"
        )
    try:
        found: object = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(
            f"{path} is damaged ({error}). Expected names and digests. Remove it, and "
            "make new secrets: shoal spark secret --identity NAME."
        ) from None
    return dict(cast("dict[str, str]", found))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
