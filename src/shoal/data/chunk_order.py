"""The order of samples that lie in chunks. Pure: no data, no clock.

This file decides how far a shuffle reaches. Chunks come in a new order in each pass;
consecutive chunks make a group, and the rows of a group are mixed. A reader of
a range of positions has to open only the chunks of the groups it touches.

Workers that share each batch need rows of it that lie together in few chunks: with
lanes, every batch takes rows from each chunk of the group, in the order of the chunks,
so that a worker's part of all batches comes from the same chunks. That order is the
same in all passes: a worker needs mostly the same chunks in each, and may still have
them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from shoal.facts import Chunking

Indices = npt.NDArray[np.int64]
_KEPT = 4  # turns and groups: two ranges in use, each across a border


class _Turn(NamedTuple):
    """One pass: its chunks in order, and the starts of groups, in chunks and rows."""

    chunks: Indices
    group_chunks: Indices
    group_rows: Indices


@final
class ChunkOrder:
    """The order of the rows of chunks in every pass.

    Args:
        chunking: Sizes of chunks, and what may be mixed.
        seed: Any integer of at least 0.
        shuffle: Whether to mix at all.
        batch_size: Rows of a batch, used by lanes.

    Example:
        >>> order = ChunkOrder(Chunking(rows=(2, 3), mixing="chunks"), 1, shuffle=True)
        >>> sorted(order.indices(0, 0, 5).tolist())
        [0, 1, 2, 3, 4]
        >>> order.indices(0, 0, 5).tolist() in ([0, 1, 2, 3, 4], [2, 3, 4, 0, 1])
        True
    """

    def __init__(
        self, chunking: Chunking, seed: int, *, shuffle: bool, batch_size: int = 1
    ) -> None:
        self._chunking, self._seed, self._batch_size = chunking, seed, batch_size
        self._mixes = shuffle and chunking.mixing != "nothing"
        self._sizes = np.asarray(chunking.rows, np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)])
        # Rank of each chunk among the others of its group, the same in all groups.
        self._lane = np.random.default_rng(seed).permutation(len(self._sizes))
        self._turns: dict[int, _Turn] = {}
        self._groups: dict[tuple[int, int], Indices] = {}

    def indices(self, turn: int, start: int, stop: int) -> Indices:
        """Returns the rows of the data at positions `start` to `stop` of a pass."""
        found = self._turn(turn)
        bounds = found.group_rows
        first = int(np.searchsorted(bounds, start, side="right")) - 1
        parts: list[Indices] = []
        while start < stop:
            rows = self._group(turn, first)
            begin = int(bounds[first])
            parts.append(rows[start - begin : min(stop - begin, len(rows))])
            start = begin + len(rows)
            first += 1
        if not parts:
            return np.zeros(0, np.int64)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def upcoming(
        self, turn: int, position: int, part: tuple[float, float] = (0.0, 1.0)
    ) -> Indices:
        """Returns one row of each chunk of the group after the one at a position.

        Args:
            turn: Number of the pass.
            position: Position in the pass; after the last group there is nothing.
            part: Share of each batch that is wanted, so that with lanes only the
                chunks of that share are returned.
        """
        found = self._turn(turn)
        group = int(np.searchsorted(found.group_rows, position, side="right"))
        if group >= len(found.group_chunks) - 1:
            return np.zeros(0, np.int64)
        chunks = self._members(found, group)
        if self._chunking.has_lanes and self._mixes_rows:
            ends = np.cumsum(self._sizes[chunks]) / self._sizes[chunks].sum()
            begins = np.concatenate([[0.0], ends[:-1]])
            chunks = chunks[(begins < part[1]) & (ends > part[0])]
        return self._starts[chunks]

    def borders(self, turn: int) -> Indices:
        """Returns the positions of a pass at which groups begin."""
        return self._turn(turn).group_rows[:-1]

    @property
    def is_mixed(self) -> bool:
        """Whether chunks come in another order than that of the data."""
        return self._mixes

    def _turn(self, turn: int) -> _Turn:
        found = self._turns.get(turn)
        if found is None:
            chunks = np.arange(len(self._sizes), dtype=np.int64)
            if self._mixes:
                self._random(turn).shuffle(chunks)
            found = self._grouped(chunks)
            self._turns = _kept(self._turns) | {turn: found}
        return found

    def _grouped(self, chunks: Indices) -> _Turn:
        """Cuts chunks in order into groups of limited rows, or of one chunk."""
        sizes = self._sizes[chunks]
        if not self._mixes_rows:
            edges = np.arange(len(chunks) + 1)
        else:
            starts, rows = [0], 0
            for place, size in enumerate(sizes.tolist()):
                if rows and rows + size > self._chunking.group_rows:
                    starts.append(place)
                    rows = 0
                rows += size
            edges = np.array([*starts, len(chunks)])
        ends = np.concatenate([[0], np.cumsum(sizes)])
        return _Turn(chunks, edges, ends[edges])

    @property
    def _mixes_rows(self) -> bool:
        return self._mixes and self._chunking.mixing == "rows"

    def _members(self, turn: _Turn, group: int) -> Indices:
        """Returns the chunks of a group, in order."""
        first, last = turn.group_chunks[group : group + 2]
        chunks = turn.chunks[first:last]
        if self._chunking.has_lanes and self._mixes_rows:
            return chunks[np.argsort(self._lane[chunks])]
        return chunks

    def _group(self, turn: int, group: int) -> Indices:
        """Returns all rows of a group, in their order."""
        found = self._groups.get((turn, group))
        if found is None:
            at = self._turn(turn)
            chunks = self._members(at, group)
            starts, sizes = self._starts[chunks].tolist(), self._sizes[chunks].tolist()
            lanes: list[Indices] = [
                np.arange(start, start + size, dtype=np.int64)
                for start, size in zip(starts, sizes, strict=True)
            ]
            found = self._mixed(lanes, self._random(turn, group + 1))
            found.flags.writeable = False  # threads may share it
            self._groups = _kept(self._groups) | {(turn, group): found}
        return found

    def _mixed(self, lanes: list[Indices], random: np.random.Generator) -> Indices:
        if not self._mixes_rows:
            return np.concatenate(lanes)
        if not self._chunking.has_lanes:
            rows = np.concatenate(lanes)
            random.shuffle(rows)
            return rows
        for lane in lanes:
            random.shuffle(lane)
        # A lane's rows are spread evenly over the batches of the group.
        rows = np.concatenate(lanes)
        batches = max(1, len(rows) / self._batch_size)
        places = [(np.arange(len(lane)) + 0.5) / len(lane) for lane in lanes]
        batch = np.floor(np.concatenate(places) * batches)
        return rows[np.argsort(batch, kind="stable")]

    def _random(self, turn: int, group: int = 0) -> np.random.Generator:
        words = np.random.SeedSequence([self._seed, turn, group])
        return np.random.Generator(np.random.PCG64(words))


def _kept(kept: dict[Any, Any]) -> dict[Any, Any]:
    """Returns the newest entries, which stay beside a new one."""
    return dict(list(kept.items())[-_KEPT + 1 :])
