"""The upper limit: two JAX processes that compute the same steps and exchange nothing.

Each is bound to a core of its own, and runs a `lax.scan` of 10 steps over Keras'
stateless calls, with rows that lie on its device; nobody shuffles, counts or calls
back. An epoch is over when the slower of the two is done with its half.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks.entrants.told import answer, asked
from benchmarks.works import WORKS

STEPS = 10
GATE_S = 120.0


def _scan(given: Any, core: int, gate: Any) -> list[tuple[float, float]]:
    os.sched_setaffinity(0, {core})
    import jax
    import jax.numpy as jnp
    import keras

    work = WORKS[given.work]
    x, y = work.samples(given.rows // 2)
    model = work.make()
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.get(work.loss)

    def step(state: Any, rows: Any) -> Any:
        weights, beside, slots = state

        def loss(weights: Any) -> Any:
            found, after = model.stateless_call(weights, beside, rows[0], training=True)
            return jnp.mean(loss_of(rows[1], found)), after

        (value, beside), slope = jax.value_and_grad(loss, has_aux=True)(weights)
        weights, slots = optimizer.stateless_apply(slots, slope, weights)
        return (weights, beside, slots), value

    window = jax.jit(lambda state, rows: jax.lax.scan(step, state, rows))

    def values(variables: Any) -> Any:
        return [variable.value for variable in variables]

    state = (
        values(model.trainable_variables),
        values(model.non_trainable_variables),
        values(optimizer.variables),
    )
    size = STEPS * given.batch

    def rows_of(at: int) -> Any:
        return jax.tree.map(
            lambda a: jnp.asarray(a[at : at + size]).reshape(STEPS, -1, *a.shape[1:]),
            (x, y),
        )

    windows = [rows_of(at) for at in range(0, len(y) - size + 1, size)]
    told = list[tuple[float, float]]()
    for _ in range(given.epochs):
        gate.wait(GATE_S)
        began = time.perf_counter()
        losses: Any = 0.0
        for rows in windows:
            state, losses = window(state, rows)
        jax.block_until_ready(state)
        span = (time.perf_counter() - began) * len(y) / (len(windows) * size)
        told.append((span, float(jnp.mean(losses))))
    return told


def main() -> None:
    """Runs both."""
    given = asked()
    context = multiprocessing.get_context("spawn")
    cores = sorted(os.sched_getaffinity(0))[:2]
    with context.Manager() as shared, ProcessPoolExecutor(2, context) as pool:
        gate = shared.Barrier(2)
        scans = [pool.submit(_scan, given, core, gate) for core in cores]
        epochs = zip(*(scan.result() for scan in scans), strict=True)
        pairs = [tuple(zip(*both, strict=True)) for both in epochs]
    answer([max(spans) for spans, _ in pairs], [sum(two) / 2 for _, two in pairs])


if __name__ == "__main__":
    main()
