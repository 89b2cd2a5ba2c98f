"""State of callbacks: kept with a checkpoint, restored when a run is resumed.

This file decides what of a callback is state: all its attributes except models, layers,
optimizers, and values too large to be pickled while training waits. An attribute that
cannot be pickled, such as an open file, is made again by its `on_train_begin`.
"""

from __future__ import annotations

import copy
import io
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, final

import cloudpickle
import numpy as np
import numpy.typing as npt

from shoal.backends.fixed import is_same
from shoal.errors import a_kind

OF_THE_RUN = frozenset({"_model", "model", "params"})
"""Attributes that Keras sets when training begins."""

LARGE = 1 << 16
"""Bytes of arrays above which they are compared with the model's own."""

MOST_BYTES = 16_000_000
"""Limit of the bytes of one attribute: the run waits while it is pickled."""


@final
class FixedVariables(NamedTuple):
    """Large variables of a model that training does not change.

    Args:
        values: Values of local variables, by index.
        checks: CRC-32 of the large ones, at the beginning of the run.
    """

    values: Sequence[Any]
    checks: Mapping[int, int]

    def find(self, array: npt.NDArray[Any]) -> int | None:
        """Returns the index of a variable that equals an array, now and at first."""
        if array.nbytes < LARGE:
            return None
        for place, check in self.checks.items():
            is_here = is_same(array, self.values[place])
            if is_here and _check(array) == check:
                return place
        return None


NOTHING = FixedVariables((), {})


def checks_of(values: Sequence[Any]) -> dict[int, int]:
    """Returns the CRC-32 of each large value, by index."""
    return {p: _check(v) for p, v in enumerate(values) if v.nbytes >= LARGE}


def _check(array: npt.NDArray[Any]) -> int:
    flat = np.ascontiguousarray(array).reshape(-1)
    return zlib.crc32(flat.view(np.uint8).data)


@final
class CallbackStates:
    """Captures the state of callbacks, at one checkpoint after the other.

    An attribute that was left out once stays left out: trying again costs the same.

    Args:
        warn: Called with one line for each attribute that is left out.
        most_bytes: Limit of one attribute, pickled.
    """

    def __init__(
        self, warn: Callable[[str], None], most_bytes: int = MOST_BYTES
    ) -> None:
        self._warn, self._most_bytes = warn, most_bytes
        self._left_out: set[tuple[int, str]] = set()

    def take(self, callbacks: Sequence[Any], frozen: FixedVariables = NOTHING) -> bytes:
        """Returns the present state of callbacks.

        Args:
            callbacks: Callbacks in their order.
            frozen: Frozen variables of the model: equal arrays of a callback, as the
                best weights of `EarlyStopping`, are referenced and not written again.
        """
        states = [self._state(i, c, frozen) for i, c in enumerate(callbacks)]
        return pickle.dumps(states)

    def _state(
        self, place: int, callback: Any, frozen: FixedVariables
    ) -> tuple[str, dict[str, bytes]]:
        found: dict[str, bytes] = {}
        attributes: Mapping[str, Any] = vars(callback)
        name, model = type(callback).__qualname__, attributes.get("_model")
        for key, value in attributes.items():
            is_of_the_run = key in OF_THE_RUN or (value is model and value is not None)
            if is_of_the_run or (place, key) in self._left_out:
                continue
            try:
                found[key] = _pickled(value, self._most_bytes, frozen)
            except _LeftOut as why:
                self._left_out.add((place, key))
                self._warn(
                    f"checkpoints leave out {key!r} of the callback {name}: {why}. "
                    "A resumed run has it as it was when the run began; "
                    "set it in on_train_begin if that is not enough."
                )
            except Exception:  # an open file, a lock, a thread
                continue
        return name, found


def give_back(
    callbacks: Sequence[Any], blob: bytes, frozen: FixedVariables = NOTHING
) -> None:
    """Restores the state of callbacks of an earlier process.

    Args:
        callbacks: The same number of callbacks, in their order; others stay unchanged.
        blob: Result of `CallbackStates.take`.
        frozen: Frozen variables of the model, from the beginning of the run.
    """
    states: list[tuple[str, dict[str, bytes]]] = pickle.loads(blob)
    for callback, (name, state) in zip(callbacks, states, strict=False):
        if type(callback).__qualname__ != name:
            continue
        for key, value in state.items():
            setattr(callback, key, _Unpickler(io.BytesIO(value), frozen).load())


def pack_callbacks(callbacks: Sequence[Any]) -> bytes | None:
    """Pickles callbacks without their model, None where one cannot be pickled."""
    try:
        return cloudpickle.dumps([_without_model(callback) for callback in callbacks])
    except Exception:  # callbacks may hold anything
        return None


def unpack_callbacks(blob: bytes) -> list[Any]:
    """The inverse of `pack_callbacks`."""
    return pickle.loads(blob)


class _LeftOut(Exception):
    """An attribute is not pickled; the message says why."""


class _Memory(io.BytesIO):
    """A buffer with a limit of bytes."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._most_bytes = most_bytes

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        if self.tell() + size > self._most_bytes:
            raise _LeftOut(f"it takes more than {self._most_bytes / 1e6:,.0f} MB")
        return super().write(data)


class _Pickler(cloudpickle.Pickler):
    """Refuses parts of Keras, which would be written as whole files.

    Args:
        memory: Target buffer.
        frozen: Frozen variables of the model.
    """

    def __init__(self, memory: _Memory, frozen: FixedVariables) -> None:
        super().__init__(memory)
        self._frozen = frozen

    def persistent_id(self, obj: Any) -> int | None:
        """Returns the index of a frozen variable equal to an array; None for others."""
        return self._frozen.find(obj) if isinstance(obj, np.ndarray) else None

    def reducer_override(self, obj: Any) -> Any:
        """Called for all but plain values."""
        keras = import_module("keras")
        if isinstance(obj, (keras.layers.Layer, keras.optimizers.Optimizer)):
            raise _LeftOut(f"it holds {a_kind(obj)} of Keras")
        return super().reducer_override(obj)


class _Unpickler(pickle.Unpickler):
    """Reads the output of `_Pickler`."""

    def __init__(self, memory: io.BytesIO, frozen: FixedVariables) -> None:
        super().__init__(memory)
        self._frozen = frozen

    def persistent_load(self, pid: Any) -> Any:
        """Returns a copy of a variable's value."""
        return np.array(self._frozen.values[pid])


def _pickled(value: Any, most_bytes: int, frozen: FixedVariables) -> bytes:
    memory = _Memory(most_bytes)
    _Pickler(memory, frozen).dump(value)
    return memory.getvalue()


def _without_model(callback: Any) -> Any:
    stripped = copy.copy(callback)
    for key in OF_THE_RUN & set(vars(stripped)):
        vars(stripped)[key] = None
    return stripped
