"""Hosts on this machine for tests: network namespaces at one bridge; it needs root."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


RELAY = str(Path(__file__).with_name("slow_link.py"))
"""The relay runs by its path: it needs only the standard library."""
FRAME = "9000"  # bytes: the relay has a sixth of the work of usual frames
FILES = Path("/etc/netns")  # replaces /etc's files in `ip netns exec`


@final
@dataclass(frozen=True, kw_only=True)
class Cable:
    """The link between a host and the bridge, with limits.

    Args:
        mbit: Bandwidth in megabits a second, each way.
        delay_s: Latency in seconds, each way.
    """

    mbit: float
    delay_s: float = 0.0

    def limit(self, device: str, host: str | None = None) -> None:
        """Limits what leaves through a device."""
        where = [] if host is None else ["ip", "netns", "exec", host]
        rate = f"{self.mbit:g}mbit"
        command = [
            "tc", "qdisc", "add", "dev", device, "root", "tbf",
            "rate", rate, "burst", "64kb", "latency", "100ms",
        ]  # fmt: skip
        subprocess.run([*where, *command], check=True, capture_output=True)


@final
class Hosts:
    """This host, and others that reach it by one bridge.

    Args:
        count: Number of other hosts.
        cable: Link of each other host; None for a link without limits.

    Attributes:
        address: Address of this host.
        names: Names of the other hosts and of their namespaces, for `ip netns exec`;
            all hosts resolve them.
        bridge: Name of the interface of the bridge.

    Raises:
        subprocess.CalledProcessError: This process may not make namespaces.
    """

    def __init__(self, count: int = 2, cable: Cable | None = None) -> None:
        name = secrets.token_hex(3)
        net = f"10.{secrets.randbelow(100) + 100}.{secrets.randbelow(256)}"
        self.bridge, self.address = f"sh{name}", f"{net}.1"
        self.names = [f"shoal-{name}-{n}" for n in range(count)]
        self._cable, self._relays = cable, list[subprocess.Popen[str]]()
        try:
            self._open(net)
        except (subprocess.CalledProcessError, OSError):
            self.close()
            raise

    def _open(self, net: str) -> None:
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("address", "add", f"{self.address}/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        known = Path("/etc/hosts").read_text() + "".join(
            f"{net}.{n + 2} {host}\n" for n, host in enumerate(self.names)
        )
        for n, host in enumerate(self.names):
            here, there = f"{self.bridge}-{n}", "eth0"
            (FILES / host).mkdir(parents=True)
            (FILES / host / "hosts").write_text(known)
            _ip("netns", "add", host)
            if self._cable is None:
                peer = ("type", "veth", "peer", there, "netns", host)
                _ip("link", "add", here, *peer)
            else:
                self._lay(self._cable, here, there, host)
            _ip("link", "set", here, "master", self.bridge, "up")
            _ip("-n", host, "address", "add", f"{net}.{n + 2}/24", "dev", there)
            _ip("-n", host, "link", "set", there, "up")
            _ip("-n", host, "link", "set", "lo", "up")

    def _lay(self, cable: Cable, here: str, there: str, host: str) -> None:
        """A cable that takes its time: two TAP devices, and a process between them."""
        _ip("tuntap", "add", "dev", here, "mode", "tap")
        _ip("-n", host, "tuntap", "add", "dev", there, "mode", "tap")
        _ip("link", "set", here, "mtu", FRAME)
        _ip("-n", host, "link", "set", there, "mtu", FRAME)
        cable.limit(here)
        cable.limit(there, host)
        relay = subprocess.Popen(
            [
                sys.executable, "-P", RELAY,
                here, there, f"/run/netns/{host}", str(cable.delay_s),
            ],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._relays.append(relay)
        if relay.stdout is None or relay.stdout.readline() != "ready\n":
            raise subprocess.CalledProcessError(relay.wait(), relay.args, stderr=b"")

    def cut(self, number: int) -> None:
        """Takes the cable of a host out, at its other end."""
        _ip("link", "set", f"{self.bridge}-{number}", "down")

    def mend(self, number: int) -> None:
        """Puts it in again."""
        _ip("link", "set", f"{self.bridge}-{number}", "up")

    def close(self) -> None:
        """Removes namespaces, cables and bridge."""
        for relay in self._relays:
            relay.kill()
            relay.wait()
            if relay.stdout is not None:
                relay.stdout.close()
        for host in self.names:
            shutil.rmtree(FILES / host, ignore_errors=True)
        cables = [f"{self.bridge}-{n}" for n in range(len(self.names))]
        words_of = [
            *(("netns", host) for host in self.names),
            *(("link", name) for name in (*cables, self.bridge)),
        ]
        for words in words_of:
            with suppress(subprocess.CalledProcessError):
                _ip(words[0], "delete", words[1])
