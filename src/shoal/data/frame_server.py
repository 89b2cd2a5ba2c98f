"""Files of a DataFrame on the driver's disk, read by workers that do not see it.

A worker asks for a range of a file over a connection of its own: TLS where it leaves
this machine, and a key that came with the data of the run. Ranges are all that can
be asked for, of files that were added by name.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from fsspec.spec import AbstractFileSystem

from shoal.errors import DataError
from shoal.forks import blank, gives_up
from shoal.host.ports import listen
from shoal.paths import one_inside
from shoal.wire.accepting import accept
from shoal.wire.frames import BadFrame, Link
from shoal.wire.tls import identity_for, server_context

SCHEME = "shoal-driver"
READ, DATA = "read", "data"
MOST_BYTES = 32 << 20
"""Largest range of one answer."""
MOST_CALLERS = 1024
KEY_BYTES = 32
ACCEPT_S = 0.5  # between checks for the end
ANSWER_S = 60.0  # for a range

_OWN: dict[str, Path] = {}
"""Key -> folder of servers of this process, which reads its own files itself."""


@final
class FrameServer:
    """Serves files of one folder until `close`.

    Args:
        folder: The folder.
        host: Address of this machine that workers reach.
        port: Port to listen at, or the next free one; 0: any.
    """

    def __init__(self, folder: Path, host: str, port: int = 0) -> None:
        self._folder, self._key = folder, secrets.token_bytes(KEY_BYTES)
        identity = identity_for(host)
        self._context = None if identity is None else server_context(identity)
        self._listener = listen(host, port)
        self._listener.settimeout(ACCEPT_S)
        shown = f"[{host}]" if ":" in host else host
        self.root = f"{SCHEME}://{shown}:{self._listener.getsockname()[1]}"
        certificate = None if identity is None else identity.certificate.hex()
        self.options = {"key": self._key.hex(), "certificate": certificate}
        """Options of `shoal.data.files.store.Store` for its files."""
        _OWN[self._key.hex()] = folder
        self._is_closed = False
        self._connections: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        gives_up(self)
        self._acceptor = self._start(self._accept_all)

    def _start(self, target: Any, *arguments: Any) -> threading.Thread:
        thread = threading.Thread(
            target=target, args=arguments, name="shoal-frame-server", daemon=True
        )
        thread.start()
        return thread

    def _accept_all(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # nobody called, or the listener is closed
                continue
            if len(self._connections) >= MOST_CALLERS:
                connection.close()
                continue
            self._connections.add(connection)
            self._threads.add(self._start(self._serve, connection))

    def _serve(self, connection: socket.socket) -> None:
        """Answers one caller until it leaves."""
        link: Link | None = None
        try:
            _, link = accept(connection, {"frame": self._key}, self._context)
            while not self._is_closed:
                self._connections.add(link.socket)
                head, _ = link.receive()
                data, error = self._range(head)
                link.send({"kind": DATA, "error": error}, data)
        except (OSError, BadFrame):
            pass
        finally:
            if link is not None:
                self._connections.discard(link.socket)
                link.close()
            self._connections.discard(connection)
            self._threads.discard(threading.current_thread())

    def _range(self, head: Mapping[str, Any]) -> tuple[bytes, str]:
        name, start, stop = head.get("name"), head.get("start"), head.get("stop")
        is_range = (
            head.get("kind") == READ
            and isinstance(name, str)
            and isinstance(start, int)
            and isinstance(stop, int)
            and 0 <= start <= stop <= start + MOST_BYTES
        )
        if not is_range:
            raise BadFrame("a caller asked for no range of a file")
        try:
            path = one_inside(self._folder, str(name))
            return read_range(path, int(start or 0), int(stop or 0)), ""
        except (OSError, DataError) as error:
            return b"", str(error)

    def close(self) -> None:
        """Stops serving, and ends all connections."""
        self._is_closed = True
        _OWN.pop(self._key.hex(), None)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        for connection in list(self._connections):
            with suppress(OSError):
                # Not that of TLS, which another thread may be using.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join()

    def give_up(self) -> None:
        """Closes the listener in a forked process."""
        with suppress(OSError):
            blank(self._listener.fileno())


def read_range(path: Path, start: int, stop: int) -> bytes:
    """Reads bytes of a file.

    Args:
        path: The file.
        start: First byte.
        stop: One past the last byte.
    """
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(stop - start)


class ServedFiles(AbstractFileSystem):
    """The files of a `FrameServer`, for `shoal.data.files.store.Store`.

    Args:
        key: Key of the server.
        certificate: Its certificate, None without TLS.
        options: Options of fsspec.
    """

    protocol = SCHEME

    def __init__(
        self, key: str = "", certificate: str | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self._key, self._certificate = key, certificate
        self._lock = threading.Lock()
        self._link: Link | None = None

    def __del__(self) -> None:
        if getattr(self, "_link", None) is not None:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return str(path).removeprefix(f"{SCHEME}://").rstrip("/")

    def exists(self, path: Any, **options: Any) -> bool:
        """Whether a file is there: those that are named are."""
        del path, options
        return True

    def cat_file(
        self, path: Any, start: Any = None, end: Any = None, **options: Any
    ) -> bytes:
        """Returns a range of a file.

        Args:
            path: Address of the server, and name of the file.
            start: First byte.
            end: One past the last byte.
            options: Not used.

        Raises:
            OSError: The server is gone, or has no such file.
        """
        place, _, name = self._strip_protocol(path).partition("/")
        folder = _OWN.get(self._key)
        if folder is not None:
            return read_range(one_inside(folder, name), int(start), int(end))
        parts: list[bytes] = []
        with self._lock:
            for first in range(int(start), int(end), MOST_BYTES):
                last = min(int(end), first + MOST_BYTES)
                parts.append(self._ask(place, name, first, last))
        return b"".join(parts)

    def _ask(self, place: str, name: str, start: int, stop: int) -> bytes:
        if self._link is None:
            host, _, port = place.rpartition(":")
            shown = self._certificate
            self._link = Link(
                (host.strip("[]"), int(port)), bytes.fromhex(self._key),
                certificate=None if shown is None else bytes.fromhex(shown),
            )  # fmt: skip
        try:
            self._link.send({"kind": READ, "name": name, "start": start, "stop": stop})
            head, body = self._link.receive(timeout_s=ANSWER_S)
        except BaseException:
            self._hang_up()
            raise
        if head.get("error"):
            raise OSError(str(head["error"]))
        return bytes(body)
