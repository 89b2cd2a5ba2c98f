"""From settings to a server that listens, and the link to it."""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import socket
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import psutil

from shoal.errors import ConfigError
from shoal.host.private import make_private
from shoal.terminal import say
from shoal.ui.app import make_app
from shoal.ui.guard import ACCESS_LOG, LOOPBACK, Access
from shoal.ui.packages import UPLOT, is_there
from shoal.ui.pages.actions import TENSORBOARD
from shoal.ui.server import Server, config_of
from shoal.ui.site import Site, roots_of
from shoal.ui.starting import Starter

FIRST_PORT, PORTS = 8766, 50
"""8265 and 6006 belong to Ray and TensorBoard."""
TOKEN_BYTES = 32
NAME = re.compile(r"(https?://)?(\[[0-9a-f:.]+\]|[\w.-]+)", re.IGNORECASE)


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `shoal ui`.

    Args:
        roots: Folders or URLs of runs.
        cache: Folder where outlines are remembered, None for none.
        state: Folder of the token files.
        port: Port, None for 8766 or the next free one, 0 for any.
        host: Address to listen on.
        allow_hosts: Further names under which the page may be asked for; those that a
            proxy serves encrypted begin with https://.
        base: Path before all pages, such as "/shoal" behind a proxy.
        tls_cert: File of a certificate, None for none.
        tls_key: File of its key.
        is_insecure: Whether other machines may come without encryption.
        is_read_only: Whether nothing can be changed.
        has_browser: Whether a browser is opened.
        has_access_log: Whether requests are printed, without what follows a `?`.
    """

    roots: tuple[str, ...]
    cache: str | None
    state: Path
    port: int | None = None
    host: str = "127.0.0.1"
    allow_hosts: tuple[str, ...] = ()
    base: str = ""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    is_insecure: bool = False
    is_read_only: bool = False
    has_browser: bool = True
    has_access_log: bool = False

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the server."""
        return self.host in ("127.0.0.1", "::1", "localhost")

    @property
    def is_everywhere(self) -> bool:
        """Whether the server listens on all addresses of this machine."""
        return self.host in ("0.0.0.0", "::")

    def check(self) -> None:
        """Checks what belongs together.

        Raises:
            ConfigError: Others could read what is sent, or the settings contradict.
        """
        is_encrypted = self.tls_cert is not None and self.tls_key is not None
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError(
                "--tls-cert and --tls-key go together, and one was given. Expected "
                "both or none. Give the other one, too."
            )
        if not (self.is_local or is_encrypted or self.is_insecure):
            raise ConfigError(
                f"host={self.host!r} is reached from other machines, and anybody who "
                "reads the token on the way can stop and remove runs. Expected "
                "--tls-cert and --tls-key. Leave --host out and use ssh -L, or give "
                "--insecure where nobody else is on the network."
            )
        for name in self.allow_hosts:
            if not NAME.fullmatch(name):
                raise ConfigError(
                    f"allow_host={name!r} is not the name of a host. Expected one "
                    "such as page.example, or https://page.example where a proxy "
                    "encrypts. Leave the port and the path out."
                )
        if self.base and not (self.base.startswith("/") and self.base[1:2].isalnum()):
            raise ConfigError(
                f"base_path={self.base!r} is not a path. Expected one such as /shoal. "
                "Begin it with one slash."
            )


def serve(settings: Settings, said: Callable[[str], None] = say) -> None:
    """Serves the page until Ctrl-C.

    Args:
        settings: Settings of the server.
        said: Prints a line.

    Raises:
        ConfigError: A setting is wrong, or the port is taken.
    """
    settings.check()
    listener = listen(settings)
    port = int(listener.getsockname()[1])
    access = Access(
        token=read_token(settings.state, port),
        port=port,
        hosts=LOOPBACK | names_of(settings),
        encrypted=frozenset(names_by(settings, "https")),
        base=settings.base.rstrip("/"),
        is_encrypted=settings.tls_cert is not None,
    )
    servers: list[Server] = []
    site = Site(
        roots=roots_of(settings.roots),
        access=access,
        starter=Starter(settings.state / "ui" / "started"),
        cache=settings.cache,
        is_read_only=settings.is_read_only,
        has_charts=is_there(UPLOT),
        is_ending=lambda: servers[0].should_exit,
    )
    if settings.has_access_log:
        log_requests()
    config = config_of(
        make_app(site), tls_cert=settings.tls_cert, tls_key=settings.tls_key
    )
    servers.append(Server(config, site.watcher.end_waits))
    link, *more = links(settings, access)
    said(link)
    for line in more:
        said(line)
    if settings.has_browser:
        with suppress(webbrowser.Error):
            webbrowser.open(link)
    try:
        servers[0].run(sockets=[listener])
    except KeyboardInterrupt:
        return
    finally:
        listener.close()
        site.watcher.close()
        site.starter.end(TENSORBOARD)


def listen(settings: Settings) -> socket.socket:
    """Returns a listening socket on the port of the settings.

    Raises:
        ConfigError: The port is taken, or the address is not this machine's.
    """
    wanted = settings.port
    ports = range(FIRST_PORT, FIRST_PORT + PORTS) if wanted is None else [wanted]
    for port in ports:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((settings.host, port))
            found.listen(128)
        except OSError as error:
            found.close()
            if error.errno == errno.EADDRINUSE and wanted is None:
                continue
            raise ConfigError(_taken(settings.host, port, error)) from error
        return found
    raise ConfigError(
        f"the ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1} are all taken. Expected a "
        "free one. Name one with --port."
    )


def _taken(host: str, port: int, error: OSError) -> str:
    if error.errno != errno.EADDRINUSE:
        return (
            f"the page cannot listen on {host}:{port} ({error.strerror}). Expected an "
            "address of this machine and a port that this user may use. Leave --host "
            "and --port out."
        )
    who = "another program"
    with suppress(psutil.Error, OSError):
        for one in psutil.net_connections("inet"):
            place: Any = one.laddr  # empty for other kinds of sockets
            if one.status == "LISTEN" and place and place.port == port and one.pid:
                who = f"{psutil.Process(one.pid).name()}, process {one.pid},"
    return (
        f"port {port} is taken: {who} listens there. Expected a free one. End it, or "
        "leave --port out."
    )


def read_token(state: Path, port: int) -> str:
    """Returns the token of a port, the same after a restart.

    Raises:
        ConfigError: The token file cannot be written.
    """
    path = state / "ui" / str(port)
    try:
        make_private(path.parent)
        with suppress(FileNotFoundError):
            if path.stat().st_mode & 0o077 == 0:
                known = path.read_text().strip()
                if len(known) >= TOKEN_BYTES:
                    return known
        token = secrets.token_urlsafe(TOKEN_BYTES)
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(f"{token}\n")
    except OSError as error:
        raise ConfigError(
            f"the token of the page cannot be kept in {path} ({error}). Expected a "
            "folder that this user may write to. Make it, or free some space."
        ) from error
    return token


def links(settings: Settings, access: Access) -> list[str]:
    """Returns the link to the page, and lines about other machines."""
    host = "127.0.0.1" if settings.is_everywhere else settings.host
    port, rest = access.port, f"{access.base}/?token={access.token}"
    found = [f"{access.scheme}://{_bracketed(host)}:{port}{rest}"]
    own = socket.gethostname()
    if settings.is_local:
        place = f"{port}:{_bracketed(host)}:{port}"
        found.append(f"From another machine: ssh -L {place} {own}")
    elif settings.is_everywhere:
        found.append(f"From another machine: {access.scheme}://{own}:{port}{rest}")
    if not (settings.is_local or access.is_encrypted):
        found.append(
            "Not encrypted: anybody on the network can read the token, and with it "
            "start programs as this user. Use --tls-cert and --tls-key."
        )
    return found


def log_requests() -> None:
    """Prints requests to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    ACCESS_LOG.addHandler(handler)
    ACCESS_LOG.setLevel(logging.INFO)
    ACCESS_LOG.propagate = False


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def names_of(settings: Settings) -> frozenset[str]:
    """Returns names of the page besides those of loopback.

    The addresses of this machine are safe names: a page of another site cannot be
    asked for under them.
    """
    found = names_by(settings)
    if not settings.is_everywhere:
        found.add(_bracketed(settings.host))
    else:
        addresses = [a for own in psutil.net_if_addrs().values() for a in own]
        kinds = (socket.AF_INET, socket.AF_INET6)
        found |= {
            _bracketed(one.address)
            for one in addresses
            if one.family in kinds and "%" not in one.address
        }
        found.add(socket.gethostname())
    return frozenset(name.lower() for name in found)


def names_by(settings: Settings, scheme: str = "") -> set[str]:
    """Returns the names of --allow-host, or those that a proxy serves by a scheme."""
    pairs = [name.lower().rpartition("://") for name in settings.allow_hosts]
    return {name for by, _, name in pairs if scheme in ("", by)}
