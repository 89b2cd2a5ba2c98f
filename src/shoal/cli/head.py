"""Commands about runs, on the head of a cluster that is up."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.clusters.cluster_state import ClusterStore
from shoal.clusters.jobs import Jobs
from shoal.clusters.refreshing import refreshed
from shoal.clusters.ssh import Way
from shoal.plan import environment


def on_head(
    cluster: str, words: Sequence[str], run: str, root: str | None
) -> tuple[Way, list[str]]:
    """Returns the way to the head, and the command for a run on the head's own Shoal.

    Args:
        cluster: Name of the cluster.
        words: Words of the command line before the run.
        run: Id of a run, or of a job that `fit` sent.
        root: Folder or URL of the runs there; None means the folder of its jobs.

    Raises:
        ConfigError: This machine knows no cluster of that name.
        ClusterError: The head cannot be reached.
    """
    state = refreshed(ClusterStore(environment().clusters), cluster)
    if root is None:
        run, root = Jobs(state).run_of(run)
    more = [] if root is None else ["--root", root]
    command = [state.head.python, "-m", "shoal", *words, run, *more]
    return state.way_to(state.head), command
