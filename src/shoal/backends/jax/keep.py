"""Copies of a worker's state, taken before steps that may have to be undone."""

from __future__ import annotations

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from shoal.backends.jax.parts import State


class Kept(NamedTuple):
    """A state, with its donated parts as plain arrays.

    Args:
        kept: What programs leave as it is.
        leaves: Of what they are donated.
        structure: That the leaves had.
    """

    kept: State
    leaves: list[Any]
    structure: Any


@final
class Copies:
    """Where donated parts of a state are copied to, again and again.

    On the CPU into the same memory each time: fresh memory takes seven times as long,
    because its pages have to be made.
    """

    def __init__(self) -> None:
        self._memory: list[npt.NDArray[Any]] = []

    def keep(self, kept: State, given: State) -> Kept:
        """Copies what programs are given; the copy is good until the next one.

        Args:
            kept: What they leave as it is.
            given: What they overwrite.
        """
        leaves, structure = jax.tree.flatten(given)
        if jax.default_backend() != "cpu":
            return Kept(kept, [jnp.array(leaf) for leaf in leaves], structure)
        shapes = [leaf.shape for leaf in leaves]
        if [memory.shape for memory in self._memory] != shapes:
            self._memory = [np.empty(leaf.shape, leaf.dtype) for leaf in leaves]
        for memory, leaf in zip(self._memory, leaves, strict=True):
            np.copyto(memory, np.asarray(leaf))
        return Kept(kept, self._memory, structure)

    def restored(self, kept: Kept) -> State:
        """The state that was copied; programs may be donated its parts."""
        leaves = [jnp.array(leaf) for leaf in kept.leaves]
        return kept.kept.merged(jax.tree.unflatten(kept.structure, leaves))
