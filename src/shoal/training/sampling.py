"""Records the load of this machine with the run that it trains."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager

from shoal.clusters.use import UseSampler
from shoal.runs.base import Run

NODE = "localhost"
"""Name of this machine for its workers."""


@contextmanager
def sampling(run: Run, on_turn: Callable[[], None]) -> Generator[Callable[[], None]]:
    """Yields a function to call in turns of a run, in place of another.

    Workers on other machines report their own load.

    Args:
        run: Record of the run.
        on_turn: Also called by it.
    """
    with closing(UseSampler()) as sampler:

        def turn() -> None:
            on_turn()
            found = sampler.look()
            if found is not None:
                run.event("node_used", node=NODE, **found.to_json())

        yield turn
