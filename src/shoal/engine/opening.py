"""How a worker opens the model and the data it was given."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from shoal.backends import BACKENDS
from shoal.backends.base import Backend, ComputeSpec
from shoal.data import ArraySource
from shoal.launchers.shared import map_inherited
from shoal.models.inspection import prepare
from shoal.models.travel import unpack


@dataclass(frozen=True, kw_only=True)
class OpenBackend:
    """Makes a worker's backend from a packed model.

    Args:
        name: Of the Keras backend.
        model: What `travel.pack` made.
    """

    name: str
    model: bytes

    def __call__(self, compute: ComputeSpec, sample: Any) -> Backend:
        """Unpacks the model and prepares it; called once the rank is known."""
        module, _, name = BACKENDS[self.name].partition(":")
        backend = getattr(import_module(module), name)
        model = unpack(self.model)
        prepare(model, sample)
        return backend(model, compute)


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
