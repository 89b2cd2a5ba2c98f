"""Keras' own `DataParallel` over two JAX processes, a core each, collectives by gloo.

`--batch` is that of both together; each process is given its half of the rows.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks.entrants.told import answer, asked
from benchmarks.works import WORKS


def _train(rank: int, given: Any, port: int) -> tuple[list[float], list[float]]:
    core = sorted(os.sched_getaffinity(0))[rank]
    os.sched_setaffinity(0, {core})
    import jax
    import keras

    from benchmarks.entrants.keras_fit import Marks

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    keras.distribution.initialize(f"127.0.0.1:{port}", 2, rank)
    keras.utils.set_random_seed(0)
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(auto_shard_dataset=False)
    )
    work, marks = WORKS[given.work], Marks()
    x, y = work.samples(given.rows)
    history = work.make().fit(
        x[rank::2], y[rank::2], batch_size=given.batch // 2, epochs=given.epochs,
        verbose=0, callbacks=[marks],
    )  # fmt: skip
    return marks.spans, history.history["loss"]


def main() -> None:
    """Runs both."""
    given = asked()
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ProcessPoolExecutor(2, context) as pool:
        both = [pool.submit(_train, rank, given, port) for rank in range(2)]
        found = [process.result() for process in both]
    answer(*found[0])


if __name__ == "__main__":
    main()
