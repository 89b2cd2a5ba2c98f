"""`shoal launch`: a program of another framework, on every node."""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.tables import show_json, show_table
from shoal.clusters.cluster_state import ClusterStore
from shoal.clusters.refreshing import refreshed
from shoal.clusters.ssh import SSH
from shoal.errors import ConfigError, PlanError
from shoal.foreign.checks import check
from shoal.foreign.hosts import cluster_nodes, read_nodes, this_machine
from shoal.foreign.job import LAST_PORT, JobProcess, Node, ProcessGroup, Shape
from shoal.foreign.ports import placed
from shoal.foreign.running import Runner, RunSettings
from shoal.foreign.scripts import script_of
from shoal.foreign.variables import files_of, hostfile, once, variables_of, workers_file
from shoal.host.private import make_private
from shoal.paths import name_of, one_inside
from shoal.plan import environment
from shoal.terminal import say, say_output

LOCAL_LOGS = "logs"


def launch(  # noqa: PLR0913 - one argument for each option
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND", help="Command of each process."),
    ],
    hosts: Annotated[
        str | None,
        typer.Option(
            help="File with one host a line (slots=N, gpus=N, address=A), or names "
            "with commas between; default: this machine."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="A cluster that is up, by its name: all of its hosts."),
    ] = None,
    per_node: Annotated[
        int | None,
        typer.Option(min=1, help="Processes a node; default its GPUs, else its slots."),
    ] = None,
    ps: Annotated[int, typer.Option(min=0, help="Parameter servers.")] = 0,
    chief: Annotated[
        bool, typer.Option("--chief", help="The first process is the chief.")
    ] = False,
    evaluator: Annotated[
        bool, typer.Option("--evaluator", help="One more process evaluates.")
    ] = False,
    scheduler: Annotated[
        bool, typer.Option("--scheduler", help="One more process, for DMLC.")
    ] = False,
    only_once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Run it on the first node only: mpirun and its like start the others.",
        ),
    ] = False,
    jax: Annotated[
        bool,
        typer.Option(
            "--jax",
            help="Also the variables by which jax.distributed.initialize() finds "
            "number and rank without arguments (those of Slurm).",
        ),
    ] = False,
    folder: Annotated[
        str | None,
        typer.Option(help="Working folder on every node; default: this folder."),
    ] = None,
    shared: Annotated[
        str | None,
        typer.Option(
            help="Folder that all nodes share, as EFS_MOUNT; default the cluster's one."
        ),
    ] = None,
    logs: Annotated[
        Path | None, typer.Option(help="Folder of logs; default: a new one.")
    ] = None,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds between SIGTERM and SIGKILL.")
    ] = 10.0,
    ssh: Annotated[
        str | None,
        typer.Option(
            help=f"The command that reaches hosts; default {shlex.join(SSH)}, or "
            "that of the cluster."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LAST_PORT,
            help="Where the job's ports begin on every node; default: always the same "
            "for the same hosts and options, but for ports that are taken here.",
        ),
    ] = None,
    show: Annotated[
        bool,
        typer.Option(
            "--print", help="Show the variables of each process, run nothing."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --print: as JSON.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option(help="Write one script a host, run nothing.")
    ] = None,
    only_check: Annotated[
        bool, typer.Option("--check", help="Check hosts and ports, run nothing.")
    ] = False,
) -> None:
    """Runs a program on every node, each process with the variables of its role.

    For TensorFlow (TF_CONFIG), torch, Keras, JAX, MPI (a hostfile) and DMLC. The output
    of all processes comes here, and into one log a process. The first failure stops
    all. With --chief and --ps the job ends with the chief; processes that still run are
    ended and named. The exit status is 0, 1, or that of the process that failed.
    """
    _refuse_what_means_nothing(show, write is not None, only_check, as_json=as_json)
    shape = Shape(
        per_node=per_node, ps=ps, has_chief=chief, has_evaluator=evaluator,
        has_scheduler=scheduler,
    )  # fmt: skip
    place = _job_target(hosts, cluster, shape)
    where = folder or str(Path.cwd())
    shared = place.shared if shared is None else shared
    words = place.ssh if ssh is None else tuple(shlex.split(ssh))
    with placed(place.nodes, shape, port) as whole:
        job = replace(whole, processes=whole.processes[:1]) if only_once else whole
        kept = logs or Path(environment().runs).expanduser() / _new_name()
        told = _Told(whole, shared, jax, words if only_once else (), kept)
        settings = RunSettings(
            folder=where, logs=kept, grace_s=grace, ssh=words,
            files=(hostfile(whole), workers_file(whole)),
        )  # fmt: skip
        if only_check:
            _show_check(whole, words)
        elif write is not None:
            there = replace(told, folder=logs or write / LOCAL_LOGS)
            _write(job, command, write, there, settings)
        elif show:
            shown = replace(told, folder=logs or Path(LOCAL_LOGS))
            _show(job, shown, files_of(whole), as_json=as_json)
        else:
            say(f"{len(job.processes)} processes, logs in {kept}", err=True)
            note = partial(say, err=True)
            Runner(job, command, told, settings, _echo(), note).run()


def _refuse_what_means_nothing(
    show: bool, write: bool, only_check: bool, *, as_json: bool
) -> None:
    named = {"--print": show, "--write": write, "--check": only_check}
    given = [name for name, is_given in named.items() if is_given]
    if len(given) > 1:
        raise ConfigError(
            f"{' and '.join(given)} are given together. Expected one of them: each "
            "does something else, and none runs the job. Leave the others out."
        )
    if as_json and not show:
        raise ConfigError(
            "--json is given without --print. Expected both: JSON is a form of what "
            "--print shows. Add --print, or leave --json out."
        )


@dataclass(frozen=True, kw_only=True)
class _JobTarget:
    """The hosts and the folder of a job."""

    nodes: list[Node]
    shared: str = ""
    ssh: tuple[str, ...] = SSH


def _job_target(hosts: str | None, cluster: str | None, shape: Shape) -> _JobTarget:
    if hosts is not None and cluster is not None:
        raise ConfigError(
            f"--hosts {hosts} and --cluster {cluster} are both given. Expected one of "
            "them. Leave the other out."
        )
    if cluster is not None:
        state = refreshed(ClusterStore(environment().clusters), cluster)
        nodes, shared = cluster_nodes(state), state.shared or ""
        return _JobTarget(nodes=nodes, shared=shared, ssh=state.ssh)
    return _JobTarget(
        nodes=[this_machine(shape)] if hosts is None else read_nodes(hosts)
    )


@dataclass(frozen=True)
class _Told:
    """The variables and files of a process.

    Args:
        job: All processes of the job.
        shared: Folder that all nodes share, empty for none.
        for_jax: Whether to add Slurm's variables for JAX; see `variables_of`.
        once: The command that reaches hosts, if only the first process is started;
            else empty.
        folder: Folder of logs.
    """

    job: ProcessGroup
    shared: str
    for_jax: bool
    once: Sequence[str]
    folder: Path

    def __call__(self, process: JobProcess) -> Mapping[str, str]:
        logs = {"SHOAL_LOGS": str(self.folder.resolve())}
        if self.once:
            return logs | once(self.job, process, self.shared, self.once)
        return logs | variables_of(
            self.job, process, shared=self.shared, for_jax=self.for_jax
        )


def _show_check(job: ProcessGroup, ssh: Sequence[str]) -> None:
    found = check(job, ssh)
    if found:
        raise PlanError(
            "the job would not run: " + "; ".join(found) + ". Expected hosts that "
            "answer, free ports and no name twice. Correct the hosts, or give another "
            "--port, then check again."
        )
    say(f"{len(job.nodes)} nodes and {len(job.processes)} processes: no faults")


def _write(
    job: ProcessGroup,
    command: list[str],
    folder: Path,
    told: _Told,
    settings: RunSettings,
) -> None:
    make_private(folder)
    for rank, node in enumerate(job.nodes):
        name = name_of(node.name.replace("@", "-at-"))
        path = one_inside(folder, f"{rank}-{name}.sh")
        text = script_of(
            job, rank, command, told, folder=settings.folder,
            logs=str(told.folder.resolve()), grace_s=settings.grace_s,
        )  # fmt: skip
        # It may hold secrets: the variables that the user gives to the processes.
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "w") as f:
            f.write(text)
        say(str(path))


def _show(
    job: ProcessGroup, told: _Told, files: Mapping[str, str], *, as_json: bool
) -> None:
    if as_json:
        show_json(
            [
                {
                    "name": p.name,
                    "node": p.node.name,
                    "variables": dict(told(p)),
                    "files": dict(files),
                }
                for p in job.processes
            ]
        )
        return
    rows = [
        (p.name, p.node.name, str(p.port), "" if p.gpus is None else ",".join(p.gpus))
        for p in job.processes
    ]
    show_table(rows, columns=("process", "node", "port", "GPUs"))
    for process in job.processes:
        say(f"\n{process.name} on {process.node.name}")
        for name, value in sorted(told(process).items()):
            say(f"  {name}={value}")
    for text in dict.fromkeys(files.values()):
        names = [name for name, said in files.items() if said == text]
        say(f"\n{', '.join(names)}: a file on each node with this content")
        for line in text.splitlines():
            say(f"  {line}")


def _echo() -> Callable[[str, str], None]:
    """Returns a function that prints lines of all processes, one at a time."""
    lock = threading.Lock()

    def echo(name: str, line: str) -> None:
        with lock:
            say_output(line, before=f"[{name}] ")

    return echo


def _new_name() -> str:
    return f"launch-{time.strftime('%Y%m%d-%H%M%S')}"
