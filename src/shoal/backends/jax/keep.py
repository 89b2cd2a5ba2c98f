"""Copies of a worker's state, taken before steps that may have to be undone."""

from __future__ import annotations

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from shoal.backends.jax.parts import State


class KeptState(NamedTuple):
    """A state, with its donated parts as plain arrays.

    Args:
        kept: Parts that programs leave as they are.
        leaves: Copies of the parts that are donated to programs.
        structure: Tree structure of `leaves`.
    """

    kept: State
    leaves: list[Any]
    structure: Any


@final
class CopyBuffers:
    """Reusable memory for copies of the donated parts of a state.

    On the CPU copies go into the same memory each time: new memory takes seven times
    as long, because its pages have to be made.
    """

    def __init__(self) -> None:
        self._memory: list[npt.NDArray[Any]] = []

    def keep(self, kept: State, given: State) -> KeptState:
        """Copies the donated parts; the copy is valid until the next call.

        Args:
            kept: Parts that programs leave as they are.
            given: Parts that programs overwrite.
        """
        leaves, structure = jax.tree.flatten(given)
        if jax.default_backend() != "cpu":
            return KeptState(kept, [jnp.array(leaf) for leaf in leaves], structure)
        shapes = [leaf.shape for leaf in leaves]
        if [memory.shape for memory in self._memory] != shapes:
            self._memory = [np.empty(leaf.shape, leaf.dtype) for leaf in leaves]
        for memory, leaf in zip(self._memory, leaves, strict=True):
            np.copyto(memory, np.asarray(leaf))
        return KeptState(kept, self._memory, structure)

    def restored(self, kept: KeptState) -> State:
        """Returns the copied state; its parts may be donated to programs."""
        leaves = [jnp.array(leaf) for leaf in kept.leaves]
        return kept.kept.merged(jax.tree.unflatten(kept.structure, leaves))
