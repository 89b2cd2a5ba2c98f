"""JAX on many processes: `shoal launch --jax --per-node 2 -- python ...`.

`initialize()` finds coordinator, number and rank in what `--jax` sets.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils


def main() -> None:
    """Adds the ranks of all processes."""
    jax.distributed.initialize()
    own = jnp.array([jax.process_index()])
    found = multihost_utils.process_allgather(own)
    print(f"rank {jax.process_index()} of {jax.process_count()}: sum {found.sum()}")
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
