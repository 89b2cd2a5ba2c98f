"""Factories of a worker's backend and data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from shoal.backends import BACKENDS
from shoal.backends.base import Backend, ComputeSpec
from shoal.backends.group import NativeGroup
from shoal.data import ArraySource
from shoal.data.chunks import SHELF_BYTES
from shoal.data.read_ahead import ReadAhead
from shoal.launchers.shared import map_inherited
from shoal.models.inspection import prepare
from shoal.models.parcel import Parcel
from shoal.models.pickling import loads
from shoal.models.travel import opened, read_parcel


@dataclass(kw_only=True)
class OpenBackend:
    """Makes a worker's backend from a packed model.

    Args:
        name: Name of the Keras backend.
        model: Result of `travel.pack`.
        is_kept: The process gets other work later: a model of the same kind reuses its
            programs.
    """

    name: str
    model: bytes
    is_kept: bool = False

    def __call__(self, compute: ComputeSpec, sample: Any) -> Backend:
        """Unpacks the model and prepares it; called once, when the rank is known.

        The packed bytes are released: they are as large as the model.
        """
        packed, self.model = self.model, b""
        parcel = read_parcel(packed)
        del packed
        kind = _Kind.of(parcel, compute, sample)
        kept = _KEPT.pop(self.name, None)
        if kept is not None and kept.suits(kind):
            kept.backend.renew(*parcel.values(kept.model), compute.rank_seed)
            _KEPT[self.name] = kept
            return kept.backend
        if kept is not None:
            del kept
            backend_class(self.name).forget()
        model = opened(parcel)
        prepare(model, sample)
        backend = backend_class(self.name)(model, compute)
        if self.is_kept and kind.make:
            _KEPT[self.name] = _Kept(kind, model, backend)
        return backend


class _Kind(NamedTuple):
    """What programs depend on: a backend suits all models and data of a kind."""

    make: str
    compute: ComputeSpec
    rows: list[tuple[tuple[int, ...], str]]

    @classmethod
    def of(cls, parcel: Parcel, compute: ComputeSpec, sample: Any) -> _Kind:
        """Returns the kind of a model, its compute spec, and a few rows."""
        leaves = import_module("keras").tree.flatten(sample)
        shapes = [(a.shape[1:], str(a.dtype)) for a in leaves if a is not None]
        return cls(parcel.make, replace(compute, rank_seed=0), shapes)


class _Kept(NamedTuple):
    """An opened model that can be used again.

    Args:
        kind: Its kind.
        model: The model, taken apart by the backend.
        backend: The backend with its programs.
    """

    kind: _Kind
    model: Any
    backend: Backend

    def suits(self, kind: _Kind) -> bool:
        """Whether it has programs for a kind."""
        return bool(kind.make) and self.kind == kind


_KEPT: dict[str, _Kept] = {}
"""By the backend's name: at most one, of the last work of this process."""


@dataclass(frozen=True, kw_only=True)
class CleanUp:
    """Releases a worker's programs before it opens another model.

    Args:
        name: Name of the Keras backend.
    """

    name: str

    def __call__(self) -> None:
        """Frees programs and Keras' global state, except what can be used again."""
        if self.name not in _KEPT:
            backend_class(self.name).forget()


@dataclass(frozen=True, kw_only=True)
class OpenGroup:
    """Forms groups of workers; imports the library when the first one is formed.

    Args:
        name: Name of the Keras backend.
    """

    name: str

    def __call__(self, path: Path, place: int, size: int, library: str) -> NativeGroup:
        """See `NativeAllReduceSpec`."""
        return _imported(BACKENDS[self.name].group)(path, place, size, library)


def backend_class(name: str) -> Any:
    """Imports a backend; its class is called with a model and a spec."""
    return _imported(BACKENDS[name].target)


def _imported(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


@dataclass(frozen=True, kw_only=True)
class OpenChunks:
    """Opens a source that is read in chunks.

    Args:
        source: The source, packed by `pickling.dumps`.
        memory_bytes: Limit of chunks that a worker holds.
    """

    source: bytes
    memory_bytes: int = SHELF_BYTES

    def __call__(self, on_wait: Callable[[], None] = lambda: None) -> ReadAhead:
        """Opens the source; nothing is read yet.

        Args:
            on_wait: See `ReadAhead`.
        """
        return ReadAhead(loads(self.source), self.memory_bytes, on_wait)


@dataclass(frozen=True, kw_only=True)
class OpenMapped:
    """Opens arrays from an inherited descriptor.

    Args:
        descriptor: Descriptor of a `SharedBlob`.
    """

    descriptor: int

    def __call__(self, on_wait: Callable[[], None] = lambda: None) -> ArraySource:
        """Maps the arrays; it copies nothing and never waits."""
        del on_wait
        return ArraySource.from_blob(map_inherited(self.descriptor))
