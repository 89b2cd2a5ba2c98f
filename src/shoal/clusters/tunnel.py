"""A program on a host, by the system's OpenSSH, with one of its ports forwarded."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import IO, Self, final

from shoal.clusters.ssh import Way, over
from shoal.errors import ClusterError
from shoal.host.temporary import temporary_folder
from shoal.terminal import relay

FORWARD_LIMIT_S = 20.0
END_LIMIT_S = 10.0
WORDS_LIMIT_S = 5.0  # limit for the last output of a program that has ended
SSH_FAILED = 255
LONGEST_FOLDER = (
    60  # characters: a socket's path has about a hundred, and ssh adds to it
)


def _relay(pipe: IO[bytes]) -> None:
    with pipe:
        relay(pipe, err=True)


@final
class Tunnel:
    """Owns one connection, over which the program runs and its port is reached.

    The program's standard input is open as long as this is; see `beat_s`. Its
    standard error is shown as it comes.

    Args:
        way: Way to the host.
        command: Command there.
        beat_s: Seconds between two bytes that are sent to the program.

    Raises:
        ClusterError: ssh is not installed here.
    """

    def __init__(self, way: Way, command: Sequence[str], *, beat_s: float) -> None:
        folder = str(temporary_folder())
        self._folder = tempfile.mkdtemp(
            prefix="shoal-", dir=folder if len(folder) < LONGEST_FOLDER else "/tmp"
        )
        self._socket = f"{self._folder}/ssh"
        self._way = way
        self._is_over = threading.Event()
        own = ("-M", "-S", self._socket, "-o", "ControlPersist=no")
        owner = replace(way, ssh=(*way.ssh, *own))
        try:
            self._popen = subprocess.Popen(
                over(owner.words, command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # this process passes Ctrl-C on
            )
        except OSError as error:
            shutil.rmtree(self._folder)
            raise ClusterError(
                f"{way.ssh[0]!r} cannot be started: {error}. Expected OpenSSH's client "
                "to be installed. Install openssh-client."
            ) from None
        self._beats = threading.Thread(target=self._beat, args=(beat_s,), daemon=True)
        self._beats.start()
        self._words = threading.Thread(
            target=_relay, args=(self._popen.stderr,), daemon=True
        )
        self._words.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _beat(self, beat_s: float) -> None:
        stdin = self._popen.stdin
        while stdin is not None and not self._is_over.wait(beat_s):
            with suppress(OSError):
                os.write(stdin.fileno(), b".")

    def find(self, pattern: str, limit_s: float) -> str:
        """Waits until the program writes a line that matches; returns its group.

        Args:
            pattern: A regular expression with one group.
            limit_s: Limit in seconds.

        Raises:
            ClusterError: It ended before, or wrote no such line in time.
        """
        is_late = threading.Timer(limit_s, self._popen.kill)
        is_late.start()
        try:
            for line in self._popen.stdout or ():
                match = re.search(pattern, line.decode(errors="replace"))
                if match:
                    return match[1]
            code = self._popen.wait()
        finally:
            is_late.cancel()
        self._words.join(WORDS_LIMIT_S)
        how = f"in {limit_s:g} s" if code < 0 else f"before it ended with status {code}"
        raise ClusterError(
            f"the program on {self._way.address} did not say {how} where it can be "
            f"reached. Expected a host that answers `{shlex.join(self._way.words)}`, "
            "and Shoal installed there. Its last output is above; try it by hand."
        )

    def forward(self, port: int, to: int) -> None:
        """Forwards a port of the host's own address 127.0.0.1 to here.

        Args:
            port: Port of this machine.
            to: Port of the host.

        Raises:
            ClusterError: The port is taken, or the host forbids forwarding.
        """
        at = f"127.0.0.1:{port}:127.0.0.1:{to}"
        more = ("-S", self._socket, "-O", "forward", "-L", at)
        words = replace(self._way, ssh=(*self._way.ssh, *more)).words
        try:
            subprocess.run(
                words,
                capture_output=True,
                text=True,
                check=True,
                timeout=FORWARD_LIMIT_S,
            )
        except subprocess.SubprocessError as error:
            why = str(getattr(error, "stderr", None) or error).strip()
            raise ClusterError(
                f"port {port} here cannot be forwarded to {self._way.address}: "
                f"{why}. Expected a port that is free, and a host that allows TCP "
                "forwarding. Pass another --port."
            ) from None

    def wait(self) -> int:
        """Waits for the end of the program; returns its status.

        Raises:
            ClusterError: The connection is lost.
        """
        for _ in self._popen.stdout or ():
            pass  # not used, but the program must not wait for a reader
        code = self._popen.wait()
        if code == SSH_FAILED:
            raise ClusterError(
                f"the connection to {self._way.address} was lost. Expected the host to "
                "stay in reach; the program there ends by itself. Call again when it "
                "answers."
            )
        return code

    def close(self) -> None:
        """Ends the program, by its standard input, and the connection."""
        self._is_over.set()
        self._beats.join()
        with suppress(OSError):
            if self._popen.stdin is not None:
                self._popen.stdin.close()
        try:
            self._popen.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._words.join(WORDS_LIMIT_S)  # its children may hold the pipe
        if self._popen.stdout is not None:
            self._popen.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)
