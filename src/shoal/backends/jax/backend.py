"""JAX: windows of steps as one compiled loop over flat vectors."""

from __future__ import annotations

import gc
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, final

import jax
import jax.numpy as jnp
import keras
import numpy as np
import numpy.typing as npt

from shoal.backends.base import Backend, Clock, ComputeSpec, Data
from shoal.backends.compile_cache import turn
from shoal.backends.fixed import Fixed
from shoal.backends.jax import convolution as jax_convolution
from shoal.backends.jax import random_bits as jax_random
from shoal.backends.jax.gradient import Gradient
from shoal.backends.jax.keep import CopyBuffers, KeptState
from shoal.backends.jax.parts import Array, Parts, State
from shoal.backends.jax.window import WindowProgram
from shoal.vectors import Vector


@final
class JaxBackend(Backend):
    """See `Backend`. One device; threads are set by the process's environment."""

    def __init__(self, model: keras.Model, spec: ComputeSpec) -> None:
        if not spec.is_alone:
            jax_random.install()
        self._spec, self.model = spec, model
        self._parts = parts = Parts(model, spec)
        self._window, self._gradient = WindowProgram(parts), Gradient(parts)
        self._is_stepwise: bool | None = None  # unknown until the first data
        self.layout = parts.layout
        self.statistics_layout = parts.statistics_layout
        self.metrics_size = parts.metrics_size
        self._sums = np.zeros(self.metrics_size)
        self._copies = CopyBuffers()
        self._undone: dict[int, Any] = {}  # local state before the last gradient
        self._last: Data | None = None  # rows of a step, for `skip`
        self._warm = set[str]()
        self._begin(spec.rank_seed)

    def _begin(self, rank_seed: int) -> None:
        """Reads the values of the model's variables."""
        parts = self._parts
        came = [v.value for v in parts.fixed]
        self._fixed = Fixed(came, parts.is_random, rank_seed)
        momentum = self.layout.size if self._spec.local_momentum else 0
        self.state = State(
            weights=self.layout.gather(parts.trainable),
            statistics=self.statistics_layout.gather(parts.beside),
            fixed=self._own(self._fixed.seeded(rank_seed)),
            slots=[v.value for v in parts.slots],
            velocity=jnp.zeros(momentum, jnp.float32),
        )

    def renew(
        self, model: Sequence[Any], optimizer: Sequence[Any], rank_seed: int
    ) -> None:
        """Starts over with other values."""
        self._parts.assign(model, optimizer)
        self._sums[:] = 0.0
        self._begin(rank_seed)

    def load(self, vector: Vector, statistics: Vector) -> None:
        """Sets weights and statistics."""
        self.state = self.state._replace(weights=vector, statistics=statistics.copy())

    def read(self) -> tuple[Vector, Vector]:
        """Returns weights and statistics."""
        self.state = self._gradient.fold(self.state)
        return np.asarray(self.state.weights), np.asarray(self.state.statistics)

    def run(self, data: Data, steps: int, clock: Clock) -> int | None:
        """Takes `steps` optimizer steps, as one program where that is faster."""
        self.state = self._gradient.fold(self.state)
        self._look(data, steps)
        if self._is_stepwise is None:
            with _ours(self._spec):
                self._lowered(data, steps)
        if self._is_stepwise:
            return self._step_by_step(data, steps, clock)
        staged, (kept, given) = self._staged(data, steps), self._parted()
        with _ours(self._spec):
            after, grown, fine = self._window.run(
                kept, given, staged, np.int32(steps), self._now(clock)
            )
        self.state = kept.filling(after)
        self._count(grown)
        return int(fine) if int(fine) < steps else None

    def _step_by_step(self, data: Data, steps: int, clock: Clock) -> int | None:
        size = jax.tree.leaves(data)[0].shape[0] // steps
        turned: int | None = None
        for step in range(steps):
            rows = slice(step * size, (step + 1) * size)
            staged = jax.tree.map(lambda a, rows=rows: a[rows][None], data)
            at = replace(clock, start=clock.start + step * clock.pace)
            kept, given = self._parted()
            with _ours(self._spec):
                after, grown, fine = self._window.step(
                    kept, given, staged, self._now(at)
                )
            self.state = kept.filling(after)
            self._count(grown)
            if turned is None and not int(fine):
                turned = step
        return turned

    def _staged(self, data: Data, steps: int) -> Data:
        """Rows as (window, batch, ...); rows beyond `steps` are never read."""
        size = jax.tree.leaves(data)[0].shape[0] // steps
        limit = self._spec.window if size == self._spec.batch_size else steps
        return jax.tree.map(lambda a: _stage(a, steps, size, limit), data)

    def gradient(self, data: Data, step_rows: int, out: Vector) -> float:
        """Writes the sum of gradients of one step; returns its mass."""
        rows = jax.tree.leaves(data)[0].shape[0]
        self._look(data, 1)
        self.state = self._gradient.unfold(self.state)
        fixed, is_measured = self.state.fixed, self._fixed.is_measured
        if self._spec.is_scaled:
            self._undone = self._fixed.before_step(fixed)
        before = [] if is_measured else self._fixed.settled(fixed)
        kept, given = self._parted()
        with _ours(self._spec):
            after, (gradients, mass, grown) = self._gradient.of(
                kept, given, data, np.float32(step_rows / rows)
            )
        self.state = kept.filling(after)
        self._count(grown)
        self._last = data
        if not is_measured:
            self._fixed.measure(before, self.state.fixed)
        mass = np.float32(mass)
        # One pass, into the send buffer; XLA would make three of it.
        with np.errstate(over="ignore", invalid="ignore"):
            for start, gradient in zip(self.layout.offsets, gradients, strict=True):
                part = out[start : start + gradient.size]
                np.multiply(np.asarray(gradient).reshape(-1), mass, out=part)
        return float(mass)

    def undo(self) -> None:
        """Restores local state to that before the last gradient."""
        fixed = list(self.state.fixed)
        for place, value in self._undone.items():
            is_own = value is self._fixed.came[place]
            fixed[place] = value if is_own else jnp.array(value)
        self.state = self.state._replace(fixed=fixed)

    def skip(self) -> None:
        """Advances local state as if this worker had taken the step."""
        if self._last is None or not self._fixed.has_to_step:
            fixed = [jnp.asarray(v) for v in self._fixed.skip(self.state.fixed)]
            self.state = self.state._replace(fixed=fixed)
            return
        statistics, sums = self.state.statistics, self._sums.copy()
        rows = jax.tree.leaves(self._last)[0].shape[0]
        self.gradient(self._last, rows, np.empty(self.layout.size, np.float32))
        self.state, self._sums = self.state._replace(statistics=statistics), sums

    def apply(self, mean: Vector, clock: Clock) -> None:
        """Takes the optimizer step, and waits for it: `mean` may change then."""
        self.state = self._gradient.unfold(self.state)
        kept, given = self._parted()
        with _ours(self._spec):
            after = self._gradient.apply(kept, given, mean, self._now(clock))
        self.state = kept.filling(after)
        jax.block_until_ready(self.state.weights)

    def _count(self, grown: Array) -> None:
        self._sums += np.asarray(grown)

    def _now(self, clock: Clock) -> npt.NDArray[np.float32]:
        return self._parts.clock_vector(clock)

    def statistics(self) -> Vector:
        """Returns the statistics alone."""
        return np.asarray(self.state.statistics)

    def set_statistics(self, statistics: Vector) -> None:
        """Sets the statistics alone."""
        if statistics.size:
            self.state = self.state._replace(statistics=statistics.copy())

    def take_metrics(self, out: npt.NDArray[np.float64], *, add: bool) -> None:
        """Writes or adds the sums of metric state since the last call."""
        out[:] = out + self._sums if add else self._sums
        self._sums[:] = 0.0

    def change(
        self,
        fixed: Mapping[int, npt.NDArray[Any]],
        optimizer: Mapping[int, npt.NDArray[Any]],
    ) -> None:
        """Gives variables other values."""
        values_of = list(self.state.fixed), list(self.state.slots)
        self.state = self.state._replace(fixed=values_of[0], slots=values_of[1])
        # Copies: a worker's program may overwrite its arguments.
        for values, changed in zip(values_of, (fixed, optimizer), strict=True):
            for place, value in changed.items():
                old = values[place]
                values[place] = jnp.array(value, old.dtype).reshape(old.shape)

    def set_learning_rate(self, value: float) -> None:
        """Sets the optimizer's learning rate; no-op under a schedule."""
        at = self._parts.rate_at
        if at >= 0:
            old = self.state.slots[at]
            self.state.slots[at] = jnp.asarray(value, old.dtype)

    def snapshot(self) -> bytes:
        """Returns the optimizers' variables as raw bytes, in their order, and more.

        The driver's model has the same optimizers, and reads no further.
        """
        slots = b"".join(np.asarray(v).tobytes() for v in self.state.slots)
        return slots + self._fixed.pack(self.state.fixed)

    def restore(self, blob: bytes) -> None:
        """Sets the optimizers' variables from a snapshot."""
        at = 0
        for place, value in enumerate(self.state.slots):
            count = int(np.prod(value.shape, dtype=np.int64))
            array = np.frombuffer(blob, value.dtype, count, at).reshape(value.shape)
            self.state.slots[place] = jnp.array(array)
            at += array.nbytes
        if len(blob) > at:
            fixed = self._own(self._fixed.unpack(memoryview(blob)[at:]))
            self.state = self.state._replace(fixed=fixed)

    def keep(self) -> tuple[Any, ...]:
        """Copies the donated arguments of programs; the rest stays unchanged."""
        return self._copies.keep(*self._parted())

    def revert(self, kept: tuple[Any, ...]) -> None:
        """Restores a kept state."""
        self.state = self._copies.restored(KeptState(*kept))
        self._sums[:] = 0.0

    def fork(self, rank: int) -> tuple[Any, ...]:
        """Returns the state with which worker `rank` would begin."""
        # Copies: a worker's program may overwrite its arguments.
        fixed = self._own(self._fixed.seeded(rank))
        slots = [jnp.array(v) for v in self.state.slots]
        velocity = jnp.zeros_like(self.state.velocity)
        state = self.state._replace(fixed=fixed, slots=slots, velocity=velocity)
        return state, np.zeros_like(self._sums)

    def fork_local(self, rank: int) -> Any:
        """Returns the local state with which worker `rank` would begin."""
        return self._fixed.seeded(rank)

    def local(self) -> Any:
        """Returns the current local state."""
        return self._fixed.settled(self.state.fixed)

    def set_local(self, state: Any) -> None:
        """Continues from another local state."""
        self.state = self.state._replace(fixed=self._own(state))

    def swap(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Continues as the worker with `state`."""
        before = self.state, self._sums
        self.state, self._sums = state
        return before

    def warm_up(self, data: Data, *, is_gradient: bool) -> None:
        """Compiles the programs of the run, with data of a full step or window."""
        made = str((is_gradient, jax.tree.map(np.shape, data)))
        if made in self._warm:
            return
        self._look(data, 1 if is_gradient else self._steps_of(data))
        with _ours(self._spec):
            if is_gradient:
                self._last = data
                self._compile_gradient(data)
            else:
                self._compile_window(data)
        self._warm.add(made)

    @staticmethod
    def forget() -> None:
        """Frees programs, and the state that Keras keeps of models."""
        jax.clear_caches()
        keras.backend.clear_session()
        gc.collect()

    def _compile_gradient(self, data: Data) -> None:
        programs = self._gradient
        mean = np.zeros(self.layout.size, np.float32)
        parted = self._parted(programs.unfold(self.state))
        _compile(
            programs.of.lower(*parted, data, np.float32(1)),
            programs.apply.lower(*parted, mean, self._now(Clock())),
        )

    def _compile_window(self, data: Data) -> None:
        _compile(self._lowered(data, self._steps_of(data)))

    def _steps_of(self, data: Data) -> int:
        rows = jax.tree.leaves(data)[0].shape[0]
        return max(1, rows // self._spec.batch_size)

    def _lowered(self, data: Data, steps: int) -> jax.stages.Lowered:
        """Chooses the program to run, and returns it lowered."""
        staged, clock = self._staged(data, steps), self._now(Clock())
        program = self._window.run.lower(*self._parted(), staged, np.int32(1), clock)
        self._is_stepwise = self._window.is_slow(program)
        if not self._is_stepwise:
            return program
        one = jax.tree.map(lambda a: a[:1], staged)
        return self._window.step.lower(*self._parted(), one, clock)

    # ----------------------------------------------------------- local state

    def _look(self, data: Data, steps: int) -> None:
        """Finds which local state a step leaves unchanged, before all programs."""
        size = jax.tree.leaves(data)[0].shape[0] // steps
        with _ours(self._spec):
            self._parts.look(self.state, jax.tree.map(lambda a: a[:size], data))

    def _own(self, values: Sequence[Any]) -> list[Array]:
        """Returns copies: a worker's program may overwrite its arguments.

        `_parted` copies the model's initial values where that is needed.
        """
        pairs = zip(values, self._fixed.came, strict=True)
        return [came if value is came else jnp.array(value) for value, came in pairs]

    def _parted(self, given: State | None = None) -> tuple[State, State]:
        """Returns the arguments of a program: the kept ones, and the donated ones.

        The model's initial values are never donated.
        """
        is_still = self._parts.is_still
        state = given or self.state
        places = zip(state.fixed, self._fixed.came, is_still, strict=True)
        fixed = [
            jnp.array(value) if value is came and not own else value
            for value, came, own in places
        ]
        return state._replace(fixed=fixed).parted(is_still)


def _compile(*programs: jax.stages.Lowered) -> None:
    """Compiles programs, or loads them from the cache of another process."""
    folder: Any = jax.config.jax_compilation_cache_dir  # pyright: ignore

    def compile_one(program: jax.stages.Lowered) -> None:
        # Rendering a large program takes long, and the text only names it in the
        # folder.
        with turn(folder, program.as_text() if folder else ""):
            program.compile()

    with ThreadPoolExecutor(len(programs)) as threads:
        list(threads.map(compile_one, programs))


@contextmanager
def _ours(spec: ComputeSpec) -> Generator[None]:
    """Context for programs of a worker among several, which may draw other random bits.

    Random numbers cost half as much within it, and dropout is a tenth of a small step:
    JAX's default draws two words for each number, so that arrays on several devices
    need no exchange. A worker has one device.
    """
    if spec.is_alone:
        yield
        return
    convolve = jax_convolution.ours() if spec.has_one_thread else nullcontext()
    with convolve, jax.threefry_partitionable(False):  # pyright: ignore[reportCallIssue]
        yield


def _stage(array: Any, steps: int, size: int, limit: int) -> Any:
    shaped = array[: steps * size].reshape(steps, size, *array.shape[1:])
    if steps == limit:
        return shaped
    padded = np.zeros((limit, *shaped.shape[1:]), shaped.dtype)
    padded[:steps] = shaped
    return padded
