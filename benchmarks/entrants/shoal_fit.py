"""`shoal.fit` on two workers."""

from __future__ import annotations

import shoal
from benchmarks.entrants.keras_fit import Marks
from benchmarks.entrants.told import answer, asked
from benchmarks.works import WORKS


def main() -> None:
    """Trains."""
    given = asked(
        lambda parser: parser.add_argument("--strategy", required=True),
        lambda parser: parser.add_argument("--workers", type=int, default=2),
    )
    work, marks = WORKS[given.work], Marks()
    x, y = work.samples(given.rows)
    history = shoal.fit(
        work.make(), x, y, batch_size=given.batch, epochs=given.epochs, verbose=0,
        callbacks=[marks], strategy=given.strategy, workers=given.workers, run=False,
    )  # fmt: skip
    answer(marks.spans, history.history["loss"])


if __name__ == "__main__":
    main()
