"""Invalid frames for fuzzing, made from valid ones; drawn from a seed.

This file decides what is sent to a server: bytes before the handshake, and frames of a
caller that has a worker's key. Two valid messages are left out, since they change the
run: `ready`, which asks for data, and `failed`, which reports an error of user code.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any, final

from shoal.wire.frames import HEADER, MAGIC, MAX_HEAD_BYTES, Head, pack_head
from shoal.wire.handshake import HELLO_BYTES, Caller

STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, -(2**63), 10**40, 1e308, -0.0,
    float("nan"), float("inf"), "", "0", "x" * 5000, "\x1b[2J\n", "\ud800", [], {},
    [[]], [None], [0] * 300, {"kind": "control"}, [[0, 0, 1, 0]] * 50,
    [[0, -1, 10**20, 0]],
)  # fmt: skip
COMMANDS = (
    "proceed", "expect", "halt", "learning_rate", "center", "state", "checkpoint",
    "ping", "finish", "stop",
)  # fmt: skip
KINDS = ("join", "control", "slot", "need", "push", "snapshot", "refused", *COMMANDS)
DEEP_SHARE = 0.97  # share of a worker's frames that pass all checks of form
DEEP = b"[" * 5000
PRIMES = (
    b"GET / HTTP/1.1\r\nHost: shoal\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    b"SSH-2.0-OpenSSH_9.2\r\n", b"\x00" * 100, b"\xff" * 100,
    b"\x80\x04\x95cos\nsystem",
)  # fmt: skip


@final
class Mutator:
    """Draws the bytes to send.

    Args:
        seed: Seed of all draws.
        key: Key of a worker, see `worker_secret`.
        digest: Digest of the run's sizes.
        metrics: Number of metric states of the run.
        up_bytes: Bytes of a whole message, see `Sizes`.
    """

    def __init__(
        self, seed: int, key: bytes, digest: str, metrics: int, up_bytes: int
    ) -> None:
        self.random = random.Random(seed)
        self._key, self._up_bytes = key, min(up_bytes, 1 << 16)
        self._who = {"digest": digest, "metrics": metrics}
        self._ways: list[Callable[[Head, bytes], bytes]] = [
            self._as_it_is, self._flip, self._cut, self._swell, self._lie, self._rename,
            self._drop, self._distort, self._distort, self._distort, self._distort_deep,
            self._nonsense, self._twice,
        ]  # fmt: skip

    # -------------------------------------------------------------- strangers

    def garbage(self) -> bytes:
        """Returns bytes of a caller without the key; a server must not answer them."""
        draw = self.random
        hello = bytearray(Caller(self._key).hello)
        way = draw.randrange(6)
        if way == 0:
            return draw.randbytes(draw.randrange(1, 3 * HELLO_BYTES))
        if way == 1:
            hello[draw.randrange(len(hello))] ^= draw.randrange(1, 256)
            return bytes(hello)
        if way == 2:
            return Caller(draw.randbytes(32)).hello + self.frame(is_worker=False)
        if way == 3:
            return draw.choice(PRIMES) + draw.randbytes(HELLO_BYTES)
        if way == 4:
            return self.frame(is_worker=True) + bytes(HELLO_BYTES)
        return bytes(hello[::-1]) + bytes(hello)

    def unfinished(self) -> bytes:
        """Returns the beginning of a handshake that is not completed."""
        hello = Caller(self._key).hello
        return hello[: self.random.randrange(HELLO_BYTES)]

    # ------------------------------------------------------------------ peers

    def join(self) -> Head:
        """Returns the first message of a worker."""
        hint = self.random.choice((-1, 0, 5, 9, 10**6, 10**30))
        return {
            "kind": "join", **self._who, "hint": hint, "token": "fuzz", "node": "fuzz",
            "pid": 1, "wants_slot": self.random.random() < 0.2,
        }  # fmt: skip

    def _valid(self, *, is_worker: bool) -> tuple[Head, bytes]:
        draw = self.random
        if not is_worker:
            head = draw.choice((self.join(), {"kind": "control"}))
            return (head, b"") if draw.random() < 0.9 else ({"kind": "need"}, b"")
        kind = draw.choice(("push", "push", "push", "slot", "need", "snapshot", "join"))
        if kind == "slot":
            return {"kind": kind, "is_shared": draw.random() < 0.5}, b""
        if kind == "push":
            start = draw.randrange(1000)
            pieces = [[77, start, start + draw.randrange(100), 0]]
            push = {
                "kind": kind, "lineage": draw.choice((0, 0, 0, 1, 10**9)),
                "sequence": draw.randrange(10), "pieces": pieces, "steps": 1,
                "samples": 8.0, "times": [0.0, 0.0, 0.0, 0.0],
            }  # fmt: skip
            return push, bytes(self._up_bytes)
        if kind == "snapshot":
            return {"kind": kind}, bytes(self._up_bytes + draw.randrange(100))
        return (self.join() if kind == "join" else {"kind": kind}), b""

    def frame(self, *, is_worker: bool) -> bytes:
        """Returns a changed frame of a caller that has the key.

        Args:
            is_worker: Whether the caller has joined.
        """
        if is_worker and self.random.random() < DEEP_SHARE:
            return self._plausible()
        return self.random.choice(self._ways)(*self._valid(is_worker=is_worker))

    def _plausible(self) -> bytes:
        """Returns a push of plausible numbers, all of them wrong."""
        draw = self.random
        pieces = [
            [77 + draw.randrange(9), *(draw.randrange(-9, 10**6) for _ in range(3))]
            for _ in range(draw.randrange(5))
        ]
        head = {
            "kind": "push", "lineage": draw.randrange(-1, 3), "pieces": pieces,
            "sequence": draw.randrange(2**31), "steps": draw.randrange(1, 99),
            "samples": draw.random() * 1e6, "times": [draw.random() for _ in range(4)],
        }  # fmt: skip
        return self._as_it_is(head, bytes(self._up_bytes * (draw.random() < 0.1)))

    def _as_it_is(self, head: Head, body: bytes) -> bytes:
        if head["kind"] == "join":  # a valid frame would add a worker
            head = {**head, "digest": "another"}
        return pack_head(head, len(body)) + body

    def _flip(self, head: Head, body: bytes) -> bytes:
        data = bytearray(self._as_it_is(head, body))
        for _ in range(self.random.choice((1, 1, 2, 8))):
            data[self.random.randrange(min(len(data), 400))] ^= (
                1 << self.random.randrange(8)
            )
        return bytes(data)

    def _cut(self, head: Head, body: bytes) -> bytes:
        data = self._as_it_is(head, body)
        return data[: self.random.randrange(1, len(data))]

    def _swell(self, head: Head, body: bytes) -> bytes:
        return self._as_it_is(head, body) + self.random.randbytes(40)

    def _lie(self, head: Head, body: bytes) -> bytes:
        """Writes other sizes into the header."""
        data = self._as_it_is(head, body)
        draw = self.random
        head_bytes = draw.choice((0, 1, len(data), MAX_HEAD_BYTES, 2**31, 2**32 - 1))
        body_bytes = draw.choice((0, 1, len(body), 1 << 20, 1 << 40, 2**64 - 1))
        magic = draw.choice((MAGIC, MAGIC, MAGIC, b"SHL0", b"\x00" * 4))
        return struct.pack("!4sIQ", magic, head_bytes, body_bytes) + data[HEADER.size :]

    def _rename(self, head: Head, body: bytes) -> bytes:
        return self._as_it_is({**head, "kind": self.random.choice(KINDS)}, body)

    def _drop(self, head: Head, body: bytes) -> bytes:
        lost = self.random.choice(list(head))
        left = {key: value for key, value in head.items() if key != lost}
        return pack_head(left, len(body)) + body

    def _distort(self, head: Head, body: bytes) -> bytes:
        key = self.random.choice(list(head))
        return pack_head({**head, key: self.random.choice(STRANGE)}, len(body)) + body

    def _distort_deep(self, head: Head, body: bytes) -> bytes:
        """Changes one value of an inner list, else the numbers of rows and steps."""
        draw = self.random
        head = json.loads(json.dumps(head))
        inner = [value for value in head.values() if isinstance(value, list) and value]
        if not inner:
            return self._distort(head, body)
        chosen = draw.choice(inner)
        while isinstance(chosen[0], list) and draw.random() < 0.8:
            chosen = chosen[0]
        chosen[draw.randrange(len(chosen))] = draw.choice(STRANGE)
        return pack_head(head, len(body)) + body

    def _nonsense(self, _head: Head, body: bytes) -> bytes:
        draw = self.random
        text = draw.choice((
            DEEP, b"", b"[]", b"null", b'{"kind":1}', b'{"kind":"push"',
            b"\xff\xfe\x00", b'{"kind":"push","kind":"need"}', b"1" * 5000,
            draw.randbytes(60),
        ))  # fmt: skip
        return HEADER.pack(MAGIC, len(text), len(body)) + text + body

    def _twice(self, head: Head, body: bytes) -> bytes:
        return 2 * self._as_it_is(head, body)
