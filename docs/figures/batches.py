"""Figure: what batch_size means with 1, 2 and 4 workers.

Shares and steps are computed by the functions that a run uses.
"""

from __future__ import annotations

from figures.drawing import Drawing
from shoal.data.order import shares, steps

ROWS, BATCH = 25_600, 32
LEFT, SCALE = 78, 44 / BATCH


def draw() -> str:
    """Returns the figure as SVG."""
    d = Drawing(
        "batches",
        "batch_size with several workers",
        f"An epoch of {ROWS:,} samples with batch_size={BATCH}. Under all_reduce the "
        f"batch of {BATCH} is split among the workers, and an epoch has "
        f"{steps(ROWS, BATCH)} steps with 1, 2 or 4 workers. Under all others "
        f"each worker takes batches of {BATCH}, so that with 4 workers each takes "
        f"{steps(ROWS, 4 * BATCH)} steps.",
    )
    d.text(8, 18, f"{ROWS:,} samples an epoch, batch_size={BATCH}", "small quiet")
    d.text(8, 44, "all_reduce: the batch of all workers", "title")
    for row, workers in enumerate((1, 2, 4)):
        _row(d, 54 + 34 * row, workers, shares(BATCH, workers), steps(ROWS, BATCH))
    d.text(LEFT, 168, "the steps of plain Keras, shared out", "small quiet")

    top = 202
    d.text(8, top, "All others: the batch of each worker", "title")
    for row, workers in enumerate((1, 2, 4)):
        taken = steps(ROWS, workers * BATCH)
        _row(d, top + 10 + 34 * row, workers, [BATCH] * workers, taken)
    d.text(LEFT, top + 124, "the same samples, fewer steps of each", "small quiet")
    return d.svg(top + 136)


def _row(d: Drawing, y: float, workers: int, sizes: list[int], taken: int) -> None:
    """Draws the batches of one step, and how many steps an epoch has."""
    d.text(8, y + 16, f"{workers} worker{'s' * (workers > 1)}", "small")
    x = float(LEFT)
    for size in sizes:
        width = size * SCALE
        d.box(x, y, width, 24, "worker", 1)
        d.text(x + width / 2, y + 16, str(size), "small", "middle")
        x += width
    d.text(332, y + 16, f"{taken} steps", "small", "end")
