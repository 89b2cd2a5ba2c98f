"""From settings to a server that listens, and the link to it."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import psutil
import uvicorn

from shoal.errors import ConfigError
from shoal.host.private import make_private
from shoal.terminal import say
from shoal.ui.app import make_app
from shoal.ui.guard import LOOPBACK, Access
from shoal.ui.packages import UPLOT, is_there
from shoal.ui.pages.actions import TENSORBOARD
from shoal.ui.server import Server
from shoal.ui.site import Site, roots_of
from shoal.ui.starting import Starter

FIRST_PORT, PORTS = 8766, 50
"""8265 and 6006 belong to Ray and TensorBoard."""
TOKEN_BYTES = 32
END_S = 1
"""Seconds that open answers get when the server ends."""


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
        allow_hosts: Further names under which the page may be asked for.
        base: Path before all pages, such as "/shoal" behind a proxy.
        tls_cert: File of a certificate, None for none.
        tls_key: File of its key.
        is_insecure: Whether other machines may come without encryption.
        is_read_only: Whether nothing can be changed.
        has_browser: Whether a browser is opened.
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
        if self.host not in ("127.0.0.1", "::1", "localhost") and not (
            is_encrypted or self.is_insecure
        ):
            raise ConfigError(
                f"host={self.host!r} is reached from other machines, and anybody who "
                "reads the token on the way can stop and remove runs. Expected "
                "--tls-cert and --tls-key. Leave --host out and use ssh -L, or give "
                "--insecure where nobody else is on the network."
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
        hosts=LOOPBACK | _names(settings),
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
    config = uvicorn.Config(
        make_app(site),
        lifespan="off",
        log_level="warning",
        access_log=False,  # its lines would hold the token
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=END_S,
        timeout_keep_alive=15,
        ws="none",
        proxy_headers=False,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    servers.append(Server(config, site.watcher.end_waits))
    shown = settings.host if settings.host not in ("0.0.0.0", "::") else "127.0.0.1"
    link = f"{access.scheme}://{shown}:{port}{access.base}/?token={access.token}"
    said(link)
    said(f"From another machine: ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}")
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


def _names(settings: Settings) -> frozenset[str]:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return frozenset({host.lower(), *(name.lower() for name in settings.allow_hosts)})
