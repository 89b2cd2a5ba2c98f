"""Numbers that are not finite: detection, policy, report.

This file decides the meaning of `on_nan`. It checks vectors and composes texts;
`nan_guard.py` acts on a worker, the controller for a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from shoal.data import trees
from shoal.engine.coordination.ledger import Piece
from shoal.engine.transport.messages.worker_reports import NanReport
from shoal.errors import NotFinite
from shoal.vectors import Vector

MOST_ROWS = 8  # that a text names
MOST_ROLLBACKS = 3


@final
@dataclass(frozen=True, kw_only=True)
class NanPolicy:
    """The action of a worker when its numbers are not finite.

    Args:
        name: The user's choice; "warn" without one.
        is_undone: The worker restores its state from before.
        is_final: The worker stops, and the controller ends the run or rolls it back.
    """

    name: str
    is_undone: bool
    is_final: bool


WARN = NanPolicy(name="warn", is_undone=False, is_final=False)
REACTIONS = {
    "stop": NanPolicy(name="stop", is_undone=False, is_final=True),
    "skip": NanPolicy(name="skip", is_undone=True, is_final=False),
    "rollback": NanPolicy(name="rollback", is_undone=False, is_final=True),
}
"""By the values of `on_nan`; None is `WARN`."""


def reaction_to(on_nan: str | None) -> NanPolicy:
    """Returns the policy of a valid `on_nan`.

    Example:
        >>> reaction_to("skip").is_undone, reaction_to(None).name
        (True, 'warn')
    """
    return WARN if on_nan is None else REACTIONS[on_nan]


def is_finite(vector: Vector) -> bool:
    """Whether no number is NaN or infinite; takes half the time of checking each.

    Example:
        >>> is_finite(np.array([1e30, 1], "f4")), is_finite(np.array([1, np.inf], "f4"))
        (True, False)
    """
    with np.errstate(all="ignore"):
        if np.isfinite(np.dot(vector, vector)):
            return True
    # Squares may be too large for float32 if the numbers are not.
    return bool(np.isfinite(vector).all())


class Suspects(NamedTuple):
    """Rows with numbers that are not finite, among those that were read.

    Args:
        first: Place of the first such row, -1 for none.
        total: Number of such rows.
        rows: Row numbers of the first of them, in the data as given.
    """

    first: int = -1
    total: int = 0
    rows: tuple[int, ...] = ()


def suspects(data: Any, indices: npt.NDArray[np.int64]) -> Suspects:
    """Looks for rows that hold NaN or infinity.

    Args:
        data: A pytree of arrays, rows first.
        indices: Row numbers.

    Example:
        >>> suspects((np.array([0.0, np.nan]),), np.array([7, 5]))
        Suspects(first=1, total=1, rows=(5,))
    """
    bad = np.zeros(len(indices), bool)
    for leaf in trees.leaves(data):
        array = np.asarray(leaf)
        if array.dtype.kind in "fc" and array.size:
            bad |= ~np.isfinite(array.reshape(len(indices), -1)).all(axis=1)
    places = np.flatnonzero(bad)
    if not places.size:
        return Suspects()
    named = tuple(int(row) for row in indices[places[:MOST_ROWS]])
    return Suspects(int(places[0]), int(places.size), named)


def joined(parts: Iterable[tuple[Suspects, int]]) -> Suspects:
    """Joins the results of consecutive parts of some rows.

    Args:
        parts: Result and number of rows of each part.

    Example:
        >>> joined([(Suspects(), 4), (Suspects(first=1, total=1, rows=(5,)), 2)])
        Suspects(first=5, total=1, rows=(5,))
    """
    first, total, rows, before = -1, 0, tuple[int, ...](), 0
    for found, count in parts:
        if first < 0 <= found.first:
            first = before + found.first
        total, rows, before = total + found.total, rows + found.rows, before + count
    return Suspects(first, total, rows[:MOST_ROWS]) if total else Suspects()


def report(
    reaction: str,
    what: str,
    pieces: Sequence[Piece],
    steps: tuple[int, int],
    found: Suspects,
) -> NanReport:
    """Returns a worker's report of numbers that are not finite.

    Args:
        reaction: Policy, by the name that the user chose.
        what: Which numbers: "weights", "statistics", "gradient" or "loss".
        pieces: Samples of the steps, all of one epoch.
        steps: First and last step in which it may have happened, of the worker's count.
        found: Suspects in the data.
    """
    return NanReport(
        reaction=reaction,
        what=what,
        epoch=pieces[0].epoch,
        step=steps[0],
        last_step=steps[1],
        bad_rows=found.total,
        rows=found.rows,
        ranges=_joined(pieces),
    )


def _joined(pieces: Sequence[Piece]) -> tuple[tuple[int, int], ...]:
    """Ranges of samples, with adjacent ones joined."""
    found: list[tuple[int, int]] = []
    for piece in pieces:
        start = piece.start
        if found and found[-1][1] == start:
            start, _ = found.pop()
        found.append((start, piece.stop))
    return tuple(found)


def describe(rank: int, found: NanReport) -> str:
    """Returns a worker's report as a sentence, without its end.

    Example:
        >>> suspects = Suspects(9, 1, (9,))
        >>> describe(1, report("stop", "loss", [Piece(2, 0, 64)], (4, 4), suspects))
        'the loss of worker 1 turned NaN or infinite in its step 4, on samples 0 to \
63 of the order of epoch 3; row 9 of the data is not finite'
    """
    first, last = found.step, found.last_step
    steps = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
    samples = " and ".join(f"{start:,} to {stop - 1:,}" for start, stop in found.ranges)
    return (
        f"the {found.what} of worker {rank} turned NaN or infinite in its "
        f"{steps}, on samples {samples} of the order of epoch {found.epoch + 1}; "
        f"{_data(found)}"
    )


def _data(found: NanReport) -> str:
    rows, count = found.rows, found.bad_rows
    named = ", ".join(f"{row:,}" for row in rows)
    if not count:
        return "their data is finite"
    if count == 1:
        return f"row {named} of the data is not finite"
    if count == len(rows):
        return f"rows {named} of the data are not finite"
    return f"{count:,} rows of the data are not finite, rows {named} among them"


def error_of(rank: int, found: NanReport) -> NotFinite:
    """Returns the error that ends a run.

    Args:
        rank: Rank of the worker.
        found: Its report.
    """
    advice = (
        "Correct or leave out such rows"
        if found.bad_rows
        else "Lower the learning rate, or give the optimizer a clipnorm"
    )
    text = describe(rank, found)
    after = ""
    if found.reaction == "rollback":
        after = f" after {MOST_ROLLBACKS} rollbacks"
    return NotFinite(
        f"{text}. Finite numbers were expected, and on_nan={found.reaction!r} ends "
        f"the run{after}; the model holds the last finite center. "
        f"{advice}, or pass on_nan='skip' to leave these samples out.",
        rank=rank,
        step=found.step,
        epoch=found.epoch,
        samples=found.ranges,
        rows=found.rows,
    )


def what_follows(rank: int, found: NanReport) -> str:
    """Returns what the user is told if the run continues."""
    after = {
        "skip": "these samples count, and nothing was learnt from them",
        "rollback": "the run goes back to its last checkpoint, and leaves them out",
    }.get(
        found.reaction,
        "training goes on as plain Keras would; on_nan='stop', 'skip' or 'rollback' "
        "does otherwise",
    )
    return f"{describe(rank, found)}; {after}"
