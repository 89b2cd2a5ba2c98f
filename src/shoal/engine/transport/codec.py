"""Vectors in fewer bytes, for links between hosts. Pure.

A codec rounds. What it leaves out of one message goes into the next one of the same
connection, so that rounding delays what is said and loses none of it: see `Sender`.
Messages and replies are encoded. Vectors in memory that both ends map are not, nor is
what a worker starts from or goes back to, nor the mean of gradients: all workers must
make the same of it, bit by bit.

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
LARGEST = np.float32(2.0**120)  # of what is encoded; anything beyond is sent as it is


class Codec(ABC):
    """How floats become bytes, and bytes floats again."""

    name: ClassVar[str]

    @abstractmethod
    def size(self, count: int) -> int:
        """Bytes of so many floats."""

    @abstractmethod
    def encode(self, values: Vector, out: Bytes) -> None:
        """Writes values.

        Args:
            values: `(count,)`, none beyond `LARGEST`.
            out: `(size(count),)`.
        """

    @abstractmethod
    def decode(self, data: Bytes) -> Vector:
        """Reads values, `(count,)`; any bytes make some.

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
        """Rounds by whole numbers: half of the last place that stays is added."""
        bits = values.view(np.uint32)
        rounded = bits >> np.uint32(16)
        rounded &= np.uint32(1)
        rounded += np.uint32(0x7FFF)
        rounded += bits
        rounded >>= np.uint32(16)
        out.view(np.uint16)[:] = rounded

    def decode(self, data: Bytes) -> Vector:
        """Puts the lower half to zero."""
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
        """One byte each, and the scales."""
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
        """Multiplies."""
        blocks = -(-data.size // (BLOCK + 4))
        count = data.size - 4 * blocks
        scales = data[: 4 * blocks].view(np.float32)
        whole = np.zeros((blocks, BLOCK), np.float32)
        whole.reshape(-1)[:count] = data[4 * blocks :].view(np.int8)
        with np.errstate(over="ignore", invalid="ignore"):
            whole *= scales[:, None]
        return whole.reshape(-1)[:count]


CODECS: dict[str, Codec] = {codec.name: codec for codec in (Bfloat16(), Int8())}
"""By name; "float32" is none."""


def coded_size(codec: Codec, count: int) -> int:
    """Bytes of a vector of so many floats, which is encoded by segments."""
    return sum(codec.size(part.stop - part.start) for part in segments(count))


@final
class Sender:
    """Encodes the vectors of one connection, in turn.

    Of changes (gradients, deltas, displacements) it adds what it left out of the last
    one. Of places (weights) it sends the difference from what the other end has: the
    first goes as it is.

    Args:
        codec: How.
        count: Floats of each.
        is_place: Whether they say where something is, and not how far it went.
    """

    def __init__(self, codec: Codec, count: int, *, is_place: bool) -> None:
        self._codec, self._is_place = codec, is_place
        self._memory: Vector | None = None if is_place else np.zeros(count, np.float32)
        self._out = np.empty(coded_size(codec, count), np.uint8)

    def pack(self, values: Vector) -> memoryview | None:
        """Encodes a vector; None where it has to be sent as it is.

        Args:
            values: `(count,)`; they stay as they are.
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
            said = self._codec.decode(data)
            if self._is_place:
                old += said
            else:
                np.subtract(wanted, said, out=old)
            at += data.size
        return self._out.data

    def sent(self, values: Vector) -> None:
        """The other end has a vector as it is, or will.

        What was left out of changes is still to be said: it was of others.
        """
        if self._is_place:  # to what is huge nothing can be added
            self._memory = values.copy() if _is_moderate(values) else None


def _is_moderate(values: Vector) -> bool:
    """Whether all are finite, and none is huge."""
    return all(
        bool(values[part].min() > -LARGEST and values[part].max() < LARGEST)
        for part in segments(values.size)
    )


@final
class Receiver:
    """Decodes what a `Sender` encoded.

    Args:
        codec: How.
        count: Floats of each.
        is_place: As the sender has it.
    """

    def __init__(self, codec: Codec, count: int, *, is_place: bool) -> None:
        self._codec, self._is_place = codec, is_place
        self.size = coded_size(codec, count)
        """Bytes of each."""

    def unpack(self, data: memoryview, into: Vector) -> None:
        """Decodes a vector.

        Args:
            data: Bytes of it, `size`.
            into: Where it goes; of places, the last one lies there.
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
        buffers: Where vectors lie at this end.
        strategy: Of the run.
        is_server: Which end it is.
    """

    def __init__(
        self, buffers: Buffers, strategy: Strategy, *, is_server: bool
    ) -> None:
        sizes = buffers.sizes
        codec, count = CODECS[sizes.codec], sizes.vector
        places = not strategy.message_is_change, not strategy.reply_is_change
        comes, goes = places if is_server else places[::-1]
        is_exact = is_server and strategy.exchanges == "gradients"
        self._sender = None if is_exact else Sender(codec, count, is_place=goes)
        self._receiver = Receiver(codec, count, is_place=comes)
        up, down = (
            (buffers.message, buffers.rest_up),
            (buffers.reply, buffers.rest_down),
        )
        (self._in, self._in_rest), (self._out, self._out_rest) = (
            (up, down) if is_server else (down, up)
        )
        size = sizes.up_bytes if is_server else sizes.down_bytes
        self.landing = np.empty(size, np.uint8).data
        """Where bodies are received: the last vector is needed to decode the next."""

    def pack(self) -> Parts | None:
        """Parts of a frame with the vector that lies there, and what is beside it.

        Returns:
            None where it has to go as it is.
        """
        coded = None if self._sender is None else self._sender.pack(self._out)
        return None if coded is None else (coded, self._out_rest)

    def sent(self) -> None:
        """The vector that lies there goes as it is."""
        if self._sender is not None:
            self._sender.sent(self._out)

    def unpack(self, body: memoryview) -> int:
        """Takes a vector that was encoded, and what is beside it.

        Returns:
            How much of `body` that was.

        Raises:
            ValueError: It is too short.
        """
        size, rest = self._receiver.size, len(self._in_rest)
        if len(body) < size + rest:
            raise ValueError(f"{len(body)} bytes of an encoded vector")
        self._receiver.unpack(body[:size], self._in)
        self._in_rest[:] = body[size : size + rest]
        return size + rest


def connection_codec(
    buffers: Buffers, strategy: Strategy, *, is_server: bool
) -> ConnectionCodec | None:
    """Of a connection, None where nothing is encoded.

    Args:
        buffers: Where vectors lie at this end.
        strategy: Of the run.
        is_server: Which end it is.
    """
    if buffers.slot is not None or buffers.sizes.codec not in CODECS:
        return None
    return ConnectionCodec(buffers, strategy, is_server=is_server)
