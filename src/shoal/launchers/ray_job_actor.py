"""The actor of a job on a Ray cluster, independent of the caller who sent it.

A job actor stays when its caller leaves. It keeps the job's files and its process, on
the head, which has no other room. It does not depend on Ray.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import final

from shoal.host.temporary import temporary_folder
from shoal.launchers.versions import versions
from shoal.paths import one_inside

FILES, ARCHIVE, PACKED, LOG = "files", "sent.tar.gz", "run.tar.gz", "log"


@final
class JobActor:
    """One job: its files, its process, its output and its results."""

    def __init__(self) -> None:
        self._folder = Path(
            tempfile.mkdtemp(prefix="shoal-job-", dir=temporary_folder())
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._script, self._began, self._is_stopped = "", time.time(), False
        self._arguments: tuple[str, ...] = ()

    def versions(self, backend: str) -> dict[str, str]:
        """Returns the versions installed here."""
        return versions(backend, "ray")

    def write(self, offset: int, data: bytes) -> None:
        """Writes a part of the archive of the job's files."""
        with open(self._folder / ARCHIVE, "r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(data)

    def start(
        self, script: str, arguments: Sequence[str], variables: Mapping[str, str]
    ) -> None:
        """Starts a script of the archive, in this process's folder.

        Args:
            script: Name of the script.
            arguments: Arguments of the script.
            variables: Name -> value, for its environment besides this process's.

        Raises:
            OSError: It cannot be started.
        """
        files = self._folder / FILES
        files.mkdir(mode=0o700)
        with tarfile.open(self._folder / ARCHIVE) as archive:
            archive.extractall(files, filter="data")
        (self._folder / ARCHIVE).unlink()
        with (self._folder / LOG).open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(one_inside(files, script)), *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **variables},
                start_new_session=True,
            )  # fmt: skip
        self._script, self._began = script, time.time()
        self._arguments = tuple(arguments)

    def state(self) -> tuple[str, str, tuple[str, ...], float]:
        """Returns state, script, arguments and start of the job; as in `Job`."""
        code = None if self._process is None else self._process.poll()
        if self._process is None:
            told = "not started"
        elif code is None:
            told = "running"
        elif self._is_stopped:
            told = "stopped"
        else:
            told = "done" if code == 0 else f"failed ({code})"
        return told, self._script, self._arguments, self._began

    def read(self, offset: int, most: int) -> bytes:
        """Returns the job's output from an offset."""
        with (self._folder / LOG).open("rb") as log:
            log.seek(offset)
            return log.read(most)

    def pack(self, folder: str) -> int:
        """Packs a folder of the job's; returns the bytes of the archive."""
        packed = self._folder / PACKED
        with tarfile.open(packed, "w:gz") as archive:
            archive.add(one_inside(self._folder / FILES, folder), folder)
        return packed.stat().st_size

    def packed(self, offset: int, most: int) -> bytes:
        """Returns a part of the archive."""
        with (self._folder / PACKED).open("rb") as file:
            file.seek(offset)
            return file.read(most)

    def stop(self, grace_s: float) -> int:
        """Ends the job, by force after `grace_s` seconds; 0 when it had ended."""
        process = self._process
        if process is None or process.poll() is not None:
            return 0
        self._is_stopped = True
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        with suppress(ProcessLookupError):  # its group may outlive it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return 1

    def close(self) -> None:
        """Ends the job and removes its files."""
        self.stop(0.0)
        shutil.rmtree(self._folder, ignore_errors=True)
