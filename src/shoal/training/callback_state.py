"""What callbacks remember: kept with a checkpoint, given back when a run goes on.

This file decides what of a callback is state: all its attributes but models, layers,
optimizers, and what is too large to be pickled while training waits. What cannot be
pickled, such as an open file, is made again by its `on_train_begin`.
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

OF_THE_RUN = frozenset({"_model", "model", "params"})
"""Attributes that Keras sets when training begins."""

LARGE = 1 << 16
"""Bytes of arrays that are looked for among the model's own."""

MOST_BYTES = 16_000_000
"""Of one attribute: the run waits while it is pickled."""


@final
class Frozen(NamedTuple):
    """Large variables of a model that no training moves.

    Args:
        values: Of local variables, by place.
        checks: CRC-32 of those that are large, as the run began with them.
    """

    values: Sequence[Any]
    checks: Mapping[int, int]

    def find(self, array: npt.NDArray[Any]) -> int | None:
        """The place of what is equal to an array, now and when the run began."""
        if array.nbytes < LARGE:
            return None
        for place, check in self.checks.items():
            is_here = is_same(array, self.values[place])
            if is_here and _check(array) == check:
                return place
        return None


NOTHING = Frozen((), {})


def checks_of(values: Sequence[Any]) -> dict[int, int]:
    """The CRC-32 of each large value, by place."""
    return {p: _check(v) for p, v in enumerate(values) if v.nbytes >= LARGE}


def _check(array: npt.NDArray[Any]) -> int:
    flat = np.ascontiguousarray(array).reshape(-1)
    return zlib.crc32(flat.view(np.uint8).data)


@final
class CallbackStates:
    """Takes what callbacks remember, at one checkpoint after the other.

    What is left out once stays left out: trying again would cost what it costs.

    Args:
        warn: Told one line of each attribute that is left out.
        most_bytes: Of one attribute, pickled.
    """

    def __init__(
        self, warn: Callable[[str], None], most_bytes: int = MOST_BYTES
    ) -> None:
        self._warn, self._most_bytes = warn, most_bytes
        self._left_out: set[tuple[int, str]] = set()

    def take(self, callbacks: Sequence[Any], frozen: Frozen = NOTHING) -> bytes:
        """Returns what callbacks remember at this moment.

        Args:
            callbacks: In their order.
            frozen: Of the model: what a callback has of it, as the best weights of
                `EarlyStopping`, is named and not written again.
        """
        states = [self._state(i, c, frozen) for i, c in enumerate(callbacks)]
        return pickle.dumps(states)

    def _state(
        self, place: int, callback: Any, frozen: Frozen
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
                    "A run that goes on has it as it was when the run began; "
                    "set it in on_train_begin if that is not enough."
                )
            except Exception:  # an open file, a lock, a thread
                continue
        return name, found


def give_back(callbacks: Sequence[Any], blob: bytes, frozen: Frozen = NOTHING) -> None:
    """Lets callbacks remember what those of an earlier process did.

    Args:
        callbacks: As many as there were, in their order; others stay as they are.
        blob: What `CallbackStates.take` returned.
        frozen: Of the model, as the run began with it.
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
    except Exception:  # whatever they hold
        return None


def unpack_callbacks(blob: bytes) -> list[Any]:
    """The inverse of `pack_callbacks`."""
    return pickle.loads(blob)


class _LeftOut(Exception):
    """This is not pickled; says why."""


class _Memory(io.BytesIO):
    """Takes so many bytes and no more."""

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
        memory: Where to.
        frozen: Of the model.
    """

    def __init__(self, memory: _Memory, frozen: Frozen) -> None:
        super().__init__(memory)
        self._frozen = frozen

    def persistent_id(self, obj: Any) -> int | None:
        """The place of a frozen variable that an array is equal to; None for others."""
        return self._frozen.find(obj) if isinstance(obj, np.ndarray) else None

    def reducer_override(self, obj: Any) -> Any:
        """Called for all but plain values."""
        keras = import_module("keras")
        if isinstance(obj, (keras.layers.Layer, keras.optimizers.Optimizer)):
            raise _LeftOut(f"it holds a {type(obj).__name__} of Keras")
        return super().reducer_override(obj)


class _Unpickler(pickle.Unpickler):
    """Reads what `_Pickler` wrote."""

    def __init__(self, memory: io.BytesIO, frozen: Frozen) -> None:
        super().__init__(memory)
        self._frozen = frozen

    def persistent_load(self, pid: Any) -> Any:
        """A copy of a variable's value."""
        return np.array(self._frozen.values[pid])


def _pickled(value: Any, most_bytes: int, frozen: Frozen) -> bytes:
    memory = _Memory(most_bytes)
    _Pickler(memory, frozen).dump(value)
    return memory.getvalue()


def _without_model(callback: Any) -> Any:
    stripped = copy.copy(callback)
    for key in OF_THE_RUN & set(vars(stripped)):
        vars(stripped)[key] = None
    return stripped
