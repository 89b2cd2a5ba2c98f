"""`shoal submit` and `shoal jobs`: scripts on the head of a cluster."""

from __future__ import annotations

import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.group import FAILURE
from shoal.cli.relaying import run_and_relay
from shoal.cli.tables import AsJson, show_json, show_table
from shoal.clusters.cluster_state import ClusterStore
from shoal.clusters.jobs import Jobs
from shoal.clusters.refreshing import refreshed
from shoal.errors import ConfigError
from shoal.plan import environment
from shoal.terminal import say

app = typer.Typer(
    help="Lists the jobs of a cluster, prints their logs, stops and removes them."
)

FAILED = ("failed", "lost")

ClusterName = Annotated[
    str | None,
    typer.Option(
        help="Name of the cluster; default $SHOAL_CLUSTER, else the only one known."
    ),
]
JobId = Annotated[
    str, typer.Argument(metavar="ID", help="Job id, or the beginning of one.")
]


def submit(
    script: Annotated[
        Path, typer.Argument(metavar="SCRIPT.PY", help="Script to run there.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGS]", help="Arguments of the script."),
    ] = None,
    cluster: ClusterName = None,
    beside: Annotated[
        list[Path] | None,
        typer.Option("--with", help="File or folder to send along with it."),
    ] = None,
) -> None:
    """Runs a script on the head of a cluster; it continues when you log out.

    Its calls of `fit` use all nodes (SHOAL_CLUSTER=ray, RAY_ADDRESS), and its runs go
    to the cluster's URL of runs, to the folder that the hosts share, or to the job's
    own.
    """
    name = _name(cluster)
    jobs = Jobs(refreshed(ClusterStore(environment().clusters), name))
    job = jobs.submit(script, arguments or [], beside or [])
    say(job)
    say(f"shoal jobs logs {job} -f --cluster {name}", err=True)


def attach(job: JobId, cluster: ClusterName = None) -> None:
    """Attaches to a `shoal.fit` that was sent to a cluster, and fetches its run."""
    sending = import_module("shoal.training.remote_fit")
    is_ray = cluster is not None and "://" in cluster
    name = cluster if is_ray else _name(cluster)
    history = sending.attach(sending.sent_to(name, job))
    say(f"run: {history.run.url}")


@app.callback(invoke_without_command=True)
def show_jobs(
    context: typer.Context,
    as_json: AsJson = False,
    cluster: ClusterName = None,
) -> None:
    """Lists the jobs of a cluster, newest first; see the subcommands for more."""
    context.obj = cluster
    if context.invoked_subcommand is not None:
        return
    listed = _jobs(context, cluster).list()
    if as_json:
        show_json([asdict(job) for job in listed])
        return
    if not listed:
        say("No jobs. Submit one with `shoal submit train.py --cluster NAME`.")
        return
    rows = [
        (
            job.id,
            job.state,
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.began)),
            " ".join([job.script, *job.arguments]),
        )
        for job in listed
    ]
    show_table(rows, columns=("id", "state", "began", "command"))


@app.command("logs", no_args_is_help=True)
def show_logs(
    context: typer.Context,
    job: JobId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow until the job ends.")
    ] = False,
    cluster: ClusterName = None,
) -> None:
    """Prints the output of a job; Ctrl-C ends the printing, not the job.

    With --follow it ends with status 1 if the job has failed.
    """
    jobs = _jobs(context, cluster)
    words = jobs.words_for_log(jobs.find(job), follow=follow)
    try:
        code = run_and_relay(words)
    except KeyboardInterrupt:
        return
    if code:
        raise typer.Exit(code)
    if follow:
        state = jobs.find(job).state
        say(f"{job}: {state}", err=True)
        if state.startswith(FAILED):
            raise typer.Exit(FAILURE)


@app.command("stop", no_args_is_help=True)
def stop_job(
    context: typer.Context,
    job: JobId,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds between SIGTERM and SIGKILL.")
    ] = 10.0,
    cluster: ClusterName = None,
) -> None:
    """Ends all processes of a job; may be repeated."""
    jobs = _jobs(context, cluster)
    found = jobs.find(job)
    count = jobs.stop(found, grace_s=grace)
    say(f"{found.id}: {count} processes ended" if count else
               f"{found.id}: {found.state}")  # fmt: skip


@app.command("rm", no_args_is_help=True)
def remove(
    context: typer.Context,
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Job ids, or their beginnings.")
    ],
    cluster: ClusterName = None,
) -> None:
    """Removes jobs that have ended: script, log, and runs in the job's folder."""
    jobs = _jobs(context, cluster)
    for job in ids:
        found = jobs.find(job)
        jobs.remove(found)
        say(f"removed {found.id}")


def _jobs(context: typer.Context, cluster: str | None) -> Jobs:
    """Opens the jobs; the command's own option wins over the group's."""
    name = _name(cluster or context.obj)
    return Jobs(refreshed(ClusterStore(environment().clusters), name))


def _name(cluster: str | None) -> str:
    known = ClusterStore(environment().clusters).names()
    if cluster is None and environment().cluster in known:
        return environment().cluster
    if cluster is None and len(known) != 1:
        raise ConfigError(
            f"no cluster was named, and this machine knows {len(known)}: "
            f"{', '.join(known) or 'none'}. Expected the name of one. Write "
            "--cluster NAME."
        )
    return known[0] if cluster is None else cluster
