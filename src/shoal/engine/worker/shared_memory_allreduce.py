"""The mean of a step in shared memory, if all workers are on one machine.

Each worker writes its gradient where the others can read it, and computes the mean
itself. The server is told before the others are, and decides which steps count: so no
worker ever waits for another one, only for the server, and calls among workers merely
save time.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import numpy as np

from shoal.engine.coordination.instructions import Group
from shoal.engine.transport.buffers import aligned_bytes
from shoal.engine.transport.segments import segments
from shoal.engine.transport.shared_memory import Slot
from shoal.engine.worker.client import ServerClient
from shoal.engine.worker.collective import (
    Collective,
    CollectiveSpec,
    StepPart,
    through_server,
)
from shoal.errors import DataError
from shoal.paths import one_inside
from shoal.vectors import Vector

_LINE = 64
_NOTE = struct.Struct("<qqqd")  # a step, see `Step`, and its mass
_CALL = struct.Struct("<qqqq")  # rank, step
_OFFER = ".offer"
_CALLS = ".calls"
# Floats; shorter ones cost more in Python than they save in the cache.
SEGMENT = 1 << 17


class Step(NamedTuple):
    """Identifies a step of a group; later ones are greater.

    Args:
        lineage: Lineage of the run; a new server counts groups from the start.
        generation: Number of the group.
        number: Number of the step in it.
    """

    lineage: int
    generation: int
    number: int


NEVER = Step(-1, -1, -1)


@dataclass(frozen=True, kw_only=True)
class SharedMemoryAllReduceSpec(CollectiveSpec):
    """The choice of shared memory, for the workers of one machine.

    Args:
        folder: Private folder in which each tells the place of its memory.
        tag: Tag of the run, for named memory; see `slots`.
    """

    folder: Path
    tag: str = ""

    def open(self, client: ServerClient) -> Collective:
        """See `CollectiveSpec`."""
        size, rank = client.local.size, client.rank
        return SharedMemoryAllReduce(self, size, rank, client.incarnation)


@final
class SharedMemoryAllReduce(Collective):
    """A worker's member of the group that shares memory.

    It has memory for two gradients, used in turns. Before it writes a third one, its
    second one was answered, for which every other member had to send a push; and a
    member that pushes has read the gradients before. So no gradient is overwritten
    that is still read.

    Args:
        spec: Spec of the group.
        size: Floats of the vectors.
        rank: Rank of this worker.
        incarnation: Incarnation of this worker.
    """

    def __init__(
        self, spec: SharedMemoryAllReduceSpec, size: int, rank: int, incarnation: int
    ) -> None:
        self._spec, self._size, self._rank = spec, size, rank
        self._mean = aligned_bytes(4 * size).view(np.float32)
        self._step, self._turn = NEVER, 0
        self._ranks: tuple[int, ...] = ()
        self._others: dict[int, Participant] = {}
        self._called: dict[int, Step] = {}
        self._own: MemoryLayout | None = None
        self._line: socket.socket | None = None
        try:
            self._open(f"{rank}-{incarnation}")
        except OSError as error:
            self._note(f"no memory is shared: {error}")

    def _open(self, name: str) -> None:
        """Makes the memory, and publishes its place before other members need it."""
        folder = self._spec.folder
        made = Slot.make(MemoryLayout.bytes(self._size), self._spec.tag)
        if made is None:
            raise OSError("there is none")
        self._own = MemoryLayout(made[0], self._size)
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._line.setblocking(False)
        self._line.bind(str(folder / f"{name}{_CALLS}"))
        draft = folder / name
        offer = made[0].offer
        known = {} if offer is None else offer._asdict()
        draft.write_text(json.dumps({"name": name, **known}))
        # Renamed when complete: other members find a whole offer, or none.
        draft.replace(folder / f"{self._rank}{_OFFER}")

    @property
    def room(self) -> Vector | None:
        """Best memory for the next gradient; None without shared memory."""
        own = self._own
        return None if own is None or self._line is None else own.vectors[self._turn]

    def enter(self, group: Group, lineage: int) -> bool:
        """Joins a group if this worker is not in it; returns whether it is then.

        Args:
            group: The group that averages the step.
            lineage: See `Step`.
        """
        if self._own is None or self._line is None:
            return False
        if self._step[:2] != (lineage, group.generation):
            self._step = Step(lineage, group.generation, 0)
            self._ranks = ()
            try:
                for rank in group.ranks:
                    if rank != self._rank:
                        self._find(rank)
                self._ranks = group.ranks
                self._note(f"formed by {len(group.ranks)} workers, in shared memory")
            except (OSError, ValueError, LookupError, DataError) as error:
                self._note(f"was not formed: {type(error).__name__}: {error}")
        return bool(self._ranks)

    def _find(self, rank: int) -> None:
        """Maps the memory of the process that has a rank now."""
        folder = self._spec.folder
        offer = json.loads((folder / f"{rank}{_OFFER}").read_text())
        name = str(offer["name"])
        known = self._others.get(rank)
        if known is not None and known.name == name:
            return
        size = MemoryLayout.bytes(self._size)
        slot = Slot.attach(str(offer["path"]), size, str(offer["mark"]))
        if slot is None:
            raise ValueError(f"memory of worker {rank} that cannot be mapped")
        if known is not None:
            known.places.close()
        # Another process wrote this name; it must not lead out of the folder.
        line = str(one_inside(folder, f"{name}{_CALLS}"))
        self._others[rank] = Participant(name, MemoryLayout(slot, self._size), line)

    # ---------------------------------------------------------------- a step

    def mean(self, client: ServerClient, part: StepPart) -> Vector | None:
        """See `Collective`. Writes the gradient, adds when all have written theirs."""
        progress = client.progress
        group, lineage = progress.group, progress.lineage
        if group is None or not self.enter(group, lineage):
            return through_server(client, part)
        began = client.environment.clock()
        self.put(part.gradient, part.weight.mass)
        # The server is told first: it knows of all gradients that others can read.
        client.push_shared(part.statistics, [part.piece], part.weight, part.told)
        self.call()
        mean = self.add() if self.wait(client.line_to_server) else None
        counts = client.confirm()
        client.times.exchange_s += client.environment.clock() - began
        if progress.is_done or progress.sums:
            return None
        if not counts:  # not all of the round are in the group: the server averages
            return through_server(client, part)
        return self.add() if mean is None else mean

    def put(self, gradient: Vector, mass: float) -> None:
        """Writes this worker's gradient for the next step.

        Args:
            gradient: Sum over its samples; it is not changed.
            mass: Weight of the gradient.
        """
        own, room = self._own, self.room
        if own is None or room is None:
            raise RuntimeError("a gradient, and nowhere to lay it")
        if not np.may_share_memory(gradient, room):
            np.copyto(room, gradient)
        self._step = self._step._replace(number=self._step.number + 1)
        own.note(self._turn, self._step, mass)
        self._turn ^= 1

    def call(self) -> None:
        """Tells the others that the gradient is written; a call may be lost."""
        word = _CALL.pack(self._rank, *self._step)
        for rank in self._ranks:
            if rank != self._rank and self._line is not None:
                with suppress(OSError):  # the server's answer tells as well
                    self._line.sendto(word, self._others[rank].line)

    def wait(self, server: int) -> bool:
        """Waits until all have called; False if the server answers before that.

        Args:
            server: Descriptor of the connection to the server.
        """
        line = self._line
        if line is None:
            return False
        poll: select.poll | None = None
        while not self._have_all_called(line):
            if poll is None:
                poll = select.poll()
                poll.register(server, select.POLLIN)
                poll.register(line, select.POLLIN)
            # The server answered first. If the step counts, all have written theirs.
            if any(descriptor == server for descriptor, _ in poll.poll()):
                return self._have_all_called(line)
        return True

    def _have_all_called(self, line: socket.socket) -> bool:
        while True:
            try:
                rank, *step = _CALL.unpack(line.recv(_CALL.size))
            except BlockingIOError:
                break
            # A call may be lost: the one of a later step stands for it.
            self._called[rank] = max(Step(*step), self._called.get(rank, NEVER))
        others = (rank for rank in self._ranks if rank != self._rank)
        return all(self._called.get(rank, NEVER) >= self._step for rank in others)

    def add(self) -> Vector:
        """Returns the mean of a step for which all have written a gradient, a view."""
        own = self._own
        if own is None:
            raise RuntimeError("a mean, and no memory")
        found = [
            (own if rank == self._rank else self._others[rank].places).find(self._step)
            for rank in self._ranks
        ]
        # If all weights are zero, so are the gradients; the mean must not be NaN.
        total, out = sum(mass for _, mass in found) or 1.0, self._mean
        # Every worker adds in the order of ranks, so that all get the same bits.
        first, second, *others = [vector for vector, _ in found]
        with np.errstate(all="ignore"):
            for part in segments(self._size, SEGMENT):
                to = out[part]
                np.add(first[part], second[part], out=to)
                for vector in others:
                    np.add(to, vector[part], out=to)
                np.divide(to, total, out=to)
        return out

    def _note(self, text: str) -> None:
        """Writes to the worker's log."""
        name = f"{self._step.lineage}-{self._step.generation} "
        print(f"group {name if self._step != NEVER else ''}{text}", flush=True)  # noqa: T201

    def close(self) -> None:
        """Releases all memory."""
        line, self._line, self._ranks = self._line, None, ()
        if line is not None:
            line.close()
        for client in self._others.values():
            client.places.close()
        self._others.clear()
        own, self._own = self._own, None
        if own is not None:
            own.close()


class Participant(NamedTuple):
    """Another worker of the group.

    Args:
        name: Name of its process.
        places: Its memory.
        line: Address for calls.
    """

    name: str
    places: MemoryLayout
    line: str


@final
class MemoryLayout:
    """A worker's memory of two gradients, for its own use and that of others.

    Args:
        slot: Shared memory.
        size: Floats of a gradient.
    """

    def __init__(self, slot: Slot, size: int) -> None:
        self._slot = slot
        at = [turn * self.bytes(size) // 2 for turn in (0, 1)]
        self._notes = [slot.bytes[start : start + _LINE] for start in at]
        self.vectors = [slot.array(start + _LINE, size, np.float32) for start in at]

    @staticmethod
    def bytes(size: int) -> int:
        """Bytes of both gradients; each begins at a cache line."""
        return 2 * (_LINE + -(-4 * size // _LINE) * _LINE)

    def note(self, turn: int, step: Step, mass: float) -> None:
        """Marks a gradient as written."""
        # Plain stores are enough. The others read only after the server, or a call of
        # this worker, has told them: both are system calls on a socket, and a store
        # before a send is visible after the matching receive (decision 26).
        _NOTE.pack_into(self._notes[turn], 0, *step, mass)

    def find(self, step: Step) -> tuple[Vector, float]:
        """Returns the gradient and the mass of a step that counts."""
        for note, vector in zip(self._notes, self.vectors, strict=True):
            *found, mass = _NOTE.unpack_from(note)
            if Step(*found) == step:
                return vector, mass
        raise AssertionError(f"{step} counts, and somebody has not laid it down")

    def close(self) -> None:
        """Releases the memory."""
        for note in self._notes:
            note.release()
        self.vectors, self._notes = [], []
        self._slot.close()
