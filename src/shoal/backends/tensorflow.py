"""TensorFlow: windows of steps as one `tf.function` loop over the model's variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from shoal.backends.base import ComputeSpec, Data
from shoal.backends.loss import scaled_loss
from shoal.backends.stateful import (
    Gradients,
    StatefulBackend,
    Taken,
    caught_gradients,
    leaves,
)
from shoal.vectors import Layout, Vector

Tensor = Any


@final
class TensorFlowBackend(StatefulBackend):
    """See `Backend`. Compiled by XLA where the model is, as in Keras' own `fit`."""

    def __init__(self, model: keras.Model, spec: ComputeSpec) -> None:
        super().__init__(model, spec)
        for schedule in self._parts.schedules:
            start, pace, began = (
                tf.Variable(tf.constant(0.0), trainable=False) for _ in range(3)
            )
            schedule.clock.now = (start, pace, began)
        self._window_program = _program(model, self._trace_window)
        self._gradient_program = _program(model, self._trace_gradients)
        self._update_program = _program(model, self._trace_update)

    def _set_clock(self, number: int, now: tuple[float, float, float]) -> None:
        variables = self._parts.schedules[number].clock.now or ()
        for variable, value in zip(variables, now, strict=True):
            variable.assign(value)

    # ----------------------------------------------- from arrays to programs

    def _window(
        self,
        point: Vector,
        statistics: Vector,
        velocity: Vector,
        data: Data,
        steps: int,
    ) -> Taken:
        staged = self._staged(data, steps)
        found = self._window_program(
            point, statistics, velocity, staged, np.int32(steps)
        )
        weights, statistics, velocity, grown, fine = (t.numpy() for t in found)
        return Taken(weights, statistics, velocity, grown, int(fine))

    def _staged(self, data: Data, steps: int) -> Data:
        """Rows as (window, batch, ...); rows beyond `steps` are never read."""
        spec = self._spec

        def stage(array: Any) -> Any:
            if array is None:
                return None
            size = len(array) // steps
            shaped = array[: steps * size].reshape(steps, size, *array.shape[1:])
            if size != spec.batch_size or steps == spec.window:
                return shaped
            padded = np.zeros((spec.window, *shaped.shape[1:]), shaped.dtype)
            padded[:steps] = shaped
            return padded

        return keras.tree.map_structure(stage, data)

    def _gradients(self, statistics: Vector, data: Data, scale: float) -> Gradients:
        arrays, *rest = self._gradient_program(statistics, data, np.float32(scale))
        after, grown, mass = (t.numpy() for t in rest)
        return Gradients([a.numpy() for a in arrays], after, grown, float(mass))

    def _update(self, gradient: Vector) -> None:
        self._update_program(gradient)

    # ------------------------------------------------------ what is compiled

    def _trace_window(
        self,
        point: Tensor,
        statistics: Tensor,
        velocity: Tensor,
        data: Data,
        steps: Tensor,
    ) -> tuple[Tensor, ...]:
        parts, mu = self._parts, self._spec.local_momentum
        _write(parts.trainable, point, parts.layout)
        _write(parts.beside, statistics, parts.statistics_layout)
        metrics = self._reset_metrics()

        def body(
            i: Tensor, speeds: list[Tensor], shown: Tensor, fine: Tensor
        ) -> tuple[Any, ...]:
            rows = keras.tree.map_structure(lambda a: None if a is None else a[i], data)
            before = [_wide(v) for v in parts.trainable] if mu else []
            logs = parts.model.train_step(rows)
            if mu:
                # The variables hold x + mu v; see the EAMSGD docstring.
                moves = [
                    _wide(v) - b for v, b in zip(parts.trainable, before, strict=True)
                ]
                speeds = [mu * v + m for v, m in zip(speeds, moves, strict=True)]
                for variable, speed in zip(parts.trainable, speeds, strict=True):
                    moved = _wide(variable) + mu * speed
                    variable.value.assign(tf.cast(moved, variable.dtype))
            shown = shown + self._shown(logs, rows)
            fine = fine + tf.cast(self._is_loss_finite(metrics, shown), tf.int32)
            return i + 1, speeds, shown, fine

        start = _cut(velocity, parts.layout) if mu else []
        zero = tf.zeros((parts.shown_size,), tf.float32)
        _, speeds, shown, fine = tf.while_loop(
            lambda i, *_: i < steps,
            body,
            (tf.constant(0), start, zero, tf.constant(0)),
        )
        return (
            _joined(parts.trainable),
            _joined(parts.beside),
            _flat(speeds) if mu else velocity,
            self._grown(metrics, shown),
            fine,
        )

    def _trace_gradients(
        self, statistics: Tensor, data: Data, scale: Tensor
    ) -> tuple[Any, ...]:
        parts = self._parts
        _write(parts.beside, statistics, parts.statistics_layout)
        metrics = self._reset_metrics()
        scaled = scaled_loss(parts.model, self._spec, scale)
        with caught_gradients(parts) as caught, scaled as masses:
            logs = parts.model.train_step(data)
        pairs = zip(caught[0], parts.trainable, strict=True)
        arrays = [
            tf.zeros(v.shape) if g is None
            else tf.cast(tf.convert_to_tensor(g), tf.float32)
            for g, v in pairs
        ]  # fmt: skip
        shown = self._shown(logs, data)
        mass = masses[0] if masses else tf.constant(0.0)
        return arrays, _joined(parts.beside), self._grown(metrics, shown), mass

    def _trace_update(self, gradient: Tensor) -> None:
        parts = self._parts
        pairs = zip(_cut(gradient, parts.layout), parts.layout.entries, strict=True)
        narrow = [tf.cast(g, e.dtype) for g, e in pairs]
        parts.optimizer.apply(*parts.chosen(narrow))

    # --------------------------------------------------------------- metrics

    def _reset_metrics(self) -> list[Any]:
        metrics = list(self._parts.model.metrics_variables)
        for variable, zero in zip(metrics, self._parts.zero, strict=True):
            variable.value.assign(zero)
        return metrics

    def _shown(self, logs: Any, rows: Data) -> Tensor:
        """Returns a step's logs that are not metrics, times its rows; and the rows."""
        names = self._spec.logs
        if not names:
            return tf.zeros((0,), tf.float32)
        found = leaves(rows)
        values = [logs.get(name, np.nan) for name in names]
        cast = [tf.cast(value, tf.float32) for value in (*values, 1.0)]
        return tf.cast(tf.shape(found[0])[0], tf.float32) * tf.stack(cast)

    def _is_loss_finite(self, metrics: Sequence[Any], shown: Tensor) -> Tensor:
        sums = [*(v.value for v in metrics), shown]
        found = tf.constant(True)
        for state, places in self._parts.loss_places:
            flat = tf.reshape(tf.cast(sums[state], tf.float32), [-1])
            fine = tf.math.is_finite(tf.gather(flat, places))
            found = tf.logical_and(found, tf.reduce_all(fine))
        return found

    def _grown(self, metrics: Sequence[Any], shown: Tensor) -> Tensor:
        pairs = zip(metrics, self._parts.zero, strict=True)
        return _flat([*(v.value - z for v, z in pairs), shown])


def _program(model: Any, trace: Any) -> Any:
    """Returns a traced function, or the function itself where graphs are off."""
    if model.run_eagerly:
        return lambda *given: trace(*keras.tree.map_structure(_tensor, given))
    return tf.function(trace, autograph=False, jit_compile=bool(model.jit_compile))


def _tensor(array: Any) -> Any:
    return None if array is None else tf.convert_to_tensor(array)


def _wide(variable: Any) -> Tensor:
    """Returns a variable's value; a cast alone may return the variable itself."""
    return tf.cast(tf.convert_to_tensor(variable.value), tf.float32)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    if not tensors:
        return tf.zeros((0,), tf.float32)
    return tf.concat([tf.reshape(tf.cast(t, tf.float32), [-1]) for t in tensors], 0)


def _joined(variables: Sequence[Any]) -> Tensor:
    return _flat([v.value for v in variables])


def _cut(vector: Tensor, layout: Layout) -> list[Tensor]:
    """Splits a flat vector into float32 tensors of the layout's shapes."""
    return [
        tf.reshape(vector[start : start + e.size], e.shape)
        for start, e in zip(layout.offsets, layout.entries, strict=True)
    ]


def _write(variables: Sequence[Any], vector: Tensor, layout: Layout) -> None:
    for variable, part in zip(variables, _cut(vector, layout), strict=True):
        variable.value.assign(tf.cast(part, variable.dtype))
