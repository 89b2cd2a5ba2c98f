"""torch: steps one after the other, compiled where the model is."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, final

import keras
import numpy as np
import torch

from shoal.backends.base import ComputeSpec, Data
from shoal.backends.fixed import is_random_state, word_of
from shoal.backends.loss import scaled_loss
from shoal.backends.parts import numpy_of
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
class TorchBackend(StatefulBackend):
    """See `Backend`. Eager, as Keras' own `fit` is unless told `jit_compile=True`."""

    def __init__(self, model: keras.Model, spec: ComputeSpec) -> None:
        super().__init__(model, spec)
        self._device = keras.src.backend.torch.core.get_device()
        if self._device.startswith("cuda") and spec.memory_share < 1.0:
            torch.cuda.set_per_process_memory_fraction(spec.memory_share)
        step = model.train_step
        self._step = torch.compile(step) if model.jit_compile else step

    def _window(
        self,
        point: Vector,
        statistics: Vector,
        velocity: Vector,
        data: Data,
        steps: int,
    ) -> Taken:
        parts, mu = self._parts, self._spec.local_momentum
        self._write(parts.trainable, point, parts.layout)
        self._write(parts.beside, statistics, parts.statistics_layout)
        metrics = self._reset_metrics()
        speeds = self._cut(velocity, parts.layout) if mu else []
        tensors = self._tensors(data)
        size = len(leaves(tensors)[0]) // steps
        shown = torch.zeros(parts.shown_size, device=self._device)
        fine = torch.zeros((), dtype=torch.int64, device=self._device)
        with self._own_random_numbers() as seed:
            for i in range(steps):
                rows = _map(lambda a, i=i: a[i * size : (i + 1) * size], tensors)
                before = [_wide(v) for v in parts.trainable] if mu else []
                seed(i)
                try:
                    logs = self._step(rows)
                except RuntimeError:
                    if not self._is_nan(rows):
                        raise
                    shown = self._with_nan(metrics, shown)
                    continue
                if mu:
                    speeds = _moved_on(parts.trainable, before, speeds, mu)
                shown = shown + self._shown(logs, size)
                fine += self._is_loss_finite(metrics, shown)
        return Taken(
            parts.layout.gather(parts.trainable),
            parts.statistics_layout.gather(parts.beside),
            _flat(speeds).cpu().numpy() if mu else velocity,
            self._grown(metrics, shown),
            int(fine),
        )

    def _gradients(self, statistics: Vector, data: Data, scale: float) -> Gradients:
        parts = self._parts
        self._write(parts.beside, statistics, parts.statistics_layout)
        metrics = self._reset_metrics()
        tensors = self._tensors(data)
        rows = len(leaves(tensors)[0])
        try:
            with (
                self._own_random_numbers() as seed,
                caught_gradients(parts) as caught,
                scaled_loss(parts.model, self._spec, scale) as masses,
            ):
                seed(0)
                logs = parts.model.train_step(tensors)
        except RuntimeError:
            if not self._is_nan(tensors):
                raise
            arrays = [np.zeros(e.shape, np.float32) for e in parts.layout.entries]
            nothing = torch.zeros(parts.shown_size, device=self._device)
            shown = self._with_nan(metrics, nothing)
            return Gradients(arrays, statistics, self._grown(metrics, shown))
        arrays = [
            np.zeros(e.shape, np.float32) if g is None
            else g.detach().to(torch.float32).cpu().numpy()
            for g, e in zip(caught[0], parts.layout.entries, strict=True)
        ]  # fmt: skip
        shown = self._shown(logs, rows)
        after = parts.statistics_layout.gather(parts.beside)
        mass = float(masses[0]) if masses else 0.0
        return Gradients(arrays, after, self._grown(metrics, shown), mass)

    # ------------------------------------------------ losses that raise on NaN

    def _is_nan(self, rows: Data) -> bool:
        """Whether a step that raised had such numbers, and `on_nan` is to handle it."""
        variables = [variable.value for variable in self._parts.trainable]
        return self._spec.has_nan_policy and not all(
            bool(torch.isfinite(tensor).all()) for tensor in (*leaves(rows), *variables)
        )

    def _with_nan(self, metrics: Sequence[Any], shown: Tensor) -> Tensor:
        """Makes the loss of a step without an end NaN, where the sums of losses are."""
        sums = [*(v.value.detach() for v in metrics), shown.clone()]
        with torch.no_grad():
            for state, places in self._parts.loss_places:
                sums[state].reshape(-1)[torch.as_tensor(places)] = float("nan")
        return sums[-1]

    def _update(self, gradient: Vector) -> None:
        parts = self._parts
        pairs = zip(self._cut(gradient, parts.layout), parts.trainable, strict=True)
        narrow = [g.to(v.value.dtype) for g, v in pairs]
        with torch.no_grad():
            parts.optimizer.apply(*parts.chosen(narrow))

    @contextmanager
    def _own_random_numbers(self) -> Generator[Callable[[int], None]]:
        """Context in which torch's generator is this worker's own.

        Keras' dropout draws from it unless it was given a seed. It is seeded again for
        each step, from the worker's seeds and an optimizer's count: a run that is
        resumed, or a worker that had no rows in a step, draws what it would have drawn.

        Yields:
            A function to call before a step, with the step's number from here.
        """
        parts = self._parts
        states = [numpy_of(v) for v in parts.fixed if is_random_state(v)]
        words = [word_of(state[0]) for state in states] or [self._rank_seed]
        taken = max(int(numpy_of(step)) for step in parts.steps)
        on_gpu = self._device.startswith("cuda")
        devices = [torch.cuda.current_device()] if on_gpu else []
        with torch.random.fork_rng(devices):

            def seed(step: int) -> None:
                drawn = np.random.SeedSequence([*words, taken + step])
                torch.manual_seed(int(drawn.generate_state(1, np.uint64)[0] >> 1))

            yield seed

    # --------------------------------------------------------------- metrics

    def _reset_metrics(self) -> list[Any]:
        metrics = list(self._parts.model.metrics_variables)
        for variable, zero in zip(metrics, self._parts.zero, strict=True):
            variable.assign(zero)
        return metrics

    def _shown(self, logs: Any, rows: int) -> Tensor:
        """Returns a step's logs that are not metrics, times its rows; and the rows."""
        names = self._spec.logs
        if not names:
            return torch.zeros(0, device=self._device)
        values = [logs.get(name, np.nan) for name in names]
        one = [
            torch.as_tensor(v, dtype=torch.float32, device=self._device).detach()
            for v in (*values, 1.0)
        ]
        return float(rows) * torch.stack(one)

    def _is_loss_finite(self, metrics: Sequence[Any], shown: Tensor) -> Tensor:
        sums = [*(v.value.detach() for v in metrics), shown]
        found = torch.ones((), dtype=torch.bool, device=self._device)
        for state, places in self._parts.loss_places:
            flat = sums[state].reshape(-1)[torch.as_tensor(places)]
            found &= torch.isfinite(flat).all()
        return found

    def _grown(self, metrics: Sequence[Any], shown: Tensor) -> Any:
        pairs = zip(metrics, self._parts.zero, strict=True)
        states = [
            (keras.ops.convert_to_numpy(v.value) - z).reshape(-1) for v, z in pairs
        ]
        return np.concatenate([*states, shown.cpu().numpy()])

    # --------------------------------------------------------------- tensors

    def _tensors(self, data: Data) -> Data:
        return _map(self._tensor, data)

    def _tensor(self, array: Any) -> Tensor:
        # Arrays of mapped data are read-only, and torch warns of that.
        if not array.flags.writeable:
            array = array.copy()
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def _cut(self, vector: Vector, layout: Layout) -> list[Tensor]:
        """Splits a flat vector into float32 tensors of the layout's shapes."""
        whole = self._tensor(vector)
        return [
            whole[start : start + e.size].reshape(e.shape)
            for start, e in zip(layout.offsets, layout.entries, strict=True)
        ]

    def _write(self, variables: Sequence[Any], vector: Vector, layout: Layout) -> None:
        with torch.no_grad():
            for v, part in zip(variables, self._cut(vector, layout), strict=True):
                v.value.copy_(part)


def _moved_on(
    variables: Sequence[Any],
    before: Sequence[Tensor],
    speeds: Sequence[Tensor],
    mu: float,
) -> list[Tensor]:
    """Applies the look-ahead of a step: variables hold x + mu v; see `EAMSGD`."""
    moves = [_wide(v) - b for v, b in zip(variables, before, strict=True)]
    speeds = [mu * v + m for v, m in zip(speeds, moves, strict=True)]
    with torch.no_grad():
        for variable, speed in zip(variables, speeds, strict=True):
            variable.value.copy_(_wide(variable) + mu * speed)
    return speeds


def _wide(variable: Any) -> Tensor:
    """Returns a float32 copy."""
    return variable.value.detach().to(torch.float32, copy=True)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


def _map(function: Any, data: Data) -> Data:
    return keras.tree.map_structure(lambda a: None if a is None else function(a), data)
