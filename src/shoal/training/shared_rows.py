"""Rows for other processes: arrays in memory that they map, chunks that they read."""

from __future__ import annotations

from shoal.data import ArraySource, Source
from shoal.engine.worker.factories import OpenChunks, OpenMapped
from shoal.launchers.shared import SharedBlob
from shoal.models.pickling import dumps


def write_data(source: Source, blob: SharedBlob) -> None:
    """Writes arrays to memory that children map; chunks are read by workers."""
    if not isinstance(source, ArraySource):
        return
    with blob.allocate(source.blob_size()) as memory:
        source.write_blob(memory)


def opening(source: Source, blob: SharedBlob) -> OpenMapped | OpenChunks:
    """Returns how workers open the rows that `write_data` writes."""
    if isinstance(source, ArraySource):
        return OpenMapped(descriptor=blob.descriptor)
    return OpenChunks(source=dumps(source))
