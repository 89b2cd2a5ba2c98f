"""The JAX program of the strategies that exchange weights: a window of steps."""

from __future__ import annotations

from typing import Any, final

import jax
import jax.numpy as jnp
from jax import lax

from shoal.backends.base import Data
from shoal.backends.jax.parts import Array, Parts, State, cut, join, like
from shoal.backends.parts import wide


@final
class WindowProgram:
    """Many local steps as one compiled loop, or one step at a time.

    XLA's convolutions on CPU take about twenty times as long within a loop as outside:
    models with convolutions take their steps one by one there, as Keras' own fit does.

    Args:
        parts: The model taken apart.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.run = jax.jit(self._run, donate_argnums=1)
        self.step = jax.jit(self._step, donate_argnums=1)

    @staticmethod
    def is_slow(program: jax.stages.Lowered) -> bool:
        """Whether a loop would be slower than its steps one by one."""
        has_convolution = "stablehlo.convolution" in program.as_text()
        return jax.default_backend() == "cpu" and has_convolution

    def _step(
        self, kept: State, given: State, data: Data, clock: Array
    ) -> tuple[State, Array, Array]:
        """One step, of data with a leading axis of one."""
        return self._run(kept, given, data, None, clock)

    def _run(
        self, kept: State, given: State, data: Data, steps: Array | None, clock: Array
    ) -> tuple[State, Array, Array]:
        """Takes `steps` steps; `data` has a leading axis of at least that length.

        Beside the state it returns the growth of metrics, and the number of steps
        before the first loss that was not finite.
        """
        parts, state = self._parts, kept.merged(given)
        mu = parts.spec.local_momentum
        point = state.weights + mu * state.velocity if mu else state.weights
        start = cut(point, parts.layout)
        speeds = cut(state.velocity, wide(parts.layout)) if mu else []

        def body(i: Array, carry: Any) -> Any:
            weights, moving, slots, metrics, speeds, shown, fine = carry
            others = parts.filled(moving, beside)
            rows = jax.tree.map(
                lambda a: lax.dynamic_index_in_dim(a, i, 0, keepdims=False), data
            )
            before = (weights, others, slots, metrics)
            logs, after = parts.model.train_step(before, rows)
            after = [like(a, b) for a, b in zip(after, before, strict=True)]
            if mu:
                # The variables hold x + mu v; see the EAMSGD docstring.
                moves = [a - b for a, b in zip(after[0], weights, strict=True)]
                speeds = [mu * v + m for v, m in zip(speeds, moves, strict=True)]
                after[0] = [
                    (a + mu * v).astype(a.dtype)
                    for a, v in zip(after[0], speeds, strict=True)
                ]
            shown = shown + parts.shown(logs, rows)
            # Sums: once they are not finite they stay so.
            fine = fine + parts.is_loss_finite(after[3], shown)
            after[1] = parts.moving(after[1])
            return (*after, speeds, shown, fine)

        beside = parts.whole(state.statistics, state.fixed, state.slots)
        moving, own = parts.moving(beside), parts.own(state.slots)
        metrics, shown = parts.no_metrics(), parts.nothing_shown()
        carry = (start, moving, own, metrics, speeds, shown, jnp.int32(0))
        with parts.at(clock, state.slots):
            weights, moving, slots, metrics, speeds, shown, fine = (
                body(jnp.int32(0), carry)
                if steps is None
                else lax.fori_loop(0, steps, body, carry)
            )
        statistics, fixed, slots = parts.split(moving, slots)
        velocity = join(speeds) if mu else state.velocity
        vector = join(weights)
        if parts.is_narrow:  # the master takes only the change of the steps
            vector = point + vector - join(start)
        vector = vector - mu * velocity if mu else vector
        after = State(vector, statistics, fixed, slots, velocity)
        return after, parts.grown(metrics, shown), fine
