"""Workers that exchange weights: windows of local steps, then one exchange."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, final

from shoal.engine.coordination.ledger import Piece
from shoal.engine.worker.loop import Loop


class Window(NamedTuple):
    """Steps between two exchanges.

    Args:
        pieces: The samples that are done.
        taught: Those of them that were trained on.
        steps: Number of steps.
        turned: The first step whose loss was not finite, of the worker's own count;
            None for none.
    """

    pieces: list[Piece]
    taught: list[Piece]
    steps: int
    turned: int | None


@final
class WeightLoop(Loop):
    """See `Loop`."""

    def _turn(self) -> None:
        """Takes up to `window` local steps, then exchanges once."""
        client, backend = self._client, self._backend
        self._nan_guard.begin_window()
        done = self._compute_window()
        span = self.steps - done.steps + 1, self.steps
        taught = done.taught
        if self._nan_guard.is_harmed(taught or done.pieces, span, done.turned):
            taught = []
        vector, statistics = backend.read()
        self._look()
        if client.has_early:
            if not self._catch_up():
                return  # this window is void: its samples are leased to another worker
            # No request is out, so that the state can be sent now.
            if client.progress.wants_snapshot:
                self._publish()
            # The answer has moved the weights: the push starts from there.
            vector, statistics = client.local, client.statistics
        learnt = sum(piece.rows for piece in taught)
        # Without data to go on with, there is nothing that an answer could overlap.
        is_going_on = bool(client.progress.pieces) and not client.progress.is_done
        if self._spec.has_overlap and is_going_on:
            self._ahead = done.steps
            client.push_early(vector, statistics, done.pieces, done.steps, learnt)
            return
        client.push_weights(vector, statistics, done.pieces, done.steps, learnt)
        backend.load(client.local, client.statistics)

    def _compute_window(self) -> Window:
        """Takes the steps of a window."""
        client = self._client
        clock, size, steps = self._clock(), self._compute.batch_size, 0
        pieces, taught = list[Piece](), list[Piece]()
        turned: int | None = None
        client.metrics[:] = 0.0
        while steps < self._compute.window and client.progress.pieces:
            most = self._compute.window - steps
            starts = self._starts()
            batches = next_batches(client.progress.pieces, size, most, pieces, starts)
            if not batches:
                break
            rows = sum(p.rows for p in batches)
            count = max(1, rows // size)
            start = clock.start + steps * clock.pace
            if not self._is_void(batches):
                found = self._take_steps(batches, replace(clock, start=start))
                if turned is None and found is not None:
                    turned = self.steps + found + 1
                taught += batches
            pieces += batches
            steps += count
            self.steps += count
            if rows % size and starts is None:
                break  # the short batch ends the window, as it ends the epoch
        return Window(pieces, taught, steps, turned)

    def _starts(self) -> Sequence[int] | None:
        """Positions where the data's own batches begin in the next epoch."""
        return self._spec.order.batch_starts(self._client.progress.pieces[0].epoch)

    def _catch_up(self) -> bool:
        """Takes the answer to an early push."""
        client, backend = self._client, self._backend
        self._ahead = 0
        is_good = client.catch_up(*backend.read())
        backend.load(client.local, client.statistics)
        return is_good

    def _publish(self) -> None:
        """Sends the state of the optimizer; the server has the weights."""
        self._client.publish_optimizer(self._snapshot())


def next_batches(
    pieces: deque[Piece],
    size: int,
    most: int,
    before: Sequence[Piece],
    starts: Sequence[int] | None = None,
) -> list[Piece]:
    """Takes whole batches, or one short batch, of one epoch from the leases.

    Args:
        pieces: The leases; what is taken leaves them.
        size: Rows of a batch.
        most: Batches to take at most.
        before: Pieces that the window has already; it stays within an epoch.
        starts: Positions where the data's own batches begin; one batch is taken then.
    """
    epoch = before[0].epoch if before else pieces[0].epoch
    if starts is not None:
        return _own_batch(pieces, size, epoch, starts)
    total = 0
    for piece in pieces:
        if piece.epoch != epoch:
            break
        total += piece.rows
    # Whole batches; a short one only if the leases of the epoch hold no whole one.
    wanted = min(most * size, total - total % size) or total
    taken: list[Piece] = []
    while wanted and pieces and pieces[0].epoch == epoch:
        piece = pieces.popleft()
        if piece.rows > wanted:
            rest = piece._replace(start=piece.start + wanted)
            piece = piece._replace(stop=rest.start)
            pieces.appendleft(rest)
        taken.append(piece)
        wanted -= piece.rows
    return taken


def _own_batch(
    pieces: deque[Piece], size: int, epoch: int, starts: Sequence[int]
) -> list[Piece]:
    """Takes one of the data's own batches, or the part of it that is leased."""
    first = pieces[0].start
    place = bisect_right(starts, first)
    stop = min([first + size, *starts[place : place + 1]])
    taken: list[Piece] = []
    while pieces and (pieces[0].epoch, pieces[0].start) == (epoch, first):
        piece = pieces.popleft()
        if piece.stop > stop:
            pieces.appendleft(piece._replace(start=stop))
            piece = piece._replace(stop=stop)
        taken.append(piece)
        first = piece.stop
        if first == stop:
            break
    return taken
