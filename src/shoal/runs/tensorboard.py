"""Scalars for TensorBoard, written without TensorBoard. Decides their names and bytes.

The format is small and frozen: a file of TFRecords, each a protobuf message
`Event`. Writing it here keeps TensorBoard (with gRPC and protobuf) out
of the core; the tests read it back with TensorBoard itself.

Names and folders are those of Keras' own callback: `train/` and `validation/`,
tags `epoch_loss`, `epoch_accuracy`. The load of a machine in an epoch goes to
`nodes/NODE`: tags `cores_mean_percent`, `GPU_0_most_memory_mib`.

References:
    tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto,
    tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from itertools import groupby
from typing import Any, final

from shoal.crc32c import masked_crc32c
from shoal.host.private import alike
from shoal.paths import name_of
from shoal.runs.folder import Folder
from shoal.runs.use import Use

TRAIN, VALIDATION, NODES = "train", "validation", "nodes"


def record(payload: bytes) -> bytes:
    """Frames one TFRecord: length, its checksum, the payload, its checksum."""
    length = struct.pack("<Q", len(payload))
    return length + _masked(length) + payload + _masked(payload)


def scalar_event(time: float, step: int, scalars: Mapping[str, float]) -> bytes:
    """Encodes an `Event` with a summary of simple values.

    Args:
        time: Unix seconds.
        step: Number of the step, not negative.
        scalars: Values by tag.
    """
    values = b"".join(
        _message(1, _text(1, tag) + _key(2, 5) + struct.pack("<f", value))
        for tag, value in scalars.items()
    )
    return _time(time) + _key(2, 0) + _varint(step) + _message(5, values)


def version_event(time: float) -> bytes:
    """Encodes the first `Event` of every file."""
    return _time(time) + _text(3, "brain.Event:2")


@final
class ScalarWriter:
    """Writes the metrics of epochs into the `tensorboard` folder of a run.

    On local disks one file a folder grows; elsewhere each epoch becomes a file of
    its own, which TensorBoard reads one after the other.

    Args:
        folder: Folder that TensorBoard reads.

    Example:
        >>> folder = Folder.at("memory://doctest-scalars")
        >>> writer = ScalarWriter(folder)
        >>> writer.write_epoch(1763712000.0, 0, {"loss": 0.5, "val_loss": 0.6})
        >>> folder.names()
        ['train', 'validation']
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._files: dict[str, int] = {}
        self._began: float | None = None
        self._use = Use()

    def write_epoch(self, time: float, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Writes the metrics of one epoch, those named `val_...` as validation.

        Args:
            time: Unix seconds.
            epoch: Number of the epoch, 0 for the first.
            metrics: Metrics by name; values that are not numbers are left out.

        Raises:
            OSError: The storage refuses.
        """
        parts: dict[str, dict[str, float]] = {TRAIN: {}, VALIDATION: {}}
        for name, value in metrics.items():
            if isinstance(value, (int, float)):
                part = VALIDATION if name.startswith("val_") else TRAIN
                parts[part][f"epoch_{name.removeprefix('val_')}"] = float(value)
        for part, scalars in parts.items():
            if scalars:
                self._write(part, time, record(scalar_event(time, epoch, scalars)))
        if parts[TRAIN]:  # not a validation that finished later
            self._write_use(time, epoch)

    def note_use(self, event: Mapping[str, Any]) -> None:
        """Adds the load of a machine; its means are written with the next epoch."""
        self._use.add(event)

    def _write_use(self, time: float, epoch: int) -> None:
        """Writes the load of machines since the last epoch, one entry a part."""
        use, self._use = self._use, Use()
        for node, rows in groupby(use.rows(), lambda row: row["node"]):
            scalars = {
                f"{row['what'].replace(' ', '_')}_{name}": float(row[name])
                for row in rows
                for name in ("mean_percent", "most_memory_mib")
                if row.get(name) is not None
            }
            if scalars:
                part = f"{NODES}/{name_of(node)}"
                self._write(part, time, record(scalar_event(time, epoch, scalars)))

    def _write(self, part: str, time: float, content: bytes) -> None:
        if self._began is None:
            self._began = time
        count = self._files.get(part, 0)
        self._files[part] = count + 1
        start = f"{part}/events.out.tfevents.{int(self._began):010d}"
        name = f"{start}.{name_of(socket.gethostname())}"
        head = record(version_event(time))
        if not self._folder.is_local:
            self._folder.write(f"{name}.{count:06d}", head + content)
            return
        path = self._folder.local_path(name)
        with open(path, "ab", opener=alike) as file:
            file.write(content if file.tell() else head + content)


def _masked(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _message(field: int, content: bytes) -> bytes:
    return _key(field, 2) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode())


def _time(time: float) -> bytes:
    return _key(1, 1) + struct.pack("<d", time)
