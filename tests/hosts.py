"""Hosts with sshd for tests: skipped with a clear line where they cannot be."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.hosts import Hosts
from tests.support.sshd import SERVER, Sshd


@contextmanager
def hosts_with_sshd(
    count: int, folder: Path, variables: Mapping[str, str] | None = None
) -> Generator[tuple[Hosts, Sshd]]:
    """Network namespaces with a real OpenSSH each."""
    try:
        found = Hosts(count)
    except (OSError, subprocess.CalledProcessError):
        skip_or_fail("network namespaces, which need root and iproute2")
    try:
        try:
            server = Sshd(found, folder, variables)
        except FileNotFoundError:
            skip_or_fail(f"{SERVER}: apt-get install openssh-server")
        try:
            yield found, server
        finally:
            server.close()
    finally:
        found.close()


def skip_or_fail(what: str) -> NoReturn:
    """In CI nothing is skipped that it could run."""
    if os.environ.get("SHOAL_REQUIRE_HOSTS"):
        pytest.fail(f"needs {what}")
    pytest.skip(f"needs {what}")
