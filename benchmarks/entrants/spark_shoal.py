"""`shoal.fit` on the slots of a Spark session, as `spark_elephas` trains."""

from __future__ import annotations

import time
from typing import Any

import shoal
from benchmarks.entrants.spark_elephas import f1_of
from benchmarks.entrants.told import answer, asked
from benchmarks.spark_session import session
from benchmarks.works import WORKS


def main() -> None:
    """Trains."""
    given = asked(lambda parser: parser.add_argument("--mode", required=True))
    work = WORKS[given.work]
    x, y = work.samples(given.rows)
    trained: list[int] = []

    def train(epochs: int) -> tuple[float, Any]:
        model, began = work.make(), time.perf_counter()
        history = shoal.fit(
            model, x, y, strategy=given.mode, workers=2, cluster="spark",
            epochs=epochs, batch_size=given.batch, verbose=0,
        )  # fmt: skip
        trained.append(history.run.summary().samples_committed)
        return time.perf_counter() - began, model

    with session():
        first_s, model = train(given.epochs)
        trained_at = time.time()
        whole_s, _ = train(given.epochs)
        short_s, _ = train(1)
    answer(
        [(whole_s - short_s) / (given.epochs - 1)], [], trained_at=trained_at,
        first_s=first_s, whole_s=whole_s, f1=f1_of(model, work), trained=trained[0],
    )  # fmt: skip


if __name__ == "__main__":
    main()
