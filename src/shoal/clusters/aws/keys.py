"""The key by which nodes are reached: an own one, a file's, or a pair of EC2."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import final

from shoal.errors import PlanError
from shoal.paths import one_inside

AUTO = "auto"
KINDS = ("ssh-ed25519", "ssh-rsa")
"""Kinds of keys that EC2 takes."""


@final
@dataclass(frozen=True, kw_only=True)
class PublicKey:
    """A public key, and its name as a key pair of EC2.

    Args:
        name: Has a part of the key's digest: it never stands for another key.
        text: Line of the file.
    """

    name: str
    text: str


@final
@dataclass(frozen=True, kw_only=True)
class Key:
    """A key of the file.

    Args:
        public: The public key that is here; None for a pair that AWS has.
        private: Path of the private key; "" for one of the agent.
    """

    public: PublicKey | None
    private: str


def key_of(said: str, folder: str) -> Key:
    """Returns the key that a file names.

    Args:
        said: "auto", the path of a public key, or the name of a key pair.
        folder: Folder of the state of clusters; an own key is made beside it, once.

    Raises:
        PlanError: The file is no public key of a kind that EC2 takes.
    """
    if said == AUTO:
        return _from_file(_own_key(Path(folder).expanduser() / "keys" / "shoal"))
    path = Path(said).expanduser()
    if "/" in said or path.suffix == ".pub":
        return _from_file(path)
    return Key(public=None, private=private_key_of(said))


def private_key_of(said: str) -> str:
    """Returns the private key that belongs to what a file names; "" if it is not here.

    Args:
        said: Path of a public key, or the name of a key pair.
    """
    path, home = Path(said).expanduser(), Path("~/.ssh").expanduser()
    if "/" in said or path.suffix == ".pub":
        places = [path.with_suffix("")]
    else:
        places = [one_inside(home, said), one_inside(home, f"{said}.pem")]
    return next((str(place) for place in places if place.is_file()), "")


def own_key(folder: str, name: str) -> str:
    """Returns the own private key if it is the one of a name; "" if not; makes none.

    Args:
        folder: Folder of the state of clusters.
        name: Name of a key pair of EC2, made of such a key.
    """
    path = Path(folder).expanduser() / "keys" / "shoal"
    try:
        found = _from_file(path.with_suffix(".pub"))
    except PlanError:
        return ""
    is_it = found.public is not None and found.public.name == name
    return found.private if is_it else ""


def _own_key(path: Path) -> Path:
    """Makes a key once; returns the path of its public part."""
    public = path.with_suffix(".pub")
    if public.is_file() and path.is_file():
        return public
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = one_inside(path.parent, f"{path.name}.{os.getpid()}")
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "shoal", "-f"]
    try:
        subprocess.run([*words, str(new)], check=True, capture_output=True)
        # Another process may make one too: the first private key is kept.
        os.link(new, path)
        Path(f"{new}.pub").replace(public)
    except FileExistsError:
        pass
    except (OSError, subprocess.CalledProcessError) as error:
        raise PlanError(
            f"a key cannot be made at {path}: {error}. Expected ssh-keygen and a "
            "folder that can be written to. Name a public key in `access.key`."
        ) from error
    finally:
        new.unlink(missing_ok=True)
        Path(f"{new}.pub").unlink(missing_ok=True)
    return public


def _from_file(path: Path) -> Key:
    try:
        text = path.read_text(encoding="ascii").strip()
        kind, body, *_ = text.split()
        digest = hashlib.sha256(base64.b64decode(body, validate=True)).hexdigest()
    except (OSError, ValueError, binascii.Error) as error:
        raise PlanError(
            f"{path} is no public key: {error}. Expected a line such as `ssh-ed25519 "
            "AAAA...`. Name the public part of a key, or say `key: auto`."
        ) from error
    if kind not in KINDS:
        raise PlanError(
            f"{path} is a key of the kind {kind}. Expected {' or '.join(KINDS)}, as "
            "EC2 takes no other. Name another, or say `key: auto`."
        )
    private = path.with_suffix("")
    return Key(
        public=PublicKey(name=f"shoal-{digest[:12]}", text=text),
        private=str(private) if private.is_file() else "",
    )
