"""The JAX programs of the strategies that exchange gradients."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, final

import jax
import jax.numpy as jnp
import keras
import numpy as np

from shoal.backends.base import Data
from shoal.backends.jax.parts import Array, Arrays, Parts, State, cut, join, like
from shoal.backends.loss import mass_of, scaled_loss
from shoal.backends.parts import place, wide, wrong_count


@final
class Gradient:
    """One step of a gradient exchange, in two parts: gradients, and their mean.

    Weights stay in the shapes of the variables and are updated in place: joining
    them to a vector and cutting it again would cost 7 % of a step of a small model.

    Args:
        parts: The model taken apart.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.of = jax.jit(self._of, donate_argnums=1)
        self.apply = jax.jit(self._apply, donate_argnums=1)
        self._joined = jax.jit(join)

    def unfold(self, state: State) -> State:
        """Returns the state with weights in the shapes of the variables."""
        if not state.is_flat:
            return state
        # A copy: programs overwrite it, and the vector may be the engine's.
        vector = np.array(state.weights)
        weights = jax.device_put(cut(vector, wide(self._parts.layout)))
        return state._replace(weights=weights)

    def fold(self, state: State) -> State:
        """Returns the state with weights as one vector."""
        if state.is_flat:
            return state
        return state._replace(weights=self._joined(state.weights))

    # Arguments of programs: (kept, given, ...); kept ones stay valid, given are
    # donated.

    def _apply(self, kept: State, given: State, mean: Array, clock: Array) -> State:
        """Takes one optimizer step with the mean gradient of all workers."""
        parts, state = self._parts, kept.merged(given)
        weights = self._narrow(state)
        with parts.at(clock, state.slots):
            after, slots = self._applied(state.slots, cut(mean, parts.layout), weights)
        after = like(after, weights)
        if parts.is_narrow:  # masters take only the change of the step
            after = [
                master + (new.astype(jnp.float32) - old.astype(jnp.float32))
                for master, new, old in zip(state.weights, after, weights, strict=True)
            ]
        after_state = state._replace(weights=after, slots=slots)
        return after_state.moving(parts.is_still)

    def _applied(
        self, slots: Arrays, gradients: Arrays, weights: Arrays
    ) -> tuple[Arrays, Arrays]:
        """Returns both after a step of the optimizer that `train_step` applies."""
        parts = self._parts
        ours = [place(parts.slots, v) for v in parts.optimizer.variables]
        gone = [at for at, _ in parts.updated]
        found, grown = parts.optimizer.stateless_apply(
            [slots[at] for at in ours],
            [gradients[at] for at in gone],
            [weights[at] for at in gone],
        )
        weights, slots = list(weights), list(slots)
        for at, value in zip(gone, found, strict=True):
            weights[at] = value
        for at, value in zip(ours, grown, strict=True):
            slots[at] = value
        return weights, slots

    def _narrow(self, state: State) -> Arrays:
        """Returns the weights in the variables' own dtypes."""
        entries = self._parts.layout.entries
        return [w.astype(e.dtype) for w, e in zip(state.weights, entries, strict=True)]

    def _of(
        self, kept: State, given: State, data: Data, scale: Array
    ) -> tuple[State, tuple[Arrays, Array, Array]]:
        """Returns the gradients of one step, their mass, and the growth of metrics."""
        parts, state = self._parts, kept.merged(given)
        metrics = parts.no_metrics()
        others = parts.whole(state.statistics, state.fixed, state.slots)
        weights = self._narrow(state)
        before = (weights, others, parts.own(state.slots), metrics)
        scaled = scaled_loss(parts.model, parts.spec, scale)
        with _caught(parts) as caught, scaled:
            logs, after = parts.model.train_step(before, data)
        if not parts.trainable and not caught:  # all frozen: Keras takes no step
            caught.append([])
        if len(caught) != 1:
            raise wrong_count(parts.model, len(caught), "optimizer.stateless_apply")
        gradients = [
            jnp.zeros(e.shape, jnp.float32) if g is None else g.astype(jnp.float32)
            for g, e in zip(caught[0], parts.layout.entries, strict=True)
        ]
        statistics, fixed, _ = parts.split(like(after[1], others), ())
        grown = parts.grown(like(after[3], metrics), parts.shown(logs, data))
        after_state = state._replace(statistics=statistics, fixed=fixed)
        mass = self._mass(data, weights, others)
        return after_state.moving(parts.is_still), (gradients, mass, grown)

    def _mass(self, data: Data, weights: Arrays, others: Arrays) -> Array:
        """Returns the weight of a gradient in the mean of all workers."""
        parts = self._parts
        if parts.spec.has_masks:
            # Computed apart, because only the loss leaves Keras' own gradient. XLA
            # drops everything that masks do not depend on.
            x = keras.utils.unpack_x_y_sample_weight(data)[0]
            model: Any = parts.model
            given = {"training": True} if model._call_has_training_arg else {}
            outputs, _ = model.stateless_call(weights, others, x, **given)
            return mass_of(model, parts.spec, data, outputs).astype(jnp.float32)
        is_weighted = self._parts.spec.mass == "weights"
        if is_weighted and isinstance(data, tuple) and len(data) > 2:
            return jnp.sum(jax.tree.leaves(data[2])[0]).astype(jnp.float32)
        rows = jax.tree.leaves(data)[0].shape[0]
        return jnp.asarray(float(rows), jnp.float32)


@contextmanager
def _caught(parts: Parts) -> Generator[list[Arrays]]:
    """Captures the gradients that a train_step passes to an optimizer."""
    caught: list[Arrays] = []

    def keeping(optimizer: Any) -> Any:
        def keep(
            optimizer_variables: Arrays, grads: Arrays, trainable_variables: Arrays
        ) -> tuple[Arrays, Arrays]:
            known = optimizer._trainable_variables
            caught.append(parts.take_note(optimizer, known, list(grads)))
            return trainable_variables, optimizer_variables

        return keep

    for optimizer in parts.optimizers:
        # Not by assignment: Keras tracks what is assigned to an optimizer.
        object.__setattr__(optimizer, "stateless_apply", keeping(optimizer))
    try:
        yield caught
    finally:
        for optimizer in parts.optimizers:
            object.__delattr__(optimizer, "stateless_apply")
