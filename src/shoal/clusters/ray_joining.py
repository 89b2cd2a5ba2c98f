"""What it takes to speak to a Ray cluster, whoever does: import, address, variables."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from shoal.errors import ClusterError, ConfigError

CALL_S = 5.0  # until a head that lives takes a connection
MODE = "RAY_AUTH_MODE"
SET_BY_RAY = ("PYTHONBREAKPOINT", "RAY_CLIENT_MODE")


def import_ray() -> Any:
    """Ray, when it is needed.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return import_module("ray")
    except ImportError as error:
        raise ConfigError(
            f"Ray cannot be used: {error}. Expected it to be installed here and on "
            "every node. Install it: pip install 'shoal[ray]'."
        ) from None


def is_connected() -> bool:
    """Whether somebody has called `ray.init` in this process."""
    return "ray" in sys.modules and import_module("ray").is_initialized()


def import_with_token() -> Any:
    """Whether this process shows a token Ray decides when it is first imported."""
    with ray_environment({MODE: "token"}):
        return import_ray()


def token() -> dict[str, str]:
    """A token for a cluster of one run; none where Ray has none, or was told so."""
    raylet: Any = import_module("ray._raylet")
    if not hasattr(raylet, "get_authentication_mode"):
        return {}
    if raylet.get_authentication_mode() != raylet.AuthenticationMode.TOKEN:
        return {}
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    return {MODE: "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def reach(address: str) -> None:
    """Looks whether somebody listens there: Ray itself would wait long.

    Raises:
        ClusterError: Nobody does.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal():  # "auto", or "local"
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CALL_S).close()
    except OSError as error:
        raise ClusterError(
            f"nobody answers at {address}: {error}. Expected the head of a Ray "
            "cluster. Look with `ray status --address=...`, or correct the address."
        ) from None


def first_line(error: BaseException) -> str:
    """Of what an error says, without a full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")


@contextmanager
def ray_environment(words: Mapping[str, str]) -> Generator[None]:
    """Variables for Ray, where they are not set; and those that it sets itself go."""
    before = {name: os.environ.get(name) for name in (*words, *SET_BY_RAY)}
    for name, word in words.items():
        os.environ.setdefault(name, word)
    try:
        yield
    finally:
        for name, word in before.items():
            if word is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = word
