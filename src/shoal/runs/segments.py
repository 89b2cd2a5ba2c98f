"""Writers of event lines: appending on local disks, in whole segments elsewhere.

Neither raises when storage fails. Each reports it once and counts the lost events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias, final

from shoal.host.private import alike
from shoal.runs.events import segment_name, segment_numbers
from shoal.runs.folder import Folder

Complaint: TypeAlias = Callable[[str], None]
"""Called with one line of text, once, when records begin to be lost."""


@final
@dataclass(frozen=True, kw_only=True)
class SegmentLimits:
    """Limits at which a segment is sealed, and of the bytes that wait for a storage.

    Args:
        size_bytes: Seal at this size, default 1 MiB.
        age_s: Seal buffered lines at this age (not on local disks), default 5 s.
        pending_bytes: Sealed segments kept for another try, default 64 MiB.
    """

    size_bytes: int = 1 << 20
    age_s: float = 5.0
    pending_bytes: int = 64 << 20


class Segments(ABC):
    """Accepts event lines and numbers their segments.

    Callers hold one lock around all methods but `close`.

    Args:
        folder: The run folder; existing segments in it are never changed.
        limits: Limits of a segment.
        header: Returns the first line of segment N.
        complain: Called once when storage fails.
    """

    def __init__(
        self,
        folder: Folder,
        *,
        limits: SegmentLimits,
        header: Callable[[int], bytes],
        complain: Complaint,
    ) -> None:
        self._folder = folder
        self._limits = limits
        self._header = header
        self._complain = complain
        self._number = max(segment_numbers(folder), default=-1) + 1
        self._has_complained = False
        self.lost = 0
        self.is_taken = False
        """Whether another process writes the run by now; this one must not any more."""

    @abstractmethod
    def append(self, line: bytes, now_s: float) -> None:
        """Accepts one line at a monotonic time; it may stay buffered."""

    @abstractmethod
    def flush(self) -> None:
        """Passes buffered lines to the storage."""

    @abstractmethod
    def close(self) -> None:
        """Flushes, waits for the storage, and releases it."""

    @property
    @abstractmethod
    def last(self) -> int:
        """Number of the last segment that holds a line."""

    @abstractmethod
    def beside(self, name: str, content: bytes) -> None:
        """Writes another file of the run, behind the lines that were flushed."""

    def _failed(self, error: Exception, lost: int) -> None:
        self.lost += lost
        if not self._has_complained:
            self._has_complained = True
            self._complain(
                f"events of the run cannot be written to {self._folder.url} "
                f"({type(error).__name__}: {error}). Training goes on without them. "
                "Free some space or restore access to keep the rest."
            )


@final
class LocalSegments(Segments):
    """Appends each line at once: a run can be followed, and a crash loses none."""

    _size = 0
    _is_torn = False

    def append(self, line: bytes, now_s: float) -> None:
        """Writes the line; starts the next segment when this one is full."""
        del now_s
        if self._size >= self._limits.size_bytes:
            self._number, self._size = self._number + 1, 0
        start = b"\n" if self._is_torn else b""
        content = start + (b"" if self._size else self._header(self._number)) + line
        try:
            path = self._folder.local_path(segment_name(self._number))
            # Opened for each line: a handle kept for hours would continue to write
            # into a folder that was removed, and would have to be guarded.
            with open(path, "ab", buffering=0, opener=alike) as file:
                written = file.write(content)
            if written < len(content):
                raise OSError(f"only {written} of {len(content)} bytes were taken")
        except OSError as error:
            # A partial line may be there; the next one must not be appended to it.
            self._is_torn = True
            self._failed(error, 1)
            return
        self._is_torn = False
        self._size += len(content)

    @property
    def last(self) -> int:
        """Number of the last segment that holds a line."""
        return self._number

    def beside(self, name: str, content: bytes) -> None:
        """Writes another file of the run."""
        try:
            self._folder.write(name, content)
        except OSError as error:
            self._failed(error, 0)

    def flush(self) -> None:
        """Does nothing: every line is with the operating system already."""

    def close(self) -> None:
        """Does nothing: no handle is kept."""


@final
class RemoteSegments(Segments):
    """Uploads whole segments from a thread of its own, so that training never waits."""

    def __init__(
        self,
        folder: Folder,
        *,
        limits: SegmentLimits,
        header: Callable[[int], bytes],
        complain: Complaint,
    ) -> None:
        super().__init__(folder, limits=limits, header=header, complain=complain)
        self._lines: list[bytes] = []
        self._size = 0
        self._since_s = 0.0
        self._pending: deque[tuple[int, bytes, int]] = deque()
        self._uploader = ThreadPoolExecutor(1, thread_name_prefix="shoal-events")

    def append(self, line: bytes, now_s: float) -> None:
        """Buffers the line and seals the segment when it is large or old enough."""
        if not self._lines:
            self._since_s = now_s
        self._lines.append(line)
        self._size += len(line)
        is_old = now_s - self._since_s >= self._limits.age_s
        if is_old or self._size >= self._limits.size_bytes:
            self.flush()

    def flush(self) -> None:
        """Seals the buffered lines and queues their upload."""
        if not self._lines:
            return
        content = b"".join([self._header(self._number), *self._lines])
        self._uploader.submit(self._upload, (self._number, content, len(self._lines)))
        self._number += 1
        self._lines, self._size = [], 0

    @property
    def last(self) -> int:
        """Number of the last segment that holds a line."""
        return self._number if self._lines else self._number - 1

    def beside(self, name: str, content: bytes) -> None:
        """Queues the upload of another file of the run."""
        self._uploader.submit(self._put, name, content)

    def _put(self, name: str, content: bytes) -> None:
        # A segment failed, and the file would tell of lost lines; or it is another's.
        if self._pending or self.is_taken:
            return
        try:
            self._folder.write(name, content)
        except Exception as error:
            self._failed(error, 0)

    def close(self) -> None:
        """Uploads the rest; segments that still cannot be stored count as lost."""
        self.flush()
        self._uploader.submit(self._upload, None)
        self._uploader.shutdown(wait=True)
        self.lost += sum(count for _, _, count in self._pending)
        self._pending.clear()

    def _upload(self, sealed: tuple[int, bytes, int] | None) -> None:
        # `_pending` belongs to the uploading thread alone. A segment that failed
        # keeps its place in front, so that numbers appear in order.
        if sealed is not None:
            self._pending.append(sealed)
        while self._pending:
            number, content, count = self._pending[0]
            try:
                self._create(segment_name(number), content)
            except Exception as error:
                self._failed(error, 0)
                self._shed()
                return
            self._pending.popleft()
            self.lost += count if self.is_taken else 0

    def _create(self, name: str, content: bytes) -> None:
        """Writes a segment, unless another process has written one of this number.

        A process that resumes a run begins with the next number. So two of them never
        mix their events, if the one before was only suspended, or cut off.
        """
        if self.is_taken:
            return
        try:
            self._folder.create(name, content)
        except FileExistsError:  # or this process: the answer to its first try was lost
            self.is_taken = self._folder.read(name) != content

    def _shed(self) -> None:
        while sum(len(c) for _, c, _ in self._pending) > self._limits.pending_bytes:
            self.lost += self._pending.popleft()[2]


def segments_for(
    folder: Folder,
    *,
    limits: SegmentLimits,
    header: Callable[[int], bytes],
    complain: Complaint,
) -> Segments:
    """Returns the writer that fits the folder's storage."""
    kind = LocalSegments if folder.is_local else RemoteSegments
    return kind(folder, limits=limits, header=header, complain=complain)
