"""Vectors in fewer bytes, for connections between hosts. Pure.

A codec rounds. The error of one message is added to the next one of the same
connection, so rounding delays values and loses none: see `VectorEncoder`. Messages and
replies are encoded. Vectors in memory that both ends map are not, nor is a worker's
start or restored state, nor the mean of gradients: all workers must compute the same
from it, bit by bit.

References:
    Seide et al. (2014), 1-Bit Stochastic Gradient Descent: the error of a message is
    added to the next one.
    Richtarik, Sokolov, Fatkhullin (2021), arXiv:2106.05203, EF21: what is sent is the
    difference from what the other end has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, final

import numpy as np
import numpy.typing as npt

from shoal.engine.transport.buffers import Buffers
from shoal.engine.transport.segments import segments
from shoal.strategies.base import Strategy
from shoal.vectors import Vector

Bytes = npt.NDArray[np.uint8]
BLOCK = 256  # floats that share a scale
# Largest number that is encoded; vectors beyond it are sent unencoded.
LARGEST = np.float32(2.0**120)


class Codec(ABC):
    """Encodes floats as bytes, and decodes them."""

    name: ClassVar[str]

    @abstractmethod
    def size(self, count: int) -> int:
        """Bytes of a number of floats."""

    @abstractmethod
    def encode(self, values: Vector, out: Bytes) -> None:
        """Writes values.

        Args:
            values: `(count,)`, none beyond `LARGEST`.
            out: `(size(count),)`.
        """

    @abstractmethod
    def decode(self, data: Bytes) -> Vector:
        """Reads values, `(count,)`; any bytes are valid.

        Args:
            data: `(size(count),)`.
        """


@final
class Bfloat16(Codec):
    """The upper half of each float, rounded to the nearest, ties to even: 2 bytes.

    Example:
        >>> codec, data = Bfloat16(), np.empty(4, "u1")
        >>> codec.encode(np.array([1.001, -3.0], "f4"), data)
        >>> codec.decode(data)
        array([ 1., -3.], dtype=float32)
    """

    name: ClassVar[str] = "bfloat16"

    def size(self, count: int) -> int:
        """Two bytes each."""
        return 2 * count

    def encode(self, values: Vector, out: Bytes) -> None:
        """Rounds as whole numbers: adds half of the last place that stays."""
        # 0x7FFF alone rounds ties down. The last place that stays is added to it, so
        # that ties go to even numbers, up as often as down.
        bits = values.view(np.uint32)
        rounded = bits >> np.uint32(16)
        rounded &= np.uint32(1)
        rounded += np.uint32(0x7FFF)
        rounded += bits
        rounded >>= np.uint32(16)
        out.view(np.uint16)[:] = rounded

    def decode(self, data: Bytes) -> Vector:
        """Sets the lower half to zero."""
        bits = data.view(np.uint16).astype(np.uint32)
        bits <<= np.uint32(16)
        return bits.view(np.float32)


@final
class Int8(Codec):
    """Whole numbers from -127 to 127, times a scale for each 256 of them.

    The scale is a 127th of the largest of its block, so an error is at most a 254th of
    that. 1 byte each, and 4 for each scale.

    Example:
        >>> codec = Int8()
        >>> data = np.empty(codec.size(3), "u1")
        >>> codec.encode(np.array([127.0, -1.4, 0.0], "f4"), data)
        >>> codec.decode(data)
        array([127.,  -1.,   0.], dtype=float32)
    """

    name: ClassVar[str] = "int8"

    def size(self, count: int) -> int:
        """Bytes of the numbers, one each, and of the scales."""
        return 4 * -(-count // BLOCK) + count

    def encode(self, values: Vector, out: Bytes) -> None:
        """Divides by the block's scale, and rounds to the nearest, ties to even."""
        blocks = -(-values.size // BLOCK)
        whole = np.zeros((blocks, BLOCK), np.float32)
        whole.reshape(-1)[: values.size] = values
        scales = np.maximum(whole.max(axis=1), -whole.min(axis=1))
        scales /= np.float32(127)
        out[: 4 * blocks].view(np.float32)[:] = scales
        # A block of zeros, or next to it, has no scale to divide by.
        with np.errstate(divide="ignore", over="ignore"):
            inverse = np.where(scales > np.float32(1e-37), 1 / scales, np.float32(0))
        whole *= inverse[:, None]
        np.rint(whole, out=whole)
        out[4 * blocks :].view(np.int8)[:] = whole.reshape(-1)[: values.size]

    def decode(self, data: Bytes) -> Vector:
        """Multiplies by the scales."""
        blocks = -(-data.size // (BLOCK + 4))
        count = data.size - 4 * blocks
        scales = data[: 4 * blocks].view(np.float32)
        whole = np.zeros((blocks, BLOCK), np.float32)
        whole.reshape(-1)[:count] = data[4 * blocks :].view(np.int8)
        with np.errstate(over="ignore", invalid="ignore"):
            whole *= scales[:, None]
        return whole.reshape(-1)[:count]


CODECS: dict[str, Codec] = {codec.name: codec for codec in (Bfloat16(), Int8())}
"""Codecs by name; "float32" has none."""


def coded_size(codec: Codec, count: int) -> int:
    """Bytes of a vector, which is encoded by segments."""
    return sum(codec.size(part.stop - part.start) for part in segments(count))


@final
class VectorEncoder:
    """Encodes the vectors of one connection, one after the other.

    To a change (gradient, delta, displacement) it adds the error of the last one. For
    a place (weights) it sends the difference from what the other end has; the first one
    goes unencoded.

    Args:
        codec: Codec of the values.
        count: Floats of each vector.
        is_place: The vectors are places, not changes.
    """

    def __init__(self, codec: Codec, count: int, *, is_place: bool) -> None:
        self._codec, self._is_place = codec, is_place
        self._memory: Vector | None = None if is_place else np.zeros(count, np.float32)
        self._out = np.empty(coded_size(codec, count), np.uint8)

    def pack(self, values: Vector) -> memoryview | None:
        """Encodes a vector; returns None if it must be sent unencoded.

        Args:
            values: Vector `(count,)`; it is not changed.
        """
        memory = self._memory
        if memory is None or not _is_moderate(values):
            self.sent(values)
            return None
        at = 0
        for part in segments(values.size):
            new, old = values[part], memory[part]
            wanted = new - old if self._is_place else new + old
            data = self._out[at : at + self._codec.size(wanted.size)]
            self._codec.encode(wanted, data)
            # What the other end will have. The difference is the error that the next
            # vector makes good.
            said = self._codec.decode(data)
            if self._is_place:
                old += said
            else:
                np.subtract(wanted, said, out=old)
            at += data.size
        return self._out.data

    def sent(self, values: Vector) -> None:
        """Records that a vector is sent unencoded.

        The error of changes stays: it belongs to others.
        """
        if self._is_place:  # a difference from a huge vector cannot be added
            self._memory = values.copy() if _is_moderate(values) else None


def _is_moderate(values: Vector) -> bool:
    """Whether all numbers are finite, and none is huge."""
    return all(
        bool(values[part].min() > -LARGEST and values[part].max() < LARGEST)
        for part in segments(values.size)
    )


@final
class VectorDecoder:
    """Decodes vectors from a `VectorEncoder`.

    Args:
        codec: Codec of the values.
        count: Floats of each vector.
        is_place: The sender's value.
    """

    def __init__(self, codec: Codec, count: int, *, is_place: bool) -> None:
        self._codec, self._is_place = codec, is_place
        self.size = coded_size(codec, count)
        """Bytes of each vector."""

    def unpack(self, data: memoryview, into: Vector) -> None:
        """Decodes a vector.

        Args:
            data: Bytes of the vector, `size`.
            into: Memory for the result; for places, it contains the last one.
        """
        coded, at = np.frombuffer(data, np.uint8), 0
        for part in segments(into.size):
            taken = self._codec.size(part.stop - part.start)
            said = self._codec.decode(coded[at : at + taken])
            if self._is_place:
                into[part] += said
            else:
                into[part] = said
            at += taken


Parts = tuple[memoryview, ...]


@final
class ConnectionCodec:
    """One end of a connection.

    Args:
        buffers: Memory of the vectors at this end.
        strategy: Strategy of the run.
        is_server: This end is the server's.
    """

    def __init__(
        self, buffers: Buffers, strategy: Strategy, *, is_server: bool
    ) -> None:
        sizes = buffers.sizes
        codec, count = CODECS[sizes.codec], sizes.vector
        places = not strategy.message_is_change, not strategy.reply_is_change
        comes, goes = places if is_server else places[::-1]
        is_exact = is_server and strategy.exchanges == "gradients"
        self._encoder = None if is_exact else VectorEncoder(codec, count, is_place=goes)
        self._decoder = VectorDecoder(codec, count, is_place=comes)
        up, down = (
            (buffers.message, buffers.rest_up),
            (buffers.reply, buffers.rest_down),
        )
        (self._in, self._in_rest), (self._out, self._out_rest) = (
            (up, down) if is_server else (down, up)
        )
        size = sizes.up_bytes if is_server else sizes.down_bytes
        self.landing = np.empty(size, np.uint8).data
        """Memory in which bodies are received: decoding needs the last vector."""

    def pack(self) -> Parts | None:
        """Returns parts of a frame: the encoded vector, and the bytes beside it.

        Returns:
            None if it must be sent unencoded.
        """
        coded = None if self._encoder is None else self._encoder.pack(self._out)
        return None if coded is None else (coded, self._out_rest)

    def sent(self) -> None:
        """Records that the vector is sent unencoded."""
        if self._encoder is not None:
            self._encoder.sent(self._out)

    def unpack(self, body: memoryview) -> int:
        """Decodes a vector, and copies the bytes beside it.

        Returns:
            Number of bytes of `body` that were used.

        Raises:
            ValueError: `body` is too short.
        """
        size, rest = self._decoder.size, len(self._in_rest)
        if len(body) < size + rest:
            raise ValueError(f"{len(body)} bytes of an encoded vector")
        self._decoder.unpack(body[:size], self._in)
        self._in_rest[:] = body[size : size + rest]
        return size + rest


def connection_codec(
    buffers: Buffers, strategy: Strategy, *, is_server: bool
) -> ConnectionCodec | None:
    """Returns a connection's codec, None without encoding.

    Args:
        buffers: Memory of the vectors at this end.
        strategy: Strategy of the run.
        is_server: This end is the server's.
    """
    if buffers.slot is not None or buffers.sizes.codec not in CODECS:
        return None
    return ConnectionCodec(buffers, strategy, is_server=is_server)
