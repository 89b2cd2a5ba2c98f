"""Invariants that hold after every event of a simulated run."""

from __future__ import annotations

from collections import Counter
from typing import final

from shoal.engine.coordination.instructions import Rules
from shoal.engine.coordination.ledger import Piece
from tests.simulation.protocol.server import SimServer
from tests.simulation.protocol.store import Center
from tests.simulation.violation import require


@final
class Watch:
    """Checks a server after each event against its last state."""

    def __init__(self) -> None:
        self._version = self._lineage = 0

    def look(self, server: SimServer) -> None:
        """Checks the ledger of a server that lives."""
        sequencer = server.sequencer
        require(
            sequencer.version >= self._version, "versions only grow", sequencer.version
        )
        require(
            sequencer.lineage >= self._lineage, "lineages only grow", sequencer.lineage
        )
        self._version, self._lineage = sequencer.version, sequencer.lineage
        self._look_at_leases(server)

    def restarted(self, server: SimServer) -> None:
        """A new server has begun from a checkpoint."""
        lineage = server.sequencer.lineage
        require(lineage > self._lineage, "a restart raises the lineage", lineage)
        self._version = server.sequencer.version
        require(not server.sequencer.members, "nobody has joined a new server")
        self.look(server)

    def _look_at_leases(self, server: SimServer) -> None:
        sequencer, ledger = server.sequencer, server.sequencer.ledger
        leases: list[Piece] = []
        for rank in range(server.most_rank + 1):
            held = ledger.held(rank)
            leases += held
            member = sequencer.members.get(rank)
            has_place = member is not None and member.is_ready and not member.is_late
            require(
                has_place or not held, "the dead and late lease nothing", rank, held
            )
            is_silent = member is None or not (member.is_late and member.is_parked)
            require(is_silent, "a worker that has sent is not late", rank)
        clock = 0
        for epoch in ledger.epochs:
            done, free = ledger.committed(epoch), ledger.free(epoch)
            held_rows = sum(p.rows for p in leases if p.epoch == epoch)
            books = done, free, held_rows
            whole = server.rules.rows_of(epoch)
            is_whole = sum(books) == whole or sequencer.is_halted
            require(is_whole, "no sample is lost, none is there twice", epoch, books)
            found = server.center.committed(epoch)
            require(done == found, "what is committed is in the center", epoch, found)
            clock += -(-done // server.rules.batch)
        require(sequencer.clock == clock, "the clock counts what is committed", clock)


def look_at_end(center: Center, rules: Rules, end: int) -> None:
    """Checks the end of a run that was not halted."""
    for epoch in range(rules.first_epoch, end):
        counts = center.counts.get(epoch, bytearray())
        is_whole = counts == bytearray(b"\1") * rules.rows_of(epoch)
        require(is_whole, "each sample is committed exactly once", epoch, list(counts))


def look_at_weights(center: Center) -> None:
    """Checks that every sample counted as much as in training by one process.

    Its gradient is -1 and the rate is 1: its weight is the number of epochs it was in.
    """
    wanted = Counter(
        sample
        for counts in center.counts.values()
        for sample, count in enumerate(counts)
        if count
    )
    odd = {n: str(w) for n, w in center.weights.items() if w != wanted[n]}
    is_whole = center.weights.keys() == wanted.keys()
    require(not odd and is_whole, "every sample counts once an epoch", odd, wanted)
