"""Figure: the samples of an epoch, leased, lost and committed.

The states are those of Shoal's own ledger, which this file asks.
"""

from __future__ import annotations

from collections.abc import Collection

from figures.drawing import Drawing
from shoal.engine.coordination.ledger import Ledger, Piece

CELLS, SIZE, LEFT = 16, 20, 10


def draw() -> str:
    """Returns the figure as SVG."""
    d = Drawing(
        "leases",
        "Leases of one epoch",
        "A strip of sixteen pieces of an epoch, at four moments. First four pieces are "
        "committed, workers 0, 1 and 2 hold two leases each, six pieces are free. Then "
        "worker 2 is lost and its two leases are free again. Then workers 0 and 1 "
        "have committed their first leases and got those two. At the end all sixteen "
        "pieces are committed, each once.",
    )
    ledger = Ledger()
    ledger.open(0, rows=CELLS)
    for owner in (0, 1, 2, 0):
        ledger.commit(owner, [_lease(ledger, owner)])
    for owner in (0, 1, 2, 0, 1, 2):
        _lease(ledger, owner)
    y = 22
    _moment(d, y, "Three workers train", ledger)
    _say(d, y, "Each holds two leases: one to compute,", "one to read ahead.")

    y += 92
    lost = {piece.start for piece in ledger.held(2)}
    ledger.release(2)
    _moment(d, y, "Worker 2 is lost", ledger, lost)
    _say(d, y, "Its leases are free again.")

    y += 78
    for owner in (0, 1):
        ledger.commit(owner, ledger.held(owner)[:1])
        _lease(ledger, owner)
    _moment(d, y, "A moment later", ledger)
    _say(d, y, "Workers 0 and 1 commit one lease each,", "and get those of worker 2.")

    y += 92
    while not ledger.is_done(0):
        for owner in (0, 1):
            ledger.commit(owner, ledger.held(owner))
            if ledger.free(0):
                _lease(ledger, owner)
    _moment(d, y, "The epoch ends", ledger)
    done = ledger.committed(0)
    _say(d, y, f"{done} of {CELLS} committed, each once.")

    y += 74
    d.box(10, y, SIZE, 14, "done", 0)
    d.text(36, y + 11, "committed", "small")
    d.box(112, y, SIZE, 14, "worker", 0)
    d.text(122, y + 11, "0", "small", "middle")
    d.text(138, y + 11, "leased by worker 0", "small")
    d.box(268, y, SIZE, 14, "free", 0)
    d.text(294, y + 11, "free", "small")
    return d.svg(y + 24)


def _lease(ledger: Ledger, owner: int) -> Piece:
    """Leases the next free piece."""
    piece = ledger.lease(owner, 0, 1)
    if piece is None:
        raise ValueError("nothing is free")
    return piece


def _moment(
    d: Drawing, y: float, title: str, ledger: Ledger, lost: Collection[int] = ()
) -> None:
    """Draws the strip as the ledger has it."""
    d.text(LEFT, y, title, "title")
    books = ledger.to_json()["books"]["0"]
    free, done = (_cells(books[name]) for name in ("free", "done"))
    holders = {
        piece.start: owner for owner in (0, 1, 2) for piece in ledger.held(owner)
    }
    for cell in range(CELLS):
        kind = "done" if cell in done else "free" if cell in free else "worker"
        x = LEFT + cell * SIZE
        d.box(x, y + 8, SIZE, SIZE, "gone" if cell in lost else kind, 0)
        if cell in lost:
            d.cross(x + SIZE / 2, y + 8 + SIZE / 2, 4)
        if cell in holders:
            label = str(holders[cell])
            d.text(x + SIZE / 2, y + 22, label, "small", "middle")


def _cells(bounds: list[int]) -> set[int]:
    """Returns the cells of ranges that are given by their bounds."""
    pairs = zip(bounds[::2], bounds[1::2], strict=True)
    return {cell for start, stop in pairs for cell in range(start, stop)}


def _say(d: Drawing, y: float, *lines: str) -> None:
    """Writes what a moment shows below its strip."""
    for number, line in enumerate(lines):
        d.text(LEFT, y + 43 + 14 * number, line, "small quiet")
