"""`shoal cluster`: machines as a cluster, over SSH, from any provider."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, final

import typer
from typer.core import TyperCommand

from shoal.cli import cluster_connect, cluster_logs, cluster_plan
from shoal.cli.doctor import SIGNS
from shoal.cli.group import FAILURE
from shoal.cli.steps import Steps
from shoal.cli.tables import AsJson, format_seconds, show_json, show_table
from shoal.clusters.cluster_state import ClusterState, ClusterStore
from shoal.clusters.health import CHECKS, NodeHealth
from shoal.clusters.hosts_file import HostsFile
from shoal.clusters.jobs import Jobs
from shoal.clusters.lifecycle import Ended, ManagedCluster, NodeStatus
from shoal.clusters.pins import needs_of_shoal, pins_here
from shoal.clusters.provider import Wishes
from shoal.clusters.providers import provider_of, read_cluster_file
from shoal.clusters.refreshing import refreshed
from shoal.clusters.remote_jobs import RUNNING
from shoal.errors import ConfigError, PlanError, ShoalError
from shoal.plan import environment
from shoal.terminal import say

app = typer.Typer(
    help="Brings a cluster up and down, on hosts of your own or of a provider, and "
    "checks it.",
    no_args_is_help=True,
)

app.command("init", no_args_is_help=True)(cluster_plan.init)
app.command("cost", no_args_is_help=True)(cluster_plan.show_cost)
app.command("policy", no_args_is_help=True)(cluster_plan.show_policy)
app.command("template")(cluster_plan.show_template)
app.command("connect", no_args_is_help=True)(cluster_connect.show_connect)
app.command("logs", no_args_is_help=True)(cluster_logs.show_logs)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the cluster.")]


def store() -> ClusterStore:
    """Opens the folder of the files that describe clusters."""
    return ClusterStore(environment().clusters)


@app.command("up", no_args_is_help=True)
def up(  # noqa: PLR0913 - one argument for each option
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of the cluster.")],
    name: Annotated[
        str | None, typer.Option(help="Name of the cluster; default from the file.")
    ] = None,
    is_dry: Annotated[
        bool,
        typer.Option("--dry-run", help="Print what `up` would do, and change nothing."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; with --dry-run.")
    ] = False,
    agrees: Annotated[
        bool, typer.Option("--yes", help="Accept the price without a question.")
    ] = False,
    opens: Annotated[
        bool, typer.Option("--force-open", help="Allow SSH from all addresses.")
    ] = False,
    keeps_failed: Annotated[
        bool,
        typer.Option("--keep-failed", help="Keep the machines of an `up` that fails."),
    ] = False,
    detaches: Annotated[
        bool,
        typer.Option("--detach", help="Ask for the machines, and do not wait."),
    ] = False,
) -> None:
    """Connects to the hosts, installs what they need, and starts Ray on them.

    A second call starts what is missing. A host that fails does not stop the others,
    as long as `min_workers` of them are up. If the file names a `provider`, the hosts
    are made first, after you accept their price. A first `up` that fails releases
    them. With --dry-run it asks your own hosts what they have, and prints it; it ends
    with status 1 when `up` would fail. With --detach it prints the provider's id of
    the machines and does not wait; `up` again follows them.
    """
    asked = read_cluster_file(file)
    called = asked.spec.name if name is None else name
    if is_dry:
        spec = asked.spec.model_copy(update={"name": called})
        if isinstance(spec, HostsFile):
            _examine_hosts(spec, as_json=as_json)
        else:
            preview = asked.provider.preview(spec)
            cluster_plan.show_preview(preview, as_json=as_json)
        return
    began = time.monotonic()
    with _half_up(called), Steps() as steps:
        wishes = Wishes(
            confirm=lambda preview: cluster_plan.confirm(preview, steps, agrees=agrees),
            opens=opens,
            keeps_failed=keeps_failed,
        )
        cluster = ManagedCluster(called, store())
        if detaches:
            begun, state = cluster.begin(asked, _backend(), steps.tell, wishes)
            _show_begun(begun, state, file, name)
            return
        standing = cluster.up(asked, _backend(), steps.tell, wishes)
    state = standing.state
    count = 0 if state.hosts is None else len(state.hosts.hosts)
    say(
        f"{state.name}: {len(standing.running)} of {count} hosts run, "
        f"the head is {state.head.address}, Ray at {state.address}"
    )
    for address, why in standing.failed.items():
        say(f"not {address}: {why}", err=True)
    for note in asked.provider.notes(state):
        say(note)
    if asked.provider.makes_machines:
        say(f"It took {format_seconds(time.monotonic() - began)}.", err=True)


def _examine_hosts(hosts: HostsFile, *, as_json: bool) -> None:
    """Prints what the user's own hosts have, and what `up` would do there."""
    with Steps() as steps:
        cluster = ManagedCluster(hosts.name, store())
        found = cluster.examine_hosts(hosts, _backend(), steps.tell)
    cluster_plan.show_hosts(hosts, found, as_json=as_json)
    if len(found.reports) < hosts.min_workers:
        raise typer.Exit(FAILURE)


@app.command("list")
def show_clusters(
    as_json: AsJson = False,
    asks_all: Annotated[
        bool,
        typer.Option("--all-regions", help="List those of the AWS account instead."),
    ] = False,
    profile: Annotated[
        str | None, typer.Option(help="Profile of AWS, with --all-regions.")
    ] = None,
) -> None:
    """Lists the clusters that this machine knows; connects to none of them.

    With --all-regions it lists the stacks of Shoal in an account of AWS, also those
    of other machines. Ends with status 1 when a region does not answer.
    """
    known = store()
    if asks_all:
        cluster_plan.show_stacks(profile, known, as_json=as_json)
        return
    states: list[ClusterState] = []
    for name in known.names():
        try:
            states.append(known.get(name))
        except ShoalError as error:  # a damaged file does not hide the others
            say(f"{name}: {error}", err=True)
    if as_json:
        show_json(
            [
                {
                    "name": state.name,
                    "id": state.id,
                    "created": state.created,
                    "address": state.address if state.nodes else None,
                    "provider": state.provider,
                    "nodes": [node.address for node in state.nodes],
                    "ends": state.facts.get("end"),
                }
                for state in states
            ]
        )
        return
    if not states:
        say("No clusters. Bring one up with `shoal cluster up hosts.yaml`.")
        return
    rows = [
        (one.name, one.provider, len(one.nodes),
         one.head.address if one.nodes else "-", one.address if one.nodes else "-",
         one.facts.get("end") or "-")
        for one in states
    ]  # fmt: skip
    show_table(rows, columns=("name", "provider", "hosts", "head", "Ray", "ends"))


@app.command("status", no_args_is_help=True)
def show_status(
    name: Name,
    as_json: AsJson = False,
    resource_file: Annotated[
        Path | None,
        typer.Option(help="Write ids to line one, addresses to line two of a file."),
    ] = None,
    is_offline: Annotated[
        bool,
        typer.Option("--offline", help="Ask nobody; show what was last seen."),
    ] = False,
) -> None:
    """Asks every node whether it runs; ends with status 1 when one does not.

    A resource file has ids of machines on its first line and private addresses on its
    second, the head first, separated by spaces. With --offline it needs neither
    credentials nor a network, and ends with status 0.
    """
    cluster = ManagedCluster(name, store())
    found = cluster.last_seen() if is_offline else cluster.status()
    if resource_file is not None:
        _write_resources(resource_file, found)
    if as_json:
        show_json([asdict(node) for node in found])
    else:
        state = store().get(name)
        if is_offline:
            seen = time.localtime(store().seen(name))
            say(f"{name} as of {time.strftime('%Y-%m-%d %H:%M:%S', seen)}")
        for note in provider_of(state).notes(state):
            say(note)
        rows = [
            (
                "-" if node.number is None else node.number,
                node.address or node.instance,
                "head" if node.is_head else "",
                node.state,
                f"{node.cpus:g}",
                f"{node.gpus:g}",
                node.why,
            )
            for node in found
        ]
        columns = ("number", "host", "part", "state", "CPUs", "GPUs", "why")
        show_table(rows, columns=columns)
    if not is_offline and any(node.state != "runs" for node in found):
        raise typer.Exit(FAILURE)


@app.command("health", no_args_is_help=True)
def show_health(name: Name, as_json: AsJson = False) -> None:
    """Checks every node, and the network between the nodes.

    SSH, Ray, ports between nodes, the shared folder, clocks, disk, memory, GPUs, and
    latency and bandwidth to the head. Ends with status 1 when it finds a fault.
    """
    found = ManagedCluster(name, store()).health()
    if as_json:
        show_json([{**asdict(node), "is_well": node.is_well} for node in found])
    else:
        _show_health(found)
    if not all(node.is_well for node in found):
        raise typer.Exit(FAILURE)


@final
class _WithCommand(TyperCommand):
    """Keeps the words after -- apart from the arguments before it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the arguments."""
        place = args.index("--") if "--" in args else len(args)
        ctx.obj = args[place + 1 :]
        return super().parse_args(ctx, args[:place])


@app.command("ssh", cls=_WithCommand, no_args_is_help=True)
def open_ssh(
    context: typer.Context,
    name: Name,
    host: Annotated[
        str | None,
        typer.Argument(help="Number or address of a node; default the head."),
    ] = None,
) -> None:
    """Opens a shell on a node, or runs the command after --; ends with its status."""
    state = refreshed(store(), name)
    node = state.find(host) if host else state.head
    done = subprocess.run([*state.way_to(node).words, *context.obj], check=False)
    raise typer.Exit(done.returncode)


@app.command("down", no_args_is_help=True)
def down(
    name: Name,
    hosts: Annotated[
        Path | None,
        typer.Option(help="File of the cluster, if this machine lost its state."),
    ] = None,
    remove_environment: Annotated[
        bool,
        typer.Option("--remove-environment", help="Also remove what `up` installed."),
    ] = False,
    forces: Annotated[
        bool,
        typer.Option("--force", help="Also end a provider's machines with jobs."),
    ] = False,
    deletes_storage: Annotated[
        bool,
        typer.Option("--delete-storage", help="Also remove files that outlive it."),
    ] = False,
    region: cluster_connect.Region = None,
    profile: cluster_connect.Profile = None,
) -> None:
    """Ends what `up` started on the hosts, and nothing else; may be repeated.

    What `up` installed stays for the next time. Ends with status 1 when a host
    cannot be reached: the cluster is then kept until every host has answered. Machines
    of a provider are released; if that fails, `down` can be repeated. They are kept as
    long as jobs run on them, without --force. --delete-storage asks for the name, and
    can come later: with --region, or --hosts FILE.
    """
    asked = None if hosts is None else read_cluster_file(hosts)
    if deletes_storage:
        cluster_connect.confirm_name(name)
    if asked is None:
        cluster_connect.found_in(store(), name, region, profile)
    kept = None
    if deletes_storage:
        kept = cluster_connect.storage_state(store(), name, asked, region, profile)
    if not forces and name in store().names():
        _refuse_running_jobs(refreshed(store(), name))
    ended = ManagedCluster(name, store()).down(
        asked, removes_environment=remove_environment, backend=_backend()
    )
    _show_ended(name, ended, tells_kept=not deletes_storage)
    if ended.failed:
        raise typer.Exit(FAILURE)
    if kept is not None:
        cluster_connect.remove_storage(kept)


@app.command("requirements")
def show_requirements(
    hosts: Annotated[
        Path | None,
        typer.Argument(metavar="[HOSTS.YAML]", help="File whose packages it adds."),
    ] = None,
) -> None:
    """Prints the packages that `up` installs, for `pip download`, for offline hosts."""
    spec = None if hosts is None else read_cluster_file(hosts).spec
    more, runs = (), None
    if isinstance(spec, HostsFile):
        more, runs = spec.environment.packages, spec.runs
    for line in [*pins_here(_backend(), more, runs).requirements, *needs_of_shoal()]:
        say(line)


def _show_begun(begun: str, state: ClusterState, file: Path, name: str | None) -> None:
    """Prints the id of what is being made; how to follow it goes to standard error."""
    say(begun)
    for note in provider_of(state).notes(state):
        say(note, err=True)
    named = [] if name is None else ["--name", name]
    again = shlex.join(["shoal", "cluster", "up", str(file), *named])
    say(f"It goes on without this process. Follow it: {again}", err=True)


def _show_ended(name: str, ended: Ended, *, tells_kept: bool) -> None:
    for address, count in ended.processes.items():
        say(f"{address}: {count} processes ended")
    for address, why in ended.failed.items():
        say(f"not {address}: {why}", err=True)
    if ended.released:
        say(f"{name}: machines given back to the provider {ended.released}")
    if tells_kept:
        for sentence in ended.kept:
            say(sentence)
    if not (ended.released or ended.processes or ended.failed):
        say(f"{name} is not known here: there is nothing to end")


@contextmanager
def _half_up(name: str) -> Generator[None]:
    """Tells a user who interrupts `up` what was started and how to go on."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        for note in getattr(interrupt, "__notes__", []):
            say(note, err=True)
        if name in store().names():
            say(
                f"{name} is half up, and what has begun goes on there. The same "
                f"command goes on with it; `shoal cluster down {name}` ends it.",
                err=True,
            )
        raise


def _refuse_running_jobs(state: ClusterState) -> None:
    """Keeps machines on which jobs run; those of one's own can be used on."""
    if not state.nodes or not provider_of(state).makes_machines:
        return
    try:
        listed = Jobs(state).list()
    except ShoalError:
        return  # its head does not answer: nobody can use it
    running = [job.id for job in listed if job.state == RUNNING]
    if running:
        raise PlanError(
            f"jobs run on the cluster {state.name}: {', '.join(running)}. Expected "
            "none, because its machines will end. Wait for the jobs, stop them with "
            "`shoal jobs stop`, or add --force."
        )


def _write_resources(path: Path, found: list[NodeStatus]) -> None:
    nodes = [node for node in found if node.number is not None]
    ids = " ".join(node.instance or node.address for node in nodes)
    addresses = " ".join(node.private or node.address for node in nodes)
    try:
        path.write_text(f"{ids}\n{addresses}\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}. Expected a file in a folder "
            "that exists. Name another one."
        ) from error


def _backend() -> str:
    return os.environ.get("KERAS_BACKEND", "jax")


def _show_health(found: list[NodeHealth]) -> None:
    """Prints one line a node, and below it the remedies of all faults."""
    rows: list[list[str]] = []
    told = dict.fromkeys(one.name for node in found for one in node.findings)
    # Hosts of one's own have no provider, and only some providers tell more.
    checks = CHECKS if CHECKS[0] in told else CHECKS[1:]
    checks = (*checks, *(name for name in told if name not in CHECKS))
    for node in found:
        cells = {
            finding.name: finding.found if finding.state == "good" else SIGNS["wrong"]
            for finding in node.findings
        }
        rows.append([node.address, *(cells.get(check, "-") for check in checks)])
    show_table(rows, columns=("host", *checks))
    for node in found:
        for finding in node.findings:
            if finding.state == "wrong":
                say(f"{node.address}: {finding.name}: {finding.found}. {finding.fix}")
