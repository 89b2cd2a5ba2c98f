"""The handshake: two ends prove that they know the secret of a run. Pure.

The caller speaks first, and its first message already needs the secret, so that
a caller without it gets no answer at all:

    caller -> server    HELLO, nonce c, tag("hello", c)
    server -> caller    nonce s, tag("server", c, s)
    caller -> server    tag("caller", s, c), then frames

Workers have a key of their own, made from the secret: it lets them join, but
not command a server as a controller does.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final, final

HELLO = b"SHG1"  # no TLS record starts like this, so that each end can tell at once
NONCE_BYTES = 32
TAG_BYTES = 32
HELLO_BYTES = len(HELLO) + NONCE_BYTES + TAG_BYTES
ANSWER_BYTES = NONCE_BYTES + TAG_BYTES


class NoProof(Exception):
    """The other end does not know the secret."""


def tag(key: bytes, *parts: bytes) -> bytes:
    """Returns a tag of these parts that only holders of the key can make."""
    return hmac.digest(key, b"".join(parts), "sha256")


def worker_secret(secret: bytes) -> bytes:
    """Returns the key that workers prove: it lets them join, and nothing else.

    Args:
        secret: Secret of the run, known to its controller and its servers.
    """
    return tag(secret, b"worker")


@final
class Caller:
    """The caller's side of the handshake.

    Args:
        key: The run's secret, or the result of `worker_secret`.
    """

    def __init__(self, key: bytes) -> None:
        self._key, self._nonce = key, secrets.token_bytes(NONCE_BYTES)
        self.hello: Final = HELLO + self._nonce + tag(key, b"hello", self._nonce)
        """The caller's first message."""

    def prove(self, answer: bytes) -> bytes:
        """Returns the proof after a server's answer.

        Raises:
            NoProof: The server does not know the key.
        """
        theirs, shown = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        if not hmac.compare_digest(
            shown, tag(self._key, b"server", self._nonce, theirs)
        ):
            raise NoProof("the server does not know this run's secret")
        return tag(self._key, b"caller", theirs, self._nonce)


@final
class Callee:
    """The server's side of the handshake.

    Args:
        secret: Secret of the run.

    Attributes:
        is_commander: Whether the caller knows the run's secret, not just the workers'
            key.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret, self._proof = secret, b""
        self.is_commander = False

    def answer(self, hello: bytes) -> bytes:
        """Returns the answer to a caller's first message.

        Raises:
            NoProof: The caller does not know the secret.
        """
        start, nonce, shown = (
            hello[: len(HELLO)],
            hello[len(HELLO) : -TAG_BYTES],
            hello[-TAG_BYTES:],
        )
        keys = (worker_secret(self._secret), self._secret)
        for key in keys:
            is_right = hmac.compare_digest(shown, tag(key, b"hello", nonce))
            if is_right and start == HELLO and len(hello) == HELLO_BYTES:
                mine = secrets.token_bytes(NONCE_BYTES)
                self._proof = tag(key, b"caller", mine, nonce)
                self.is_commander = key == self._secret
                return mine + tag(key, b"server", nonce, mine)
        raise NoProof("the caller does not know this run's secret")

    def check(self, proof: bytes) -> None:
        """Checks the caller's proof after the answer.

        Raises:
            NoProof: The handshake was replayed.
        """
        if not self._proof or not hmac.compare_digest(proof, self._proof):
            raise NoProof("the caller does not know this run's secret")
