"""A worker's way around the server, where all workers share a machine's memory.

Each lays its gradient where the others can read it, and makes the mean for itself. The
server is told before the others are, and still decides which steps count: so whoever
waits here may as well hear from the server that somebody will not come.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from shoal.backends.group import LIMIT_S, GroupBroken
from shoal.engine.bulk import aligned_bytes
from shoal.engine.instructions import Group
from shoal.engine.slots import Slot
from shoal.engine.spread import segments
from shoal.vectors import Vector

_LINE = 64
_NOTE = struct.Struct("<qd")  # step, mass
_CALL = b"!"
_MOST_CALLS = 64
_LENGTH = struct.Struct("<I")
_MOST_WORDS = 1 << 12
_PAUSE_S = 0.005
SEGMENT = 1 << 17  # floats; shorter ones cost more in Python than in the cache


@dataclass(frozen=True, kw_only=True)
class SharedLaneSpec:
    """How the workers of one machine come together.

    Args:
        folder: Where they find each other; nobody else may enter it.
    """

    folder: Path


@final
class SharedLane:
    """Averages gradients in groups, one after the other.

    Args:
        spec: How to come into one.
        size: Floats of the vectors.
    """

    def __init__(self, spec: SharedLaneSpec, size: int) -> None:
        self._spec, self._size = spec, size
        self._mean = aligned_bytes(4 * size).view(np.float32)
        self._table: Table | None = None
        self._name = ""

    @property
    def room(self) -> Vector | None:
        """Where a gradient lies best, None where that is with the server's."""
        return None if self._table is None else self._table.room

    def enter(
        self,
        group: Group,
        lineage: int,
        rank: int,
        busy: Callable[[], AbstractContextManager[None]],
    ) -> bool:
        """Joins a group, unless this worker is in it; whether it is then.

        Args:
            group: That takes the step.
            lineage: Of the run; a new server counts groups from the start.
            rank: Of this worker.
            busy: Around what takes as long as others take to come.
        """
        name = f"{lineage}-{group.generation}"
        if name != self._name:
            self.close()
            self._name, place = name, group.ranks.index(rank)
            folder, size = self._spec.folder / name, len(group.ranks)
            try:
                with busy():
                    self._table = meet(folder, place, size, self._size)
                self._note(f"formed by {size} workers, in shared memory")
            except GroupBroken as error:
                self._note(f"was not formed: {error}")
        return self._table is not None

    def put(self, gradient: Vector, mass: float) -> None:
        """Lays down what this worker has for the next step.

        Args:
            gradient: The sum over its samples; it stays as it is.
            mass: What it weighs.
        """
        self._at_table.put(gradient, mass)

    def call(self) -> None:
        """Tells the others that it lies there."""
        self._at_table.call()

    def wait(self, server: int) -> bool:
        """Waits until all have called; False once the server says something instead.

        Args:
            server: Descriptor of the connection to it.
        """
        return self._at_table.wait(server)

    def mean(self) -> Vector:
        """The mean of a step that all have laid something down for, a view."""
        self._at_table.add_up(self._mean)
        return self._mean

    @property
    def _at_table(self) -> Table:
        if self._table is None:
            raise RuntimeError("this worker is in no group")
        return self._table

    def _note(self, text: str) -> None:
        """For the worker's log."""
        print(f"group {self._name} {text}", flush=True)  # noqa: T201

    def close(self) -> None:
        """Leaves the group, if there is one."""
        table, self._table = self._table, None
        if table is not None:
            table.close()


@final
@dataclass(eq=False)
class Line:
    """To another member of a group.

    Args:
        socket: Connected to it.
        calls: That have come: one for each step that it has laid something down for.
        is_gone: It has left.
    """

    socket: socket.socket
    calls: int = 0
    is_gone: bool = False

    def call(self) -> None:
        """Says that there is something to read."""
        with suppress(OSError):  # it is gone, which the server will tell
            self.socket.send(_CALL)

    def has_called(self, step: int) -> bool:
        """Whether it has laid down what it has for a step."""
        try:
            got = self.socket.recv(_MOST_CALLS)
        except BlockingIOError:
            got = None
        except OSError:
            got = b""
        if got is not None:
            self.calls += len(got)
            self.is_gone = not got
        return self.calls >= step


@final
class Table:
    """What the members of one group share: each has room for two gradients.

    Who lays down the second has called, so all others have read the first: the next one
    may lie where that was.

    Args:
        place: Of this worker among them.
        slots: Of all, by place.
        lines: To all others, by place.
        size: Floats of the vectors.
    """

    def __init__(
        self,
        place: int,
        slots: Sequence[Slot],
        lines: Sequence[Line],
        size: int,
    ) -> None:
        self._place, self._slots, self._lines = place, slots, lines
        self._size, self._step = size, 0
        at = [turn * _room_bytes(size) + _LINE for turn in (0, 1)]
        self._notes = [[slot.bytes[a - _LINE : a] for a in at] for slot in slots]
        self._vectors = [[s.array(a, size, np.float32) for a in at] for s in slots]
        for line in lines:
            line.socket.setblocking(False)

    @property
    def room(self) -> Vector:
        """Where this worker's next gradient will lie."""
        return self._vectors[self._place][(self._step + 1) % 2]

    def put(self, gradient: Vector, mass: float) -> None:
        """See `SharedLane`."""
        room = self.room
        if not np.may_share_memory(gradient, room):
            np.copyto(room, gradient)
        self._step += 1
        note = self._notes[self._place][self._step % 2]
        _NOTE.pack_into(note, 0, self._step, mass)

    def call(self) -> None:
        """See `SharedLane`."""
        for line in self._lines:
            line.call()

    def wait(self, server: int) -> bool:
        """See `SharedLane`."""
        missing = [line for line in self._lines if not line.has_called(self._step)]
        while missing:
            if any(line.is_gone for line in missing):
                return False
            poll = select.poll()
            poll.register(server, select.POLLIN)
            for line in missing:
                poll.register(line.socket, select.POLLIN)
            has_answer = any(descriptor == server for descriptor, _ in poll.poll())
            missing = [line for line in missing if not line.has_called(self._step)]
            if has_answer and missing:
                return False
        return True

    def add_up(self, out: Vector) -> None:
        """Writes the mean to `out`."""
        turn = self._step % 2
        notes = [_NOTE.unpack_from(of[turn]) for of in self._notes]
        if any(step != self._step for step, _ in notes):
            raise AssertionError(f"step {self._step} of a group that has {notes}")
        # Weights of zero come with gradients of zero, and must not become NaN.
        total = sum(mass for _, mass in notes) or 1.0
        first, second, *others = [of[turn] for of in self._vectors]
        with np.errstate(all="ignore"):
            for part in segments(self._size, SEGMENT):
                to = out[part]
                np.add(first[part], second[part], out=to)
                for vector in others:
                    np.add(to, vector[part], out=to)
                np.divide(to, total, out=to)

    def close(self) -> None:
        """Leaves; the others see it at once."""
        for line in self._lines:
            line.socket.close()
        self._vectors, self._notes = [], []
        for slot in self._slots:
            slot.close()


def _room_bytes(size: int) -> int:
    """Bytes of a note and a vector, so that both begin at a line of the cache."""
    return _LINE + -(-4 * size // _LINE) * _LINE


# ------------------------------------------------------------------- meeting


def meet(path: Path, place: int, size: int, floats: int) -> Table:
    """Forms a group; returns when all members are there.

    Args:
        path: Of a folder to meet in, of this group alone.
        place: Of this member, from 0.
        size: How many they are.
        floats: Of the vectors.

    Raises:
        GroupBroken: Not all came in time, or there is no memory to share.
    """
    until = time.monotonic() + LIMIT_S
    made = Slot.make(2 * _room_bytes(floats))
    if made is None:
        raise GroupBroken("there is no memory to share")
    slots, lines = {place: made[0]}, dict[int, socket.socket]()
    with ExitStack() as undo:
        undo.callback(_close, slots, lines)
        try:
            path.mkdir(mode=0o700, exist_ok=True)
            _connect(path, place, size, until, lines)
            _swap(place, slots, lines, floats)
        except TimeoutError:
            raise GroupBroken(f"not all came within {LIMIT_S:g} s") from None
        except (OSError, ValueError, LookupError) as error:
            raise GroupBroken(f"{type(error).__name__}: {error}") from error
        undo.pop_all()
    made[0].unlink()
    others = [Line(lines[other]) for other in sorted(lines)]
    return Table(place, [slots[other] for other in sorted(slots)], others, floats)


def _close(slots: dict[int, Slot], lines: dict[int, socket.socket]) -> None:
    for line in lines.values():
        line.close()
    for slot in slots.values():
        slot.close()


def _connect(
    path: Path, place: int, size: int, until: float, lines: dict[int, socket.socket]
) -> None:
    """Calls all who have a lower place, and is called by all others."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path / str(place)))
        listener.listen(size)
        for other in range(place):
            lines[other] = line = _called(path / str(other), until)
            _say(line, str(place).encode())
        while len(lines) < size - 1:
            listener.settimeout(max(0.001, until - time.monotonic()))
            line, _ = listener.accept()
            with ExitStack() as undo:
                undo.callback(line.close)
                line.settimeout(max(0.001, until - time.monotonic()))
                other = int(_said(line))
                if not place < other < size or other in lines:
                    raise ValueError(f"a member at place {other} of {size}")
                undo.pop_all()
            lines[other] = line


def _called(path: Path, until: float) -> socket.socket:
    """A connection to a member, once it listens."""
    while True:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.settimeout(max(0.001, until - time.monotonic()))
        try:
            line.connect(str(path))
            return line
        except (FileNotFoundError, ConnectionRefusedError):
            line.close()
            if time.monotonic() > until:
                raise TimeoutError from None
            time.sleep(_PAUSE_S)
        except BaseException:
            line.close()
            raise


def _swap(
    place: int, slots: dict[int, Slot], lines: dict[int, socket.socket], floats: int
) -> None:
    """Maps what the others have made, and waits until they have mapped this one's."""
    offer = json.dumps(slots[place].offer).encode()
    for line in lines.values():
        _say(line, offer)
    for other, line in lines.items():
        given = json.loads(_said(line))
        found = Slot.attach(given["path"], 2 * _room_bytes(floats), given["mark"])
        if found is None:
            raise ValueError("memory of another member that cannot be mapped")
        slots[other] = found
    for line in lines.values():
        _say(line, b"mapped")
    for line in lines.values():
        _said(line)


def _say(line: socket.socket, words: bytes) -> None:
    line.sendall(_LENGTH.pack(len(words)) + words)


def _said(line: socket.socket) -> bytes:
    [length] = _LENGTH.unpack(_exactly(line, _LENGTH.size))
    if length > _MOST_WORDS:
        raise ValueError(f"{length} bytes where a few words were expected")
    return _exactly(line, length)


def _exactly(line: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = line.recv(count - len(data))
        if not more:
            raise ConnectionResetError("another member hung up")
        data += more
    return data
