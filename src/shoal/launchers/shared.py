"""Memory that children inherit: it has no name, so no file can be left behind."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import final

from shoal.forks import blank, gives_up
from shoal.host.limits import within_limits
from shoal.host.temporary import temporary_folder


@final
class SharedBlob:
    """Bytes that this process writes once and every child it starts can map.

    Make it before the children, fill it at any time: only its descriptor is inherited.
    """

    def __init__(self) -> None:
        with within_limits("make memory that processes share"):
            self.descriptor = _make()
        self._is_open = True
        gives_up(self)

    def allocate(self, size: int) -> mmap.mmap:
        """Gives the blob at least this size and returns it, writable.

        It never shrinks: a process that still reads the former end would be killed.

        Raises:
            ClusterError: There is no memory for it, or a limit forbids it.
        """
        with within_limits(f"share {size:,} bytes with the processes of a run"):
            if size > os.fstat(self.descriptor).st_size:
                os.ftruncate(self.descriptor, size)
            return mmap.mmap(self.descriptor, size)

    def give_up(self) -> None:
        """Closes the memory in a fork."""
        if self._is_open:
            blank(self.descriptor)

    def close(self) -> None:
        """Closes the descriptor; mappings stay until they are dropped."""
        self._is_open = False
        os.close(self.descriptor)


def _make() -> int:
    """Opens memory without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("shoal-data")
    # macOS: a file whose name is removed at once
    handle, path = tempfile.mkstemp(prefix="shoal-data-", dir=temporary_folder())
    os.unlink(path)
    return handle


def map_inherited(descriptor: int) -> mmap.mmap:
    """Maps, read-only, a blob whose descriptor was inherited."""
    size = os.fstat(descriptor).st_size
    with within_limits(f"map {size:,} bytes that the driver shares"):
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
