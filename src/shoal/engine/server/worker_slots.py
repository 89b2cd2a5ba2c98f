"""Shared memory between number 0 and the workers of its machine.

A slot is offered when a worker joins or comes back, and used once the worker has
reported that it mapped it.
"""

from __future__ import annotations

from typing import final

from shoal.engine.server.replication import Replication
from shoal.engine.server.session import WorkerSession
from shoal.engine.server.spec import ServerSpec
from shoal.engine.transport.buffers import Buffers
from shoal.engine.transport.codec import connection_codec
from shoal.engine.transport.listener import Peer
from shoal.engine.transport.shared_memory import Slot, SlotOffer, tag_of
from shoal.wire.frames import BadFrame


@final
class WorkerSlots:
    """Makes slots, and settles where a worker's vectors are.

    Args:
        spec: Spec of the server.
        replication: Offers a worker's slot to the standby as well.
    """

    def __init__(self, spec: ServerSpec, replication: Replication) -> None:
        self._spec, self._replication = spec, replication

    def offer(
        self, peer: Peer, session: WorkerSession, *, wants_slot: bool
    ) -> SlotOffer | None:
        """Makes shared memory for a worker that can map it, with its last message."""
        sizes, tag = self._spec.sizes, tag_of(self._spec.secret)
        made = Slot.make(sizes.slot_bytes, tag) if wants_slot else None
        if made is None:
            return None
        slot, _ = made
        peer.offer = Buffers(sizes, slot)
        if session.question:
            peer.offer.up[:] = session.buffers.up
        return slot.offer

    def settle(self, peer: Peer, session: WorkerSession, *, is_shared: bool) -> None:
        """Records whether the worker has mapped its slot, and drops the slot's name.

        Raises:
            BadFrame: It is settled already.
        """
        if peer.is_settled:
            raise BadFrame("a slot that is settled already")
        offer, peer.offer = peer.offer, None
        peer.is_settled = True
        if offer is None or offer.slot is None or not is_shared:
            peer.vector_codec = vector_codec = connection_codec(
                session.buffers, self._spec.strategy, is_server=True
            )
            peer.channel.inbox = (
                session.buffers.up if vector_codec is None else vector_codec.landing
            )
            if offer is not None:
                offer.close()
            return
        offer.slot.unlink()
        if session.question:
            # A worker that comes back may ask for its last answer again.
            offer.down[:] = session.buffers.down
        before, session.buffers = session.buffers, offer
        before.close()
        self._replication.offer_slot(session)
