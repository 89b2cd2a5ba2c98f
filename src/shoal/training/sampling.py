"""Records what the driver's machine sees of a run: its load, and growing logs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from typing import final

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
    logs = _Logs(run) if isinstance(run, StoredRun) else None
    with closing(UseSampler()) as sampler:

        def turn() -> None:
            on_turn()
            found = sampler.look()
            if found is not None:
                run.event("node_used", node=NODE, **found.to_json())
            if logs is not None:
                logs.tell()

        try:
            yield turn
        finally:
            if logs is not None:
                logs.tell(is_last=True)


@final
class _Logs:
    """Records how long logs are.

    Args:
        run: Record of the run.
    """

    def __init__(self, run: StoredRun) -> None:
        self._run, self._sizes = run, LogSizes(run.log_sizes)
        # On a storage the logs of a process replace those of the one before.
        self._new = {} if run.folder.is_local else {"are_new": True}

    def tell(self, *, is_last: bool = False) -> None:
        """Records sizes that have changed, once a second, and at the end."""
        found = self._sizes.last() if is_last else self._sizes.look()
        if found:
            self._run.event("log_sizes", sizes=found, **self._new)
            self._new = {}
