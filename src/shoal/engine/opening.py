"""How a worker opens the model and the data it was given."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.backends import BACKENDS
from shoal.backends.base import Backend, ComputeSpec
from shoal.backends.group import Group
from shoal.data import ArraySource
from shoal.data.chunks import SHELF_BYTES
from shoal.data.read_ahead import ReadAhead
from shoal.launchers.shared import map_inherited
from shoal.models.inspection import prepare
from shoal.models.pickling import loads
from shoal.models.travel import unpack


@dataclass(kw_only=True)
class OpenBackend:
    """Makes a worker's backend from a packed model.

    Args:
        name: Of the Keras backend.
        model: What `travel.pack` made.
    """

    name: str
    model: bytes

    def __call__(self, compute: ComputeSpec, sample: Any) -> Backend:
        """Unpacks the model and prepares it; called once, when the rank is known.

        What was packed is let go of: it is as large as the model.
        """
        packed, self.model = self.model, b""
        model = unpack(packed)
        del packed
        prepare(model, sample)
        return backend_class(self.name)(model, compute)


@dataclass(frozen=True, kw_only=True)
class CleanUp:
    """Lets go of what a worker's programs keep, before it opens another model.

    Args:
        name: Of the Keras backend.
    """

    name: str

    def __call__(self) -> None:
        """Frees compiled programs, and what Keras remembers of models."""
        backend_class(self.name).forget()


@dataclass(frozen=True, kw_only=True)
class OpenGroup:
    """Forms groups of workers; imports what it takes when the first one is formed.

    Args:
        name: Of the Keras backend.
    """

    name: str

    def __call__(self, path: Path, place: int, size: int, library: str) -> Group:
        """See `LaneSpec`."""
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
        source: As `pickling.dumps` packed it.
        memory_bytes: Of chunks that a worker holds.
    """

    source: bytes
    memory_bytes: int = SHELF_BYTES

    def __call__(self) -> ReadAhead:
        """Opens it; nothing is read yet."""
        return ReadAhead(loads(self.source), self.memory_bytes)


@dataclass(frozen=True, kw_only=True)
class OpenMapped:
    """Opens arrays from an inherited descriptor.

    Args:
        descriptor: Of a `SharedBlob`.
    """

    descriptor: int

    def __call__(self) -> ArraySource:
        """Maps the arrays; nothing is copied."""
        return ArraySource.from_blob(map_inherited(self.descriptor))
