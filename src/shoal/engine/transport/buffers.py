"""Memory of the vectors of one exchange: a slot, or a buffer for the socket.

A worker's message is weights or gradients, then statistics, then sums of its
metrics' states; a reply is weights or gradients, then statistics.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.engine.transport.shared_memory import Slot
from shoal.vectors import Vector

SPARE_BYTES = 1 << 20  # some codecs take more bytes than the vectors if those are short
_LINE = 64  # bytes of a cache line; also what XLA wants for zero-copy arrays


def _aligned(size: int) -> int:
    return -(-size // _LINE) * _LINE


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of messages; both ends compare them and the digest.

    Args:
        vector: Trainable floats.
        statistics: Floats of the statistics.
        metrics: Sums of metric state, float64.
        digest: Digest of the layout.
        codec: Codec of vectors that go through a socket, see `codec.py`.
        state: Most bytes of a worker's state beside the vectors, from
            `Backend.snapshot`: of its optimizer and its other local state.
    """

    vector: int
    statistics: int
    metrics: int
    digest: str
    codec: str = "float32"
    state: int = 0

    @property
    def up_bytes(self) -> int:
        """Bytes of a worker's message."""
        body = _aligned(4 * self.vector) + _aligned(4 * self.statistics)
        return body + _aligned(8 * self.metrics)

    @property
    def down_bytes(self) -> int:
        """Bytes of a reply."""
        return _aligned(4 * self.vector) + _aligned(4 * self.statistics)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot: one message and one reply."""
        return self.up_bytes + self.down_bytes

    @property
    def frame_bytes(self) -> int:
        """Most bytes of a frame that a worker sends: its whole state."""
        return self.up_bytes + self.state_bytes

    @property
    def state_bytes(self) -> int:
        """Most bytes of a worker's state that a server takes."""
        return self.state + SPARE_BYTES


def aligned_bytes(size: int) -> npt.NDArray[np.uint8]:
    """Writable bytes that start at a cache line, touched once to allocate them."""
    raw = np.zeros(size + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    return raw[start : start + size]


class Buffers:
    """Views of one connection's message and reply.

    Args:
        sizes: Sizes of the run.
        slot: Shared memory, or None for private buffers that go over the socket.
    """

    def __init__(self, sizes: Sizes, slot: Slot | None) -> None:
        self.sizes, self.slot = sizes, slot
        if slot is None:
            memory = aligned_bytes(sizes.slot_bytes).data.cast("B")
        else:
            memory = slot.bytes
        down = memory[sizes.up_bytes : sizes.slot_bytes]
        self._divide(memory[: sizes.up_bytes], down)

    def part(self, of: slice, sizes: Sizes) -> Buffers:
        """Views of a part of the vectors, without statistics and metrics.

        Args:
            of: Range of the vector; it begins at a cache line.
            sizes: Sizes of the part.
        """
        found = Buffers.__new__(Buffers)  # without memory of its own
        found.sizes, found.slot = sizes, None
        start = 4 * of.start
        found._divide(
            self.up[start : start + sizes.up_bytes],
            self.down[start : start + sizes.down_bytes],
        )
        return found

    def _divide(self, up: memoryview, down: memoryview) -> None:
        sizes = self.sizes
        self.up, self.down = up, down
        at = _aligned(4 * sizes.vector)
        after = at + _aligned(4 * sizes.statistics)
        vector, statistics = sizes.vector, sizes.statistics
        self.message: Vector = np.frombuffer(up, np.float32, vector)
        self.message_statistics: Vector = np.frombuffer(up, np.float32, statistics, at)
        self.metrics: npt.NDArray[np.float64] = np.frombuffer(
            up, np.float64, sizes.metrics, after
        )
        self.rest_up, self.rest_down = up[at:], self.down[at:]
        """Bytes beside the vectors."""
        self.reply: Vector = np.frombuffer(down, np.float32, vector)
        self.reply_statistics: Vector = np.frombuffer(down, np.float32, statistics, at)

    @property
    def inline_up(self) -> memoryview:
        """Bytes that a message adds to its frame: none with a slot."""
        return self.up if self.slot is None else self.up[:0]

    @property
    def inline_down(self) -> memoryview:
        """Bytes that a reply adds to its frame: none with a slot."""
        return self.down if self.slot is None else self.down[:0]

    def close(self) -> None:
        """Gives the slot back."""
        empty32, empty64 = np.empty(0, np.float32), np.empty(0, np.float64)
        self.message = self.message_statistics = empty32
        self.reply = self.reply_statistics = empty32
        self.metrics = empty64
        for part in (self.rest_up, self.rest_down, self.up, self.down):
            with contextlib.suppress(BufferError):  # a program still reads its input
                part.release()
        if self.slot is not None:
            self.slot.close()
