"""Records what the driver's machine sees of a run: its load, and growing logs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager

from shoal.clusters.use import UseSampler
from shoal.runs.base import Run
from shoal.runs.log_times import LogSizes
from shoal.runs.store import StoredRun

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
    logs = LogSizes(run.log_sizes) if isinstance(run, StoredRun) else None
    with closing(UseSampler()) as sampler:

        def turn() -> None:
            on_turn()
            found = sampler.look()
            if found is not None:
                run.event("node_used", node=NODE, **found.to_json())
            if logs is not None:
                _tell(run, logs.look())

        try:
            yield turn
        finally:
            if logs is not None:
                _tell(run, logs.last())


def _tell(run: Run, sizes: dict[int, int]) -> None:
    if sizes:
        run.event("log_sizes", sizes=sizes)
