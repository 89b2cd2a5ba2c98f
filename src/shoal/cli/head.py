"""Commands about runs, on the head of a cluster that is up."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.clusters.cluster_state import ClusterStore
from shoal.clusters.jobs import Jobs
from shoal.clusters.ssh import Way
from shoal.plan import environment


def on_head(
    cluster: str, words: Sequence[str], run: str, root: str | None
) -> tuple[Way, list[str]]:
    """How the head is reached, and the words that ask its own Shoal about a run.

    Args:
        cluster: By its name.
        words: Of the command line, before the run.
        run: Id of a run, or of a job that `fit` has sent.
        root: Folder or URL of the runs there; None for where its jobs have theirs.

    Raises:
        ConfigError: No such cluster is known here.
        ClusterError: The head cannot be reached.
    """
    state = ClusterStore(environment().clusters).get(cluster)
    if root is None:
        run, root = Jobs(state).run_of(run)
    more = [] if root is None else ["--root", root]
    command = [state.head.python, "-m", "shoal", *words, run, *more]
    return state.way_to(state.head), command
