"""What goes through a connection whose ends share no memory: vectors, encoded or not.

This file decides which of them are encoded: messages and replies. What a worker starts
from, or goes back to, goes as it is. So does the mean of a gang's gradients: what one
worker makes of it must be, bit by bit, what all others do.
"""

from __future__ import annotations

from typing import final

import numpy as np

from shoal.engine.bulk import Bulk
from shoal.engine.codec import CODECS, Receiver, Sender
from shoal.strategies.base import Strategy

Parts = tuple[memoryview, ...]


@final
class Parcels:
    """One end of a connection.

    Args:
        bulk: Where vectors lie at this end.
        strategy: Of the run.
        is_server: Which end it is.
    """

    def __init__(self, bulk: Bulk, strategy: Strategy, *, is_server: bool) -> None:
        sizes = bulk.sizes
        codec, count = CODECS[sizes.codec], sizes.vector
        places = not strategy.message_is_change, not strategy.reply_is_change
        comes, goes = places if is_server else places[::-1]
        is_exact = is_server and strategy.exchanges == "gradients"
        self._sender = None if is_exact else Sender(codec, count, is_place=goes)
        self._receiver = Receiver(codec, count, is_place=comes)
        up, down = (bulk.message, bulk.rest_up), (bulk.reply, bulk.rest_down)
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


def parcels_of(bulk: Bulk, strategy: Strategy, *, is_server: bool) -> Parcels | None:
    """Of a connection, None where nothing is encoded.

    Args:
        bulk: Where vectors lie at this end.
        strategy: Of the run.
        is_server: Which end it is.
    """
    if bulk.slot is not None or bulk.sizes.codec not in CODECS:
        return None
    return Parcels(bulk, strategy, is_server=is_server)
