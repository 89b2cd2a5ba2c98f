"""OpenSSH's server on the hosts of `tests.support.hosts`, with keys of its own.

What it starts sees the name of its host, not that of the machine.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import final

from tests.support.hosts import Hosts

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
CLIENT = """
Host *
IdentityFile {folder}/own
StrictHostKeyChecking no
UserKnownHostsFile {folder}/known
LogLevel ERROR
BatchMode yes
ConnectTimeout 5
ServerAliveInterval 2
ServerAliveCountMax 2
"""


def named(host: str) -> tuple[str, ...]:
    """Returns the start of a command line that runs on a host, under its name."""
    call = 'hostname "$0" && exec "$@"'
    return ("ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", call, host)


@final
class Sshd:
    """One server on each host, and a key that all accept.

    Args:
        hosts: Hosts of the servers.
        folder: Empty folder for keys, configuration, and the homes of the hosts.
        variables: Environment variables of every session, beside HOME.

    Attributes:
        ssh: The command that reaches the hosts, by their addresses.
        addresses: Addresses of the hosts.
        homes: Home folders of the hosts.
        client: Path of a configuration file of ssh with the options of `ssh`.

    Raises:
        FileNotFoundError: There is no sshd here.
    """

    def __init__(
        self, hosts: Hosts, folder: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        if not Path(SERVER).exists() or shutil.which("ssh-keygen") is None:
            raise FileNotFoundError(SERVER)
        for name in ("host", "own"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name],
                check=True,
            )
        self.homes = [folder / host for host in hosts.names]
        configs = [folder / f"config-{host}" for host in hosts.names]
        for home, config in zip(self.homes, configs, strict=True):
            home.mkdir()
            told = {**(variables or {}), "HOME": str(home)}
            words = " ".join(f"{name}={value}" for name, value in told.items())
            config.write_text(CONFIG.format(folder=folder) + f"SetEnv {words}\n")
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
        self.client = folder / "client"
        self.client.write_text(CLIENT.format(folder=folder))
        self._servers = [
            subprocess.Popen(
                [*named(host), SERVER, "-D", "-e", "-f", str(config)],
                stderr=subprocess.DEVNULL,
            )
            for host, config in zip(hosts.names, configs, strict=True)
        ]
        try:
            for address in self.addresses:
                _wait_for(address)
        except BaseException:
            self.close()
            raise

    def hold(self, number: int) -> None:
        """Stops the server of a host: it accepts no connection until `resume`."""
        self._servers[number].send_signal(signal.SIGSTOP)

    def go_on(self, number: int) -> None:
        """Lets it answer again."""
        self._servers[number].send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Ends the servers."""
        for server in self._servers:
            server.kill()
            server.wait()


def _wait_for(address: str) -> None:
    """Waits until a server listens."""
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
