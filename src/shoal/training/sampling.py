"""What this machine is busy with goes into the records of the run it trains."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager

from shoal.clusters.use import UseSampler
from shoal.runs.base import Run

NODE = "localhost"
"""As workers of this machine call it."""


@contextmanager
def sampling(run: Run, on_turn: Callable[[], None]) -> Generator[Callable[[], None]]:
    """Gives what is to be called in turns of a run, in place of another.

    Workers on other machines tell of theirs.

    Args:
        run: Where it is recorded.
        on_turn: Is called, too.
    """
    with closing(UseSampler()) as sampler:

        def turn() -> None:
            on_turn()
            found = sampler.look()
            if found is not None:
                run.event("node_used", node=NODE, **found.to_json())

        yield turn
