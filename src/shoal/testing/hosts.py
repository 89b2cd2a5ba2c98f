"""Other hosts on this machine: network namespaces at one bridge, by root of Linux."""

from __future__ import annotations

import secrets
import subprocess
from contextlib import suppress
from typing import final


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@final
class Hosts:
    """This host, and others that reach it by one bridge.

    Args:
        count: Of the others.

    Attributes:
        address: Of this host.
        names: Of the others' namespaces, for `ip netns exec`.
        bridge: The interface they meet at.

    Raises:
        subprocess.CalledProcessError: There may be no namespaces here.
    """

    def __init__(self, count: int = 2) -> None:
        name = secrets.token_hex(3)
        net = f"10.{secrets.randbelow(100) + 100}.{secrets.randbelow(256)}"
        self.bridge, self.address = f"sh{name}", f"{net}.1"
        self.names = [f"shoal-{name}-{n}" for n in range(count)]
        try:
            self._open(net)
        except subprocess.CalledProcessError:
            self.close()
            raise

    def _open(self, net: str) -> None:
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("address", "add", f"{self.address}/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        for n, host in enumerate(self.names):
            here, there = f"{self.bridge}-{n}", "eth0"
            _ip("netns", "add", host)
            _ip("link", "add", here, "type", "veth", "peer", there, "netns", host)
            _ip("link", "set", here, "master", self.bridge, "up")
            _ip("-n", host, "address", "add", f"{net}.{n + 2}/24", "dev", there)
            _ip("-n", host, "link", "set", there, "up")

    def close(self) -> None:
        """Removes namespaces and bridge."""
        for words in (*(("netns", host) for host in self.names), ("link", self.bridge)):
            with suppress(subprocess.CalledProcessError):
                _ip(words[0], "delete", words[1])
