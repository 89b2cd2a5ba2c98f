"""OpenSSH's server on the hosts of `shoal.testing.hosts`, with keys of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import final

from shoal.testing.hosts import Hosts

SERVER = "/usr/sbin/sshd"
LIMIT_S = 20.0
CONFIG = """
HostKey {folder}/host
AuthorizedKeysFile {folder}/own.pub
PidFile none
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
PermitRootLogin prohibit-password
"""


@final
class Sshd:
    """One server on each host, and a key that opens all.

    Args:
        hosts: Where they run.
        folder: For keys and configuration; empty.

    Attributes:
        ssh: The command that reaches the hosts, by their addresses.
        addresses: Of the hosts.

    Raises:
        FileNotFoundError: There is no sshd here.
    """

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        if not Path(SERVER).exists() or shutil.which("ssh-keygen") is None:
            raise FileNotFoundError(SERVER)
        for name in ("host", "own"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name],
                check=True,
            )
        config = folder / "config"
        config.write_text(CONFIG.format(folder=folder))
        Path("/run/sshd").mkdir(exist_ok=True)
        net = hosts.address.rpartition(".")[0]
        self.addresses = [f"{net}.{n + 2}" for n in range(len(hosts.names))]
        self.ssh = (
            "ssh", "-F", "none", "-i", str(folder / "own"),
            "-o", "StrictHostKeyChecking=no",
            "-o", f"UserKnownHostsFile={folder / 'known'}", "-o", "LogLevel=ERROR",
            "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
            "-o", "ServerAliveInterval=3", "-o", "ServerAliveCountMax=2",
        )  # fmt: skip
        self._servers = [
            subprocess.Popen(
                ["ip", "netns", "exec", host, SERVER, "-D", "-e", "-f", str(config)],
                stderr=subprocess.DEVNULL,
            )
            for host in hosts.names
        ]
        try:
            for address in self.addresses:
                _wait_for(address)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the servers."""
        for server in self._servers:
            server.kill()
            server.wait()


def _wait_for(address: str) -> None:
    """Waits until somebody listens."""
    until = time.monotonic() + LIMIT_S
    while True:
        try:
            socket.create_connection((address, 22), timeout=1.0).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return
