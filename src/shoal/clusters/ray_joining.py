"""Connecting to a Ray cluster: import, address, variables."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from shoal.errors import ClusterError, ConfigError

CALL_S = 5.0  # limit until a live head accepts a connection
MODE = "RAY_AUTH_MODE"
SET_BY_RAY = ("PYTHONBREAKPOINT", "RAY_CLIENT_MODE")


def import_ray() -> Any:
    """Imports Ray when it is needed.

    Raises:
        ConfigError: Ray is not installed.
    """
    try:
        return import_module("ray")
    except ImportError as error:
        raise _unusable(str(error)) from None


def require_ray() -> None:
    """Refuses where Ray is not installed, before anything is done for it.

    Raises:
        ConfigError: Ray is not installed.
    """
    if find_spec("ray") is None:
        raise _unusable("No module named 'ray'")


def _unusable(why: str) -> ConfigError:
    return ConfigError(
        f"Ray cannot be used: {why}. Expected it to be installed here and on every "
        "node. Install it: pip install 'shoal[ray]'."
    )


def is_connected() -> bool:
    """Whether `ray.init` was called in this process."""
    return "ray" in sys.modules and import_module("ray").is_initialized()


def import_with_token() -> Any:
    """Imports Ray, which decides at the first import whether it shows a token."""
    with ray_environment({MODE: "token"}):
        return import_ray()


@contextmanager
def own_sigterm() -> Generator[None]:
    """Puts back the handler of SIGTERM that `ray.init` replaces and never restores."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and before is not None:  # None: it is not Python's
            signal.signal(signal.SIGTERM, before)


def token() -> dict[str, str]:
    """Returns a token for a cluster of one run; none if Ray has none or needs none."""
    raylet: Any = import_module("ray._raylet")
    if not hasattr(raylet, "get_authentication_mode"):
        return {}
    if raylet.get_authentication_mode() != raylet.AuthenticationMode.TOKEN:
        return {}
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    return {MODE: "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def reach(address: str) -> None:
    """Checks for a listener at an address: Ray itself would wait long.

    Raises:
        ClusterError: There is no listener.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal():  # "auto", or "local"
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CALL_S).close()
    except OSError as error:
        raise ClusterError(
            f"no answer from {address}: {error}. Expected the head of a Ray "
            "cluster. Check with `ray status --address=...`, or correct the address."
        ) from None


def first_line(error: BaseException) -> str:
    """Returns the first line of an error, without a full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")


@contextmanager
def ray_environment(words: Mapping[str, str]) -> Generator[None]:
    """Sets variables for Ray that are not set; removes those that Ray sets itself."""
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
